"""Stream capture and graphs. Each citation is a section of the CUDA Driver API manual or of the programming guide on it."""

from __future__ import annotations

import ctypes
import threading

from tests.contract.driver_case import Case

GLOBAL, RELAXED = 0, 2
ILLEGAL_STATE, UNSUPPORTED, INVALIDATED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT, WRONG_THREAD = (
    401,
    900,
    901,
    904,
    905,
    906,
    907,
    908,
)


def _begin(case: Case, flags: int = 1) -> int:
    stream = case.driver.new("cuStreamCreate", flags)
    case.driver.need("cuCtxSynchronize")
    case.driver.need("cuStreamBeginCapture", stream, GLOBAL)
    return stream


def _end(case: Case, stream: int) -> tuple[int, int]:
    graph = ctypes.c_uint64(1)
    return case.driver.call("cuStreamEndCapture", stream, ctypes.byref(graph)), graph.value


def _status(case: Case, stream: int) -> int:
    status = ctypes.c_int(-1)
    case.driver.need("cuStreamIsCapturing", stream, ctypes.byref(status))
    return status.value


def _replay(case: Case, graph: int, stream: int, times: int = 1) -> None:
    executable = case.driver.new("cuGraphInstantiateWithFlags", graph, 0)
    case.driver.need("cuGraphDestroy", graph)
    for _ in range(times):
        case.driver.need("cuGraphLaunch", executable, stream)
    case.driver.need("cuStreamSynchronize", stream)
    case.driver.need("cuGraphExecDestroy", executable)


def a_captured_launch_runs_at_replay(case: Case) -> None:
    """Graph Management, cuGraphLaunch; the executable outlives its graph, and launches are in order of the stream."""
    case.driver.open()
    case.prepare("add_one")
    address = case.floats()
    stream = _begin(case)
    assert case.add_one(address, stream=stream) == case.add_one(address, stream=stream) == 0
    code, graph = _end(case, stream)
    assert code == 0 and (case.read(address) == 0.0).all()
    _replay(case, graph, stream, times=3)
    assert (case.read(address) == 6.0).all()


def a_graph_keeps_its_parameters(case: Case) -> None:
    """CUDA C++ programming guide, stream capture: parameters of a captured launch are copied into its node."""
    case.driver.open()
    case.prepare("fill")
    address, n, value = ctypes.c_uint64(case.floats()), ctypes.c_int(1000), ctypes.c_float(9.0)
    stream = _begin(case)
    assert case.driver.launch(case.kernel("fill"), [address, n, value], grid=8, block=128, stream=stream) == 0
    value.value = -1.0
    _replay(case, _end(case, stream)[1], stream)
    assert (case.read(address.value) == 9.0).all()


def a_capture_is_told(case: Case) -> None:
    """Stream Management, cuStreamIsCapturing: none, active, invalidated."""
    case.driver.open()
    stream = case.driver.new("cuStreamCreate", 1)
    assert _status(case, stream) == 0
    case.driver.need("cuStreamBeginCapture", stream, GLOBAL)
    assert _status(case, stream) == 1
    assert case.driver.call("cuStreamSynchronize", stream) == UNSUPPORTED
    assert _status(case, stream) == 2
    assert _end(case, stream) == (INVALIDATED, 0)
    assert _status(case, stream) == 0


def waiting_breaks_a_capture(case: Case) -> None:
    """Programming guide, prohibited operations: synchronising a captured stream, or its context, invalidates the capture."""
    case.driver.open()
    stream = _begin(case)
    assert case.driver.call("cuCtxSynchronize") == UNSUPPORTED
    assert _end(case, stream) == (INVALIDATED, 0)


def asking_breaks_a_capture(case: Case) -> None:
    """Programming guide, prohibited operations: the execution status of a captured stream may not be queried."""
    case.driver.open()
    stream = _begin(case)
    assert case.driver.call("cuStreamQuery", stream) == UNSUPPORTED
    assert _end(case, stream) == (INVALIDATED, 0)


def a_broken_capture_takes_nothing(case: Case) -> None:
    """Programming guide, invalidation: further use of the streams returns an error until cuStreamEndCapture."""
    case.driver.open()
    case.prepare("add_one")
    address = case.floats()
    stream = _begin(case)
    case.driver.call("cuStreamSynchronize", stream)
    assert case.add_one(address, stream=stream) == INVALIDATED
    assert _end(case, stream) == (INVALIDATED, 0)
    assert case.add_one(address, stream=stream) == 0
    case.driver.need("cuStreamSynchronize", stream)


def allocating_breaks_a_global_capture(case: Case) -> None:
    """Stream Management, cuStreamBeginCapture, CU_STREAM_CAPTURE_MODE_GLOBAL: potentially unsafe calls are prohibited."""
    case.driver.open()
    stream = _begin(case)
    assert case.driver.call("cuMemAlloc", ctypes.byref(ctypes.c_uint64()), 64) == UNSUPPORTED
    assert _end(case, stream) == (INVALIDATED, 0)


def a_relaxed_thread_may_allocate(case: Case) -> None:
    """Stream Management, cuThreadExchangeStreamCaptureMode: a relaxed thread may make potentially unsafe calls."""
    case.driver.open()
    stream = _begin(case)
    mode = ctypes.c_int(RELAXED)
    case.driver.need("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == GLOBAL
    assert case.driver.new("cuMemAlloc", 64)
    case.driver.need("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert _end(case, stream)[0] == 0


def the_legacy_stream_breaks_a_capture(case: Case) -> None:
    """Data types, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: legacy work would depend on a captured blocking stream."""
    case.driver.open()
    case.prepare("add_one")
    address = case.floats()
    stream = _begin(case, flags=0)
    assert case.add_one(address) == IMPLICIT
    assert _end(case, stream) == (INVALIDATED, 0)


def the_legacy_stream_is_free_beside_a_non_blocking_capture(case: Case) -> None:
    """Stream synchronization behavior: non-blocking streams do not synchronise with the legacy stream."""
    case.driver.open()
    case.prepare("add_one")
    address = case.floats()
    stream = _begin(case, flags=1)
    assert case.add_one(address) == 0
    assert _end(case, stream)[0] == 0


def the_legacy_stream_is_not_captured(case: Case) -> None:
    """Stream Management, cuStreamBeginCapture: "hStream must not be CU_STREAM_LEGACY"."""
    case.driver.open()
    assert case.driver.call("cuStreamBeginCapture", 0, GLOBAL) == UNSUPPORTED


def captures_begin_and_end_once(case: Case) -> None:
    """Stream Management, cuStreamEndCapture: CUDA_ERROR_ILLEGAL_STATE where nothing is captured; likewise a second begin."""
    case.driver.open()
    stream = _begin(case)
    assert case.driver.call("cuStreamBeginCapture", stream, GLOBAL) == ILLEGAL_STATE
    _end(case, stream)
    assert _end(case, stream)[0] == ILLEGAL_STATE


def another_thread_may_not_end_a_capture(case: Case) -> None:
    """Stream Management, cuStreamEndCapture: CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, unless relaxed."""
    context, codes = case.driver.open(), []
    stream = _begin(case)

    def end() -> None:
        case.driver.need("cuCtxSetCurrent", context)
        codes.append(_end(case, stream)[0])

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert codes == [WRONG_THREAD]


def an_event_takes_another_stream_into_the_capture(case: Case) -> None:
    """Programming guide, cross-stream dependencies: a fork by an event, and the join back."""
    case.driver.open()
    case.prepare("slow_copy", "add_one")
    second, source, middle, target = case.driver.new("cuStreamCreate", 1), case.floats(1.0), case.floats(), case.floats()
    fork, join = (case.driver.new("cuEventCreate", 2) for _ in range(2))
    stream = _begin(case)
    case.slow_copy(source, middle, stream=stream)
    case.driver.need("cuEventRecord", fork, stream)
    case.driver.need("cuStreamWaitEvent", second, fork, 0)
    case.slow_copy(middle, target, stream=second)
    case.driver.need("cuEventRecord", join, second)
    case.driver.need("cuStreamWaitEvent", stream, join, 0)
    assert case.add_one(target, stream=stream) == 0
    code, graph = _end(case, stream)
    assert code == 0
    _replay(case, graph, stream)
    assert (case.read(target) == 2.0).all()
    assert _status(case, second) == 0


def a_fork_must_be_joined(case: Case) -> None:
    """Data types, CUDA_ERROR_STREAM_CAPTURE_UNJOINED."""
    case.driver.open()
    case.prepare("add_one")
    second, address, fork = case.driver.new("cuStreamCreate", 1), case.floats(), case.driver.new("cuEventCreate", 2)
    stream = _begin(case)
    case.driver.need("cuEventRecord", fork, stream)
    case.driver.need("cuStreamWaitEvent", second, fork, 0)
    assert case.add_one(address, stream=second) == 0
    assert _end(case, stream) == (UNJOINED, 0)


def work_outside_cannot_be_waited_for(case: Case) -> None:
    """Data types, CUDA_ERROR_STREAM_CAPTURE_ISOLATION: a dependency on uncaptured work in another stream."""
    case.driver.open()
    case.prepare("add_one")
    other, address, event = case.driver.new("cuStreamCreate", 1), case.floats(), case.driver.new("cuEventCreate", 2)
    stream = _begin(case)
    assert case.add_one(address, stream=other) == 0
    case.driver.need("cuEventRecord", event, other)
    assert case.driver.call("cuStreamWaitEvent", stream, event, 0) == ISOLATION
    assert _end(case, stream) == (INVALIDATED, 0)


def a_captured_event_is_no_moment(case: Case) -> None:
    """Data types, CUDA_ERROR_CAPTURED_EVENT: no query or wait for an event last recorded in a capturing stream."""
    case.driver.open()
    event = case.driver.new("cuEventCreate", 2)
    stream = _begin(case)
    case.driver.need("cuEventRecord", event, stream)
    assert case.driver.call("cuEventQuery", event) == CAPTURED_EVENT
    _end(case, stream)
