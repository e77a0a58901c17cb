"""Errors that come from the device: where they are told, and that they stay. Cited: Driver API manual, Data types."""

from __future__ import annotations

import ctypes

from tests.contract.driver_case import Case, N

ILLEGAL_ADDRESS, MISALIGNED_ADDRESS = 700, 716


def _stays(case: Case, code: int) -> None:
    assert case.driver.call("cuMemAlloc", ctypes.byref(ctypes.c_uint64()), 64) == code
    assert case.driver.call("cuStreamSynchronize", 0) == code
    assert case.driver.call("cuCtxSynchronize") == code
    assert case.driver.call("cuStreamCreate", ctypes.byref(ctypes.c_uint64()), 0) == code


def a_stray_address_is_told_at_the_wait(case: Case) -> None:
    """CUDA_ERROR_ILLEGAL_ADDRESS: "any further CUDA work will return the same error"."""
    case.driver.open()
    launched = case.fill(0, 1.0)
    assert launched == (ILLEGAL_ADDRESS if case.kind == "early" else 0)
    assert case.driver.call("cuCtxSynchronize") == ILLEGAL_ADDRESS
    _stays(case, ILLEGAL_ADDRESS)


def a_misaligned_address_is_told_at_the_wait(case: Case) -> None:
    """CUDA_ERROR_MISALIGNED_ADDRESS: "a load or store instruction on a memory address which is not aligned"."""
    case.driver.open()
    address = ctypes.c_uint64(case.floats())
    case.driver.launch(case.kernel("misaligned"), [address], block=1)
    assert case.driver.call("cuCtxSynchronize") == MISALIGNED_ADDRESS
    _stays(case, MISALIGNED_ADDRESS)


def a_fault_is_told_by_a_copy(case: Case) -> None:
    """cuMemcpyDtoH: "may also return error codes from previous, asynchronous launches"."""
    case.driver.open()
    address = case.floats()
    case.fill(0, 1.0)
    host = (ctypes.c_float * N)()
    assert case.driver.call("cuMemcpyDtoH", host, address, 4 * N) == ILLEGAL_ADDRESS


def a_fault_in_a_graph_is_told_at_the_wait(case: Case) -> None:
    """cuGraphLaunch: asynchronous as a launch; CUDA_ERROR_ILLEGAL_ADDRESS at the next wait."""
    case.driver.open()
    case.prepare("fill")
    stream = case.driver.new("cuStreamCreate", 1)
    case.driver.need("cuStreamBeginCapture", stream, 0)
    assert case.fill(0, 1.0, stream=stream) == 0
    graph = ctypes.c_uint64()
    case.driver.need("cuStreamEndCapture", stream, ctypes.byref(graph))
    executable = case.driver.new("cuGraphInstantiateWithFlags", graph.value, 0)
    case.driver.call("cuGraphLaunch", executable, stream)
    assert case.driver.call("cuStreamSynchronize", stream) == ILLEGAL_ADDRESS
    _stays(case, ILLEGAL_ADDRESS)


def what_the_device_is_stays_known(case: Case) -> None:
    """Device Management needs no context: it answers after a fault, so that a host can say which device failed."""
    case.driver.open()
    case.fill(0, 1.0)
    assert case.driver.call("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert case.driver.attribute(75) >= 7
    assert case.driver.new("cuCtxGetCurrent")
