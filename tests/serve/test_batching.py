"""Batching: which requests are joined, by expected times and the latency limit, and that answers are the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import UsageError
from haotuner.runtime.expected_us import ExpectedUs
from haotuner.serve.batching import Batcher
from haotuner.serve.independence import CLOSE, EXACT, OFF, batch_dimension
from haotuner.serve.inference import InferenceRequest
from haotuner.serve.refusals import Overloaded, Refusal
from tests.serve.nets import drawn

ROWS_US: dict[str, Callable[[int, int], float]] = {
    "fixed": lambda rows, seq: 1000.0 + rows * seq,
    "long": lambda rows, seq: 1e7 + 1e6 * rows * seq,
    "apart": lambda rows, seq: float(rows * rows * seq) + 400,
}


class GatedModel:
    """A model of rows whose calls wait until they are let through; it notes the rows of each call."""

    name = "held"

    def __init__(self, law: str = "fixed") -> None:
        self.calls: list[int] = []
        self.gate = threading.Event()
        self._law = ROWS_US[law]
        self.silent = False
        self.broken = False

    def expected_us(self, **dims: int) -> ExpectedUs:
        if self.silent:
            raise UsageError("no times")
        us = self._law(dims["batch"], dims["seq"])
        return ExpectedUs(us, us, us)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        assert self.gate.wait(20)
        self.calls.append(len(inputs["x"]))
        if self.broken and len(inputs["x"]) > 1:
            raise MemoryError
        if np.isnan(inputs["x"]).any():
            raise UsageError("not a number")
        return {"y": inputs["x"] * 2}


def request_of(rows: int, seq: int = 4, fill: float = 1.0) -> InferenceRequest:
    x = np.full((rows, seq), fill, np.float32)
    return InferenceRequest("held", "", {"x": x}, None, {"batch": rows, "seq": seq})


@pytest.fixture
def batching() -> Iterator[Any]:
    batchers: list[Batcher] = []

    def make(model: GatedModel, **more: Any) -> Batcher:
        settings: dict[str, Any] = {"batch": "batch", "largest": 8, "limit_ms": 1000.0, "waiting": 100, "runners": 1} | more
        batchers.append(Batcher(model, **settings))
        return batchers[-1]

    yield make
    for batcher in batchers:
        batcher.model.gate.set()
        batcher.close(20.0)


def answered(batcher: Batcher, model: GatedModel, requests: list[InferenceRequest]) -> list[Any]:
    """Answers to requests of which the first runs while the others gather."""
    futures = [batcher.submit(requests[0])]
    until = time.monotonic() + 20
    while batcher.depth and time.monotonic() < until:
        time.sleep(0.001)
    futures += [batcher.submit(request) for request in requests[1:]]
    model.gate.set()
    return [future.result(20)["y"] for future in futures]


def test_requests_of_equal_other_sizes_are_joined_and_get_their_own_rows(batching: Any) -> None:
    model = GatedModel()
    requests = [
        request_of(1),
        request_of(1, fill=2),
        request_of(2, fill=3),
        request_of(1, seq=5, fill=4),
        request_of(3, fill=5),
    ]
    answers = answered(batching(model), model, requests)
    for request, answer in zip(requests, answers, strict=True):
        np.testing.assert_array_equal(answer, 2 * request.inputs["x"])
    assert model.calls == [1, 6, 1], "the first, three of four rows together, then the one of another length"


def test_no_call_has_more_rows_than_the_largest(batching: Any) -> None:
    model = GatedModel()
    answered(batching(model, largest=3), model, [request_of(1) for _ in range(8)])
    assert max(model.calls) == 3 and sum(model.calls) == 8


def test_requests_are_not_joined_where_that_is_expected_to_take_longer(batching: Any) -> None:
    model = GatedModel("apart")
    answered(batching(model), model, [request_of(4, 400) for _ in range(5)])
    assert model.calls == [4] * 5


@pytest.mark.parametrize(("limit_s", "joined"), [(24, 3), (1000, 4), (1, 4)])
def test_a_call_is_not_expected_to_take_longer_than_the_latency_limit(batching: Any, limit_s: int, joined: int) -> None:
    """Three rows are expected to take 22 s, four 26 s, and the first alone 14 s: beyond a limit of 1 s all are late."""
    model = GatedModel("long")
    answered(batching(model, limit_ms=1e3 * limit_s), model, [request_of(1) for _ in range(5)])
    assert model.calls[1] == joined


def test_without_times_or_a_batch_dimension_requests_run_too(batching: Any) -> None:
    model = GatedModel()
    model.silent = True
    answered(batching(model), model, [request_of(1) for _ in range(5)])
    assert model.calls == [1, 4], "as many as there are rows for"
    model = GatedModel()
    answered(batching(model, batch=""), model, [request_of(1) for _ in range(5)])
    assert model.calls == [1] * 5


def test_one_wrong_request_spoils_no_other(batching: Any) -> None:
    model = GatedModel()
    batcher = batching(model)
    futures = [batcher.submit(request_of(1, fill=fill)) for fill in (1, 2, np.nan, 3)]
    model.gate.set()
    results: list[float | str] = []
    for future in futures:
        try:
            results.append(float(future.result(20)["y"][0, 0]))
        except Refusal as error:
            results.append(str(error))
    assert results == [2.0, 4.0, "not a number", 6.0]


def test_a_full_queue_and_a_stop_are_refused_in_words(batching: Any) -> None:
    model = GatedModel()
    batcher = batching(model, waiting=2)
    first = batcher.submit(request_of(1))
    until = time.monotonic() + 20
    while batcher.depth and time.monotonic() < until:
        time.sleep(0.001)
    waiting = [batcher.submit(request_of(1)) for _ in range(2)]
    with pytest.raises(Overloaded, match="2 requests wait already"):
        batcher.submit(request_of(1))
    closing = threading.Thread(target=batcher.close, args=(20.0,))
    closing.start()
    model.gate.set()
    closing.join()
    assert all(future.result(20) for future in (first, *waiting)), "what waited is answered"
    with pytest.raises(Overloaded, match="the server stops"):
        batcher.submit(request_of(1))


def test_a_stop_leaves_requests_alone_that_their_clients_gave_up() -> None:
    model = GatedModel()
    batcher = Batcher(model, batch="batch", largest=8, limit_ms=1000.0, waiting=100, runners=1)
    running = batcher.submit(request_of(1))
    until = time.monotonic() + 20
    while batcher.depth and time.monotonic() < until:
        time.sleep(0.001)
    cancelled, waiting = batcher.submit(request_of(1)), batcher.submit(request_of(1))
    assert cancelled.cancel()
    batcher.close(0.0)
    with pytest.raises(Overloaded, match="before this request's turn"):
        waiting.result(20)
    model.gate.set()
    assert running.result(20)


def test_the_batchers_own_ratio_follows_what_calls_take(batching: Any) -> None:
    model = GatedModel()
    model.gate.set()
    batcher = batching(model)
    for _ in range(200):
        batcher.submit(request_of(1)).result(20)
    assert batcher.ratio < 0.9, "a call of microseconds, of which a millisecond was expected"
    assert batcher.expected_us({"batch": 1, "seq": 4}) == pytest.approx(1004 * batcher.ratio)


def test_short_calls_are_answered_by_the_caller_where_nothing_waits(batching: Any) -> None:
    model = GatedModel("apart")
    model.gate.set()
    batcher = batching(model)
    assert batcher.answer_now(request_of(1)) is None, "of more than 300 us"
    batcher.ratio = 0.5
    answer = batcher.answer_now(request_of(1, fill=7))
    assert answer is not None and answer["y"][0, 0] == 14


def test_only_models_whose_rows_keep_their_bits_have_a_batch_dimension(pack_path: Path) -> None:
    with haotuner.load(pack_path, threads=1) as pack:
        models = {name: pack.model(name) for name in ("rows", "masked", "centred", "chosen")}
        for how in (EXACT, CLOSE):
            dims = {name: batch_dimension(model, how) for name, model in models.items()}
            assert dims == {"rows": "batch", "masked": "batch", "centred": "", "chosen": ""}
        assert batch_dimension(models["rows"], OFF) == ""
        assert models["rows"].run({"x": drawn(0, 1, 2)})
