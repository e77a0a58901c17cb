"""Streams and events: order, waiting, asking. Each citation is a section of the CUDA Driver API manual."""

from __future__ import annotations

import ctypes
import time

from tests.contract.driver_case import Case

NON_BLOCKING, DISABLE_TIMING = 1, 2
INVALID_HANDLE, NOT_READY = 400, 600
WAIT_SECONDS = 600  # as tests/standin/patience.py: a loaded machine is slow, and only a driver that never gets there fails


def a_stream_is_in_order(case: Case) -> None:
    """CUDA C++ programming guide, streams: "a sequence of commands ... that execute in order"."""
    case.driver.open()
    stream, source, target = case.driver.new("cuStreamCreate", NON_BLOCKING), case.floats(1.0), case.floats()
    case.driver.need("cuCtxSynchronize")
    case.slow_copy(source, target, stream=stream)
    assert case.add_one(target, stream=stream) == 0
    case.driver.need("cuStreamSynchronize", stream)
    assert (case.read(target) == 2.0).all()


def an_event_orders_streams(case: Case) -> None:
    """Stream Management, cuStreamWaitEvent: later work of the stream waits for what the event captured."""
    case.driver.open()
    first, second = (case.driver.new("cuStreamCreate", NON_BLOCKING) for _ in range(2))
    source, middle, target, event = case.floats(3.0), case.floats(), case.floats(), case.driver.new("cuEventCreate", 0)
    case.driver.need("cuCtxSynchronize")
    case.slow_copy(source, middle, stream=first)
    case.driver.need("cuEventRecord", event, first)
    case.driver.need("cuStreamWaitEvent", second, event, 0)
    case.slow_copy(middle, target, stream=second)
    case.driver.need("cuStreamSynchronize", second)
    assert (case.read(target) == 3.0).all()


def a_wait_is_for_the_last_record(case: Case) -> None:
    """Event Management, cuEventRecord: a later record replaces; a wait already made keeps what it captured."""
    case.driver.open()
    first, second = (case.driver.new("cuStreamCreate", NON_BLOCKING) for _ in range(2))
    source, middle, target, event = case.floats(3.0), case.floats(), case.floats(), case.driver.new("cuEventCreate", 0)
    case.driver.need("cuCtxSynchronize")
    case.driver.need("cuEventRecord", event, first)
    case.slow_copy(source, middle, stream=first)
    case.driver.need("cuEventRecord", event, first)
    case.driver.need("cuStreamWaitEvent", second, event, 0)
    case.driver.need("cuEventRecord", event, second)
    case.slow_copy(middle, target, stream=second)
    case.driver.need("cuCtxSynchronize")
    assert (case.read(target) == 3.0).all()


def the_legacy_stream_waits_for_blocking_ones(case: Case) -> None:
    """Stream synchronization behavior, legacy default stream: synchronises with all blocking streams of the context."""
    case.driver.open()
    stream, source, middle, target = case.driver.new("cuStreamCreate", 0), case.floats(2.0), case.floats(), case.floats()
    case.slow_copy(source, middle, stream=stream)
    case.slow_copy(middle, target)
    assert case.add_one(target, stream=stream) == 0
    case.driver.need("cuStreamSynchronize", stream)
    assert (case.read(target) == 3.0).all()


def the_calls_return_before_the_work(case: Case) -> None:
    """API synchronization behavior: kernel launches are asynchronous; cuStreamQuery says CUDA_ERROR_NOT_READY."""
    case.driver.open()
    stream, source, target = case.driver.new("cuStreamCreate", NON_BLOCKING), case.floats(2.0), case.floats()
    case.driver.need("cuCtxSynchronize")
    case.slow_copy(source, target, stream=stream)
    first = case.driver.call("cuStreamQuery", stream)
    assert first == (0 if case.kind == "early" else NOT_READY)
    end = time.monotonic() + WAIT_SECONDS
    while (answer := case.driver.call("cuStreamQuery", stream)) == NOT_READY and time.monotonic() < end:
        time.sleep(0.001)
    assert answer == 0  # without anybody waiting
    assert (case.read(target) == 2.0).all()


def an_event_never_recorded_is_complete(case: Case) -> None:
    """Event Management, cuEventQuery and cuEventSynchronize: complete if cuEventRecord was not called; no times of it."""
    case.driver.open()
    event, other = (case.driver.new("cuEventCreate", 0) for _ in range(2))
    case.driver.need("cuEventQuery", event)
    case.driver.need("cuEventSynchronize", event)
    case.driver.need("cuStreamWaitEvent", 0, event, 0)
    case.driver.need("cuEventRecord", other, 0)
    assert case.driver.call("cuEventElapsedTime", ctypes.byref(ctypes.c_float()), event, other) == INVALID_HANDLE


def an_event_is_pending_until_its_work_is_done(case: Case) -> None:
    """Event Management, cuEventQuery, cuEventElapsedTime: CUDA_ERROR_NOT_READY before, times after."""
    case.driver.open()
    stream, source, target = case.driver.new("cuStreamCreate", NON_BLOCKING), case.floats(2.0), case.floats()
    start, end = (case.driver.new("cuEventCreate", 0) for _ in range(2))
    case.driver.need("cuCtxSynchronize")
    case.driver.need("cuEventRecord", start, stream)
    case.slow_copy(source, target, stream=stream)
    case.driver.need("cuEventRecord", end, stream)
    took = ctypes.c_float()
    expected = 0 if case.kind == "early" else NOT_READY
    assert case.driver.call("cuEventElapsedTime", ctypes.byref(took), start, end) == expected
    assert case.driver.call("cuEventQuery", end) == expected
    case.driver.need("cuEventSynchronize", end)
    case.driver.need("cuEventQuery", end)
    case.driver.need("cuEventElapsedTime", ctypes.byref(took), start, end)
    assert took.value > 0
    assert (case.read(target) == 2.0).all()


def an_event_without_timing_has_no_time(case: Case) -> None:
    """Event Management, cuEventElapsedTime: CUDA_ERROR_INVALID_HANDLE with CU_EVENT_DISABLE_TIMING."""
    case.driver.open()
    start, end = case.driver.new("cuEventCreate", 0), case.driver.new("cuEventCreate", DISABLE_TIMING)
    for event in (start, end):
        case.driver.need("cuEventRecord", event, 0)
    case.driver.need("cuCtxSynchronize")
    assert case.driver.call("cuEventElapsedTime", ctypes.byref(ctypes.c_float()), start, end) == INVALID_HANDLE


def an_event_of_another_context(case: Case) -> None:
    """Event Management, cuEventRecord: "hEvent and hStream must be from the same context"."""
    first = case.driver.open()
    case.driver.new("cuCtxCreate", 0, 0)
    foreign = case.driver.new("cuEventCreate", 0)
    case.driver.need("cuCtxSetCurrent", first)
    assert case.driver.call("cuEventRecord", foreign, case.driver.new("cuStreamCreate", 0)) == INVALID_HANDLE


def a_destroyed_stream_finishes_its_work(case: Case) -> None:
    """Stream Management, cuStreamDestroy: returns immediately; resources go once the device has completed all work."""
    case.driver.open()
    stream, source, target = case.driver.new("cuStreamCreate", NON_BLOCKING), case.floats(2.0), case.floats()
    case.driver.need("cuCtxSynchronize")
    case.slow_copy(source, target, stream=stream)
    case.driver.need("cuStreamDestroy", stream)
    case.driver.need("cuCtxSynchronize")
    assert (case.read(target) == 2.0).all()


def a_destroyed_event_keeps_the_order(case: Case) -> None:
    """Event Management, cuEventDestroy: may be called before the event completes."""
    case.driver.open()
    first, second = (case.driver.new("cuStreamCreate", NON_BLOCKING) for _ in range(2))
    source, middle, target, event = case.floats(3.0), case.floats(), case.floats(), case.driver.new("cuEventCreate", 0)
    case.driver.need("cuCtxSynchronize")
    case.slow_copy(source, middle, stream=first)
    case.driver.need("cuEventRecord", event, first)
    case.driver.need("cuStreamWaitEvent", second, event, 0)
    case.driver.need("cuEventDestroy", event)
    case.slow_copy(middle, target, stream=second)
    case.driver.need("cuStreamSynchronize", second)
    assert (case.read(target) == 3.0).all()


def a_stream_knows_its_context(case: Case) -> None:
    """Stream Management, cuStreamGetCtx."""
    context = case.driver.open()
    owner = ctypes.c_uint64()
    case.driver.need("cuStreamGetCtx", case.driver.new("cuStreamCreate", 0), ctypes.byref(owner))
    assert owner.value == context
