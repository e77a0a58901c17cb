"""Device memory, copies and what the driver knows of an address. Cited: sections of the CUDA Driver API manual."""

from __future__ import annotations

import ctypes

import numpy as np

from tests.contract.driver_case import Case, N

CONTEXT, MEMORY_TYPE, DEVICE_ORDINAL, RANGE_SIZE = 1, 2, 9, 12  # CUpointer_attribute
DEVICE_MEMORY = 2
BIG = 64 << 20


def memory_is_aligned(case: Case) -> None:
    """Memory Management, cuMemAlloc: "suitably aligned for any kind of variable"; 256 by the programming guide."""
    case.driver.open()
    assert all(case.driver.new("cuMemAlloc", size) % 256 == 0 for size in (1, 100, 256, 4097))


def no_bytes_is_an_error(case: Case) -> None:
    """Memory Management, cuMemAlloc: "If bytesize is 0, cuMemAlloc() returns CUDA_ERROR_INVALID_VALUE"."""
    case.driver.open()
    assert case.driver.call("cuMemAlloc", ctypes.byref(ctypes.c_uint64()), 0) == 1


def out_of_memory_is_not_sticky(case: Case) -> None:
    """Data types, CUDA_ERROR_OUT_OF_MEMORY: "unable to allocate enough memory to perform the requested operation"."""
    case.driver.open()
    assert case.driver.call("cuMemAlloc", ctypes.byref(ctypes.c_uint64()), 1 << 46) == 2
    address = case.floats(3.0)
    assert (case.read(address) == 3.0).all()


def free_memory_is_told(case: Case) -> None:
    """Memory Management, cuMemGetInfo: free and total memory."""
    case.driver.open()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    case.driver.need("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    before = free.value
    address = case.driver.new("cuMemAlloc", BIG)
    case.driver.need("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    assert before - free.value >= BIG and free.value <= total.value
    case.driver.need("cuMemFree", address)


def only_what_was_allocated_is_freed(case: Case) -> None:
    """Memory Management, cuMemFree: "must have been returned by a previous call"."""
    case.driver.open()
    address = case.floats()
    assert case.driver.call("cuMemFree", address + 256) == 1
    case.driver.need("cuMemFree", address)
    assert case.driver.call("cuMemFree", address) == 1


def bytes_come_back(case: Case) -> None:
    """Memory Management, cuMemcpyHtoD, cuMemcpyDtoD, cuMemcpyDtoH."""
    case.driver.open()
    values = np.arange(N, dtype=np.float32)
    first, second = case.driver.upload(values), case.floats()
    case.driver.need("cuMemcpyDtoD", second, first, values.nbytes)
    assert (case.read(second) == values).all()


def memory_is_set(case: Case) -> None:
    """Memory Management, cuMemsetD8 and cuMemsetD32: N values of that width."""
    case.driver.open()
    address = case.floats(7.0)
    case.driver.need("cuMemsetD32", address, 0x3F800000, N // 2)
    case.driver.need("cuMemsetD8", address + 4 * (N // 2), 0, 4)
    values = case.read(address)
    assert (values[: N // 2] == 1.0).all() and values[N // 2] == 0.0 and (values[N // 2 + 1 :] == 7.0).all()


def a_copy_past_the_end_fails(case: Case) -> None:
    """Memory Management, cuMemcpyHtoD: CUDA_ERROR_INVALID_VALUE; never a silent write."""
    case.driver.open()
    address = case.driver.new("cuMemAlloc", 256)
    much = ctypes.create_string_buffer(64 << 20)
    assert case.driver.call("cuMemcpyHtoD", address, much, 64 << 20) in (1, 700)


def source_bytes_are_taken_at_the_call(case: Case) -> None:
    """API synchronization behavior: from pageable memory cuMemcpyHtoDAsync returns once the bytes are staged."""
    case.driver.open()
    stream, address, values = case.driver.new("cuStreamCreate", 1), case.floats(), np.full(N, 5.0, np.float32)
    case.driver.need("cuCtxSynchronize")
    case.driver.need("cuMemcpyHtoDAsync", address, values.ctypes.data_as(ctypes.c_void_p), values.nbytes, stream)
    values[:] = -1.0
    case.driver.need("cuStreamSynchronize", stream)
    assert (case.read(address) == 5.0).all()


def target_bytes_are_there_on_return(case: Case) -> None:
    """API synchronization behavior: to pageable memory cuMemcpyDtoHAsync "will return only once the copy has completed"."""
    case.driver.open()
    stream, source, target = case.driver.new("cuStreamCreate", 1), case.floats(2.0), case.floats()
    case.driver.need("cuCtxSynchronize")
    case.slow_copy(source, target, stream=stream)
    values = np.zeros(N, np.float32)
    case.driver.need("cuMemcpyDtoHAsync", values.ctypes.data_as(ctypes.c_void_p), target, values.nbytes, stream)
    assert (values == 2.0).all()


def a_copy_waits_for_the_default_stream(case: Case) -> None:
    """API synchronization behavior: cuMemcpyDtoH is in order of the legacy stream, hence after launches on it."""
    case.driver.open()
    source, target = case.floats(4.0), case.floats()
    case.slow_copy(source, target)
    assert (case.read(target) == 4.0).all()


def an_address_is_described(case: Case) -> None:
    """Unified Addressing, cuPointerGetAttribute: context, kind, device and range of device memory."""
    context = case.driver.open()
    address = case.driver.new("cuMemAlloc", 1000)
    owner, kind, ordinal, size = ctypes.c_uint64(), ctypes.c_uint(), ctypes.c_int(-1), ctypes.c_size_t()
    case.driver.need("cuPointerGetAttribute", ctypes.byref(owner), CONTEXT, address + 100)
    case.driver.need("cuPointerGetAttribute", ctypes.byref(kind), MEMORY_TYPE, address + 100)
    case.driver.need("cuPointerGetAttribute", ctypes.byref(ordinal), DEVICE_ORDINAL, address + 100)
    case.driver.need("cuPointerGetAttribute", ctypes.byref(size), RANGE_SIZE, address + 100)
    assert (owner.value, kind.value, ordinal.value) == (context, DEVICE_MEMORY, 0) and size.value >= 1000


def a_host_address_is_unknown(case: Case) -> None:
    """Unified Addressing, cuPointerGetAttribute: CUDA_ERROR_INVALID_VALUE for memory the driver knows nothing of."""
    case.driver.open()
    host = ctypes.create_string_buffer(64)
    assert case.driver.call("cuPointerGetAttribute", ctypes.byref(ctypes.c_uint()), MEMORY_TYPE, ctypes.addressof(host)) == 1
