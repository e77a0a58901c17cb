"""The race that ends the tuning of a model: which requests are raced, what is printed, and what is said where none is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from haotuner.cli import tune_race
from haotuner.cli.tune_race import LEAST_CALLS, ModelSpeed, few_requests, race_models
from haotuner.errors import HaotunerError

EXPECTED = {f"batch={n};seq=8": {"all": 100.0 * n} for n in (4, 1, 8, 2, 16)}


def test_the_fastest_a_middle_and_the_slowest_request_are_raced() -> None:
    assert few_requests(EXPECTED, 1.0) == [{"batch": n, "seq": 8} for n in (1, 4, 16)]
    assert few_requests({"": {"all": 5.0}}, 1.0) == [{}]
    assert few_requests({}, 1.0) == []


def test_requests_whose_calls_take_too_long_are_left_out() -> None:
    assert few_requests(EXPECTED, LEAST_CALLS * 600e-6) == [{"batch": n, "seq": 8} for n in (1, 4)]
    assert few_requests(EXPECTED, LEAST_CALLS * 99e-6) == []


def row(n: int, ratio: float, *, contended: bool = False) -> dict[str, Any]:
    peers = {"onnxruntime": {"ratio": ratio}}
    return {"model": "net", "threads": 1, "shape": {"batch": n}, "peers": peers, "contended": contended}


def test_contended_requests_have_no_figure() -> None:
    lines = ModelSpeed([row(1, 1.5), row(8, 32.67, contended=True)], []).text().splitlines()
    assert lines[0] == "net against onnxruntime, threads 1: 1.50x at batch=1, ~ at batch=8"
    assert lines[1] == "peer time over ours; > 1 means haotuner is faster"
    assert lines[2].startswith("~ stands for figures that are left out: other programs were busy meanwhile")
    assert len(ModelSpeed([row(1, 1.5)], []).text().splitlines()) == 2


def asked(file: str) -> tuple[Any, Any]:
    model = SimpleNamespace(written=SimpleNamespace(name="net"), file=Path(file), subgraph=None)
    return SimpleNamespace(models=(model,)), SimpleNamespace(threads=(1, 2), tuned=(), device=None, pack=Path("pack"))


RUN_BENCH = "; run haotuner bench pack --model net --file net"


def test_models_without_a_race_say_why_and_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_race, "predicted_us", lambda *_: EXPECTED)
    text = race_models(*asked("net.pt2"), None, quiet=True).text()
    assert text.startswith("net was not raced: it is a file of torch.export") and text.endswith(RUN_BENCH + ".pt2")
    monkeypatch.setattr(tune_race, "find_spec", lambda _: None)
    text = race_models(*asked("net.onnx"), None, quiet=True).text()
    assert text == "net was not raced: onnxruntime is not installed" + RUN_BENCH + ".onnx"
    monkeypatch.setattr(tune_race, "find_spec", lambda _: True)

    def fails(*_: Any) -> Any:
        raise HaotunerError("onnxruntime cannot run it")

    monkeypatch.setattr(tune_race, "_raced", fails)
    text = race_models(*asked("net.onnx"), None, quiet=True).text()
    assert text == "net was not raced: onnxruntime cannot run it" + RUN_BENCH + ".onnx"
    monkeypatch.setattr(tune_race, "predicted_us", lambda *_: {"batch=1": {"all": 1e9}})
    assert "would take longer than tune waits for it" in race_models(*asked("net.onnx"), None, quiet=True).text()


def test_every_thread_count_is_raced_against_peers_that_read_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(tune_race, "predicted_us", lambda *_: EXPECTED)
    monkeypatch.setattr(tune_race, "find_spec", lambda _: True)

    def raced(*arguments: Any) -> Any:
        calls.append(arguments[2:])
        return [row(1, 2.0)]

    monkeypatch.setattr(tune_race, "_raced", raced)
    speed = race_models(*asked("net.onnx"), ["numpy", "openvino"], quiet=True)
    assert [(call[2], call[3]) for call in calls] == [(["openvino"], 1), (["openvino"], 2)]
    assert len(speed.rows) == 2 and speed.text().endswith("not numpy")
    seconds = sum(2 * len(call[1]) * call[4] for call in calls)
    assert seconds <= tune_race.MODEL_RACE_S
    assert race_models(*asked("net.onnx"), ["numpy"], quiet=True).rows == []
