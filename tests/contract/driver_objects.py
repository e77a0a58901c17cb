"""Initialisation, devices, contexts, modules and names. Each citation is a section of the CUDA Driver API manual."""

from __future__ import annotations

import ctypes
import os
import threading

from tests.contract.driver_case import Case

CAPABILITY_MAJOR, WARP_SIZE, UNITS = 75, 10, 16  # CUdevice_attribute
NOT_INITIALIZED, INVALID_DEVICE, INVALID_IMAGE, INVALID_CONTEXT, NO_BINARY, INVALID_HANDLE, NOT_FOUND = (
    3,
    101,
    200,
    201,
    209,
    400,
    500,
)


def nothing_works_before_init(case: Case) -> None:
    """Initialization: "If cuInit() has not been called, any function ... will return CUDA_ERROR_NOT_INITIALIZED"."""
    assert case.driver.call("cuDeviceGetCount", ctypes.byref(ctypes.c_int())) == NOT_INITIALIZED
    assert case.driver.call("cuCtxGetCurrent", ctypes.byref(ctypes.c_uint64())) == NOT_INITIALIZED


def init_takes_no_flags(case: Case) -> None:
    """Initialization, cuInit: "Currently, the Flags parameter must be 0"."""
    assert case.driver.call("cuInit", 1) == 1
    assert case.driver.call("cuInit", 0) == 0
    assert case.driver.call("cuInit", 0) == 0


def version_is_known_before_init(case: Case) -> None:
    """Version Management, cuDriverGetVersion: 1000 * major + 10 * minor."""
    version = ctypes.c_int()
    case.driver.need("cuDriverGetVersion", ctypes.byref(version))
    assert version.value >= 11000


def a_device_that_is_not_there(case: Case) -> None:
    """Device Management, cuDeviceGet: an ordinal in [0, cuDeviceGetCount()-1], else CUDA_ERROR_INVALID_DEVICE."""
    case.driver.need("cuInit", 0)
    count = ctypes.c_int()
    case.driver.need("cuDeviceGetCount", ctypes.byref(count))
    assert count.value >= 1
    assert case.driver.call("cuDeviceGet", ctypes.byref(ctypes.c_int()), count.value) == INVALID_DEVICE


def a_device_says_what_it_is(case: Case) -> None:
    """Device Management, cuDeviceGetAttribute, cuDeviceGetName, cuDeviceTotalMem, cuDeviceGetPCIBusId."""
    case.driver.need("cuInit", 0)
    assert case.driver.attribute(CAPABILITY_MAJOR) >= 7
    assert case.driver.attribute(WARP_SIZE) == 32
    assert case.driver.attribute(UNITS) >= 1
    name, bus, memory = ctypes.create_string_buffer(256), ctypes.create_string_buffer(64), ctypes.c_size_t()
    case.driver.need("cuDeviceGetName", name, 256, 0)
    case.driver.need("cuDeviceGetPCIBusId", bus, 64, 0)
    case.driver.need("cuDeviceTotalMem", ctypes.byref(memory), 0)
    assert name.value and bus.value.count(b":") == 2 and memory.value > 1 << 20
    assert case.driver.call("cuDeviceGetAttribute", ctypes.byref(ctypes.c_int()), 100_000, 0) == 1


def work_needs_a_current_context(case: Case) -> None:
    """Memory Management, cuMemAlloc: CUDA_ERROR_INVALID_CONTEXT without a current context."""
    case.driver.need("cuInit", 0)
    assert case.driver.call("cuMemAlloc", ctypes.byref(ctypes.c_uint64()), 64) == INVALID_CONTEXT
    assert case.driver.call("cuCtxSynchronize") == INVALID_CONTEXT


def a_primary_context_is_one_and_counted(case: Case) -> None:
    """Primary Context Management: retained as one context, active until as many releases."""
    case.driver.need("cuInit", 0)
    seen = [_active(case)]
    first, second = (case.driver.new("cuDevicePrimaryCtxRetain", 0) for _ in range(2))
    assert first == second
    for _ in range(2):
        case.driver.need("cuDevicePrimaryCtxRelease", 0)
        seen.append(_active(case))
    assert seen == [False, True, False]


def _active(case: Case) -> bool:
    flags, active = ctypes.c_uint(), ctypes.c_int()
    case.driver.need("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    return bool(active.value)


def retaining_makes_nothing_current(case: Case) -> None:
    """Primary Context Management, cuDevicePrimaryCtxRetain: "the context is not pushed to the stack"."""
    case.driver.need("cuInit", 0)
    case.driver.new("cuDevicePrimaryCtxRetain", 0)
    assert case.driver.new("cuCtxGetCurrent") == 0


def contexts_are_pushed_and_popped(case: Case) -> None:
    """Context Management, cuCtxPushCurrent and cuCtxPopCurrent: a stack of the calling thread."""
    first = case.driver.open()
    second = case.driver.new("cuCtxCreate", 0, 0)  # and it is current
    assert case.driver.new("cuCtxGetCurrent") == second
    case.driver.need("cuCtxPushCurrent", first)
    assert case.driver.new("cuCtxPopCurrent") == first
    assert case.driver.new("cuCtxPopCurrent") == second
    assert case.driver.new("cuCtxPopCurrent") == first
    assert case.driver.call("cuCtxPopCurrent", ctypes.byref(ctypes.c_uint64())) == INVALID_CONTEXT


def a_null_context_is_no_context(case: Case) -> None:
    """Context Management, cuCtxSetCurrent: "If ctx is NULL and the context stack is not empty, this pops the top"."""
    case.driver.open()
    case.driver.need("cuCtxSetCurrent", 0)
    assert case.driver.new("cuCtxGetCurrent") == 0


def current_is_of_the_thread(case: Case) -> None:
    """Context Management, cuCtxGetCurrent: the context "bound to the calling CPU thread"."""
    context, seen = case.driver.open(), []

    def look() -> None:
        seen.append(case.driver.new("cuCtxGetCurrent"))
        case.driver.need("cuCtxSetCurrent", context)
        seen.append(case.driver.new("cuMemAlloc", 64) != 0)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [0, True]


def a_forked_child_has_no_driver(case: Case) -> None:
    """Programming guide, CUDA and fork: contexts are not valid in a child; calls fail, they do not hang."""
    case.driver.open()
    child = os.fork()
    if child == 0:
        os._exit(case.driver.call("cuMemAlloc", ctypes.byref(ctypes.c_uint64()), 64))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == NOT_INITIALIZED
    assert case.driver.new("cuMemAlloc", 64)


def an_image_that_is_none(case: Case) -> None:
    """Module Management, cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE."""
    case.driver.open()
    assert case.driver.call("cuModuleLoadData", ctypes.byref(ctypes.c_uint64()), b"no cubin at all" * 64) == INVALID_IMAGE


def an_image_for_another_device(case: Case) -> None:
    """Module Management, cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU."""
    case.driver.open()
    assert case.driver.call("cuModuleLoadData", ctypes.byref(ctypes.c_uint64()), case.wrong) == NO_BINARY


def a_function_that_is_not_there(case: Case) -> None:
    """Module Management, cuModuleGetFunction: CUDA_ERROR_NOT_FOUND."""
    case.driver.open()
    module = case.driver.new("cuModuleLoadData", case.cubin)
    assert case.driver.call("cuModuleGetFunction", ctypes.byref(ctypes.c_uint64()), module, b"nobody") == NOT_FOUND
    assert case.driver.new("cuModuleGetFunction", module, b"fill")


def errors_have_names(case: Case) -> None:
    """Error Handling, cuGetErrorName and cuGetErrorString: NULL and CUDA_ERROR_INVALID_VALUE for an unknown code."""
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    case.driver.need("cuGetErrorName", 700, ctypes.byref(name))
    case.driver.need("cuGetErrorString", 700, ctypes.byref(text))
    assert name.value == b"CUDA_ERROR_ILLEGAL_ADDRESS" and text.value
    assert case.driver.call("cuGetErrorName", 54321, ctypes.byref(name)) == 1
    assert not name.value


def functions_are_found_by_name(case: Case) -> None:
    """Driver Entry Point Access, cuGetProcAddress: NULL and a status for what this driver lacks."""
    case.driver.need("cuInit", 0)
    function, status = ctypes.c_void_p(), ctypes.c_int()
    case.driver.need("cuGetProcAddress", b"cuMemAlloc", ctypes.byref(function), 12000, 0, ctypes.byref(status))
    assert function.value and status.value == 0
    assert case.driver.call("cuGetProcAddress", b"cuNobody", ctypes.byref(function), 12000, 0, ctypes.byref(status)) in (
        0,
        NOT_FOUND,
    )
    assert not function.value and status.value == 1


class _Resource(ctypes.Structure):
    """CUdevResource."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("internal", ctypes.c_ubyte * 92),
        ("count", ctypes.c_uint),
        ("room", ctypes.c_ubyte * 44),
    ]


def _part(case: Case, units: int) -> _Resource | None:
    """A part of the device with at least so many multiprocessors; None where the driver is too old for parts."""
    version = ctypes.c_int()
    case.driver.need("cuDriverGetVersion", ctypes.byref(version))
    if version.value < 12040:
        return None
    whole, part, groups = _Resource(), _Resource(), ctypes.c_uint(1)
    case.driver.need("cuDeviceGetDevResource", 0, ctypes.byref(whole), 1)
    assert whole.count == case.driver.attribute(UNITS)
    case.driver.need(
        "cuDevSmResourceSplitByCount", ctypes.byref(part), ctypes.byref(groups), ctypes.byref(whole), 0, 0, units
    )
    assert groups.value == 1
    return part


def a_part_of_a_device_has_at_least_what_was_asked(case: Case) -> None:
    """Green Contexts, cuDevSmResourceSplitByCount: groups of at least minCount SMs, rounded up; none of too many."""
    case.driver.open()
    if (part := _part(case, 5)) is None:
        return
    assert 5 <= part.count <= 8
    whole, groups = _Resource(), ctypes.c_uint(1)
    case.driver.need("cuDeviceGetDevResource", 0, ctypes.byref(whole), 1)
    arguments = (ctypes.byref(_Resource()), ctypes.byref(groups), ctypes.byref(whole), 0, 0, whole.count + 1)
    assert case.driver.call("cuDevSmResourceSplitByCount", *arguments) != 0


def a_green_context_is_current_and_runs_kernels(case: Case) -> None:
    """Green Contexts, cuCtxFromGreenCtx, cuGreenCtxStreamCreate: a context; its streams want CU_STREAM_NON_BLOCKING."""
    case.driver.open()
    if (part := _part(case, 8)) is None:
        return
    description = case.driver.new("cuDevResourceGenerateDesc", ctypes.byref(part), 1)
    green = case.driver.new("cuGreenCtxCreate", description, 0, 1)
    context = case.driver.new("cuCtxFromGreenCtx", green)
    assert case.driver.call("cuGreenCtxStreamCreate", ctypes.byref(ctypes.c_uint64()), green, 0, 0) == 1
    stream = case.driver.new("cuGreenCtxStreamCreate", green, 1, 0)
    case.driver.need("cuCtxSetCurrent", context)
    current = ctypes.c_uint64()
    case.driver.need("cuCtxGetCurrent", ctypes.byref(current))
    assert current.value == context
    address = case.floats()
    assert case.fill(address, 3.0, stream=stream) == 0
    case.driver.need("cuStreamSynchronize", stream)
    assert (case.read(address) == 3.0).all()
