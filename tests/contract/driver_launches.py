"""Launches, their limits, occupancy and tensor maps. Each citation is a section of the CUDA Driver API manual."""

from __future__ import annotations

import ctypes

import numpy as np

from tests.contract.driver_case import Case, N

MAX_THREADS, SHARED_BYTES, REGISTERS, MAX_DYNAMIC = 0, 1, 4, 8  # CUfunction_attribute
SHARED_OPTIN = 97  # CUdevice_attribute
FLOAT16, SWIZZLE_128 = 6, 3  # CUtensorMapDataType, CUtensorMapSwizzle


def a_launch_computes(case: Case) -> None:
    """Execution Control, cuLaunchKernel."""
    case.driver.open()
    address = case.floats()
    assert case.fill(address, 6.0) == 0
    assert (case.read(address) == 6.0).all()


def parameters_are_taken_at_the_call(case: Case) -> None:
    """Execution Control, cuLaunchKernel: parameters are copied; the caller may change them when the call returns."""
    case.driver.open()
    address, n, value = ctypes.c_uint64(case.floats()), ctypes.c_int(N), ctypes.c_float(8.0)
    assert case.driver.launch(case.kernel("fill"), [address, n, value], grid=8, block=128) == 0
    value.value, n.value = -1.0, 1 << 30
    assert (case.read(address.value) == 8.0).all()


def a_grid_of_none_is_an_error(case: Case) -> None:
    """Execution Control, cuLaunchKernel: CUDA_ERROR_INVALID_VALUE; nothing sticky."""
    case.driver.open()
    address = ctypes.c_uint64(case.floats())
    parameters = [address, ctypes.c_int(N), ctypes.c_float(1.0)]
    for grid, block in ((0, 128), ((1, 0, 1), 128), (1, 0)):
        assert case.driver.launch(case.kernel("fill"), parameters, grid=grid, block=block) == 1
    assert case.fill(address.value, 2.0) == 0


def a_grid_past_its_limit_is_an_error(case: Case) -> None:
    """CUDA C++ programming guide, compute capabilities: y and z of a grid go to 65535."""
    case.driver.open()
    parameters = [ctypes.c_uint64(case.floats()), ctypes.c_int(N), ctypes.c_float(1.0)]
    assert case.driver.launch(case.kernel("fill"), parameters, grid=(1, 65536, 1)) == 1
    assert case.driver.launch(case.kernel("fill"), parameters, grid=(1, 1, 65536)) == 1


def a_block_past_its_limit_is_an_error(case: Case) -> None:
    """CUDA C++ programming guide, compute capabilities: 1024 threads a block."""
    case.driver.open()
    parameters = [ctypes.c_uint64(case.floats()), ctypes.c_int(N), ctypes.c_float(1.0)]
    assert case.driver.launch(case.kernel("fill"), parameters, block=1025) == 1
    assert case.driver.launch(case.kernel("fill"), parameters, block=(32, 33, 1)) == 1


def launch_bounds_hold(case: Case) -> None:
    """CUDA C++ programming guide, launch bounds: a launch of more threads than the bound fails."""
    case.driver.open()
    address = ctypes.c_uint64(case.floats())
    assert case.driver.launch(case.kernel("bounded"), [address], block=128) in (1, 701)
    assert case.driver.launch(case.kernel("bounded"), [address], block=64) == 0


def shared_memory_is_asked_for(case: Case) -> None:
    """Execution Control, cuFuncSetAttribute: more than 48 KB of dynamic shared memory only after MAX_DYNAMIC_SHARED_SIZE."""
    case.driver.open()
    kernel, much = case.kernel("through_shared"), 60 << 10
    address = case.floats()
    parameters = [ctypes.c_uint64(address), ctypes.c_int(much // 4)]
    assert case.driver.launch(kernel, parameters, block=64, shared=much) == 1
    case.driver.need("cuFuncSetAttribute", kernel, MAX_DYNAMIC, much)
    assert case.driver.launch(kernel, parameters, block=64, shared=much) == 0
    assert (case.read(address)[:64] == np.cumsum(np.arange(64))).all()
    assert case.driver.launch(kernel, parameters, block=64, shared=much + 1024) == 1


def more_shared_memory_than_there_is(case: Case) -> None:
    """Execution Control, cuFuncSetAttribute: at most the device's opt-in limit."""
    case.driver.open()
    limit = case.driver.attribute(SHARED_OPTIN)
    kernel = case.kernel("through_shared")
    assert case.driver.call("cuFuncSetAttribute", kernel, MAX_DYNAMIC, limit + 1) == 1
    case.driver.need("cuFuncSetAttribute", kernel, MAX_DYNAMIC, limit)


def a_function_says_what_it_needs(case: Case) -> None:
    """Execution Control, cuFuncGetAttribute."""
    case.driver.open()
    value = ctypes.c_int()
    case.driver.need("cuFuncGetAttribute", ctypes.byref(value), REGISTERS, case.kernel("fill"))
    assert 1 <= value.value <= 255
    case.driver.need("cuFuncGetAttribute", ctypes.byref(value), MAX_THREADS, case.kernel("bounded"))
    assert value.value == 64
    case.driver.need("cuFuncGetAttribute", ctypes.byref(value), SHARED_BYTES, case.kernel("fill"))
    assert value.value == 0


def no_function_is_an_error(case: Case) -> None:
    """Execution Control, cuLaunchKernel: CUDA_ERROR_INVALID_HANDLE or CUDA_ERROR_INVALID_VALUE."""
    case.driver.open()
    assert case.driver.launch(0, []) in (1, 400)


def launches_need_a_context(case: Case) -> None:
    """Execution Control, cuLaunchKernel: CUDA_ERROR_INVALID_CONTEXT."""
    case.driver.open()
    address = case.floats()
    case.prepare("fill")
    case.driver.need("cuCtxSetCurrent", 0)
    assert case.fill(address, 1.0) == 201


def a_stream_of_another_context(case: Case) -> None:
    """Stream Management and cuLaunchKernel: the stream must be of the current context, else CUDA_ERROR_INVALID_HANDLE."""
    first = case.driver.open()
    address = case.floats()
    case.prepare("fill")
    case.driver.new("cuCtxCreate", 0, 0)
    foreign = case.driver.new("cuStreamCreate", 0)
    case.driver.need("cuCtxSetCurrent", first)
    assert case.fill(address, 1.0, stream=foreign) == 400
    assert case.fill(address, 1.0) == 0


def occupancy_is_told(case: Case) -> None:
    """Occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor: less with more shared memory, none past a block's limit."""
    case.driver.open()
    kernel, blocks = case.kernel("through_shared"), ctypes.c_int()
    limit = case.driver.attribute(SHARED_OPTIN)
    case.driver.need("cuFuncSetAttribute", kernel, MAX_DYNAMIC, limit)

    def resident(threads: int, shared: int) -> int:
        case.driver.need("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(blocks), kernel, threads, shared)
        return blocks.value

    assert resident(128, 1024) > resident(128, limit) == 1
    assert resident(1024, 0) in (1, 2)


def a_tensor_map_is_checked(case: Case) -> None:
    """Tensor Map Object Management, cuTensorMapEncodeTiled: alignment 16 of base and strides, boxes of at most 256.

    The manual wants the map itself at 64 bytes. Driver 580 takes one at 32 without a word, so the stand-in alone insists.
    """
    case.driver.open()
    base = case.driver.new("cuMemAlloc", 1 << 16)
    room = ctypes.create_string_buffer(256)
    at = (ctypes.addressof(room) + 127) // 128 * 128

    def encode(
        *, map_at: int = at, base: int = base, width: int = 64, pitch: int = 256, box: int = 64, step: int = 1
    ) -> int:
        extents, pitches = (ctypes.c_uint64 * 2)(width, 64), (ctypes.c_uint64 * 1)(pitch)
        boxes, steps = (ctypes.c_uint32 * 2)(64, box), (ctypes.c_uint32 * 2)(step, 1)
        return case.driver.call(
            "cuTensorMapEncodeTiled", map_at, FLOAT16, 2, base, extents, pitches, boxes, steps, 0, SWIZZLE_128, 2, 0
        )

    assert encode() == 0
    context = case.driver.new("cuCtxPopCurrent")
    assert encode() == 201  # the manual does not say so; driver 580 does
    case.driver.need("cuCtxPushCurrent", context)
    assert encode(base=base + 8) == encode(pitch=264) == encode(box=257) == encode(width=0) == encode(step=9) == 1
