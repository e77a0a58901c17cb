"""`haotuner.tune` and `haotuner.load`: the Python form of the main job, in one process."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import haotuner
from haotuner.tuning.request import Request
from tests.cli.command import ROOT


def test_tune_then_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    out = tmp_path / "pack"
    report = haotuner.tune("dense:n=40,k=24", "m=1..12", budget_s=2, out=out, threads=(1,), db="memory://")
    assert report.complete and report.document["ops"][0]["name"] == "dense_n40_k24"
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((40, 24), dtype=np.float32)
    with haotuner.load(out) as pack:
        linear = pack.op("dense_n40_k24").bind(weight)
        for m in (0, 1, 5, 12, 100):
            x = rng.standard_normal((m, 24), dtype=np.float32)
            np.testing.assert_allclose(linear(x), x @ weight.T, rtol=1e-4, atol=1e-4)
    assert {p.name for p in tmp_path.iterdir()} == {"pack"}


def test_a_wrong_request_is_answered_before_anything_is_touched(tmp_path: Path) -> None:
    with pytest.raises(haotuner.errors.UsageError, match="2\\^31-1"):
        haotuner.tune("dense:n=40,k=24", "m=1..99999999999", out=tmp_path / "pack")
    assert not list(tmp_path.iterdir())


def test_threads_may_be_one_count_and_shapes_are_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Request] = []
    monkeypatch.setattr("haotuner.tuning.session.produce", requests.append)
    haotuner.tune("dense:n=40,k=24", "m=1..12", out=tmp_path / "pack", threads=2)
    haotuner.tune("dense:n=40,k=24", "m=1..12", out=tmp_path / "pack", threads=(1, 0))
    assert [request.threads for request in requests] == [(2,), (1, 0)]
    with pytest.raises(haotuner.errors.UsageError, match="shapes is a dict: write a text"):
        haotuner.tune("dense:n=40,k=24", {"m": 3}, out=tmp_path / "pack")  # type: ignore[arg-type]
