"""`explain` prints the plan before it times anything, and times for a moment only, whatever the kind of op."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from haotuner.cli import call_time, explain, explain_model, explain_op
from haotuner.cli.explain_op import _expected_us, time_cell
from haotuner.spec.composition import Composition
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.runtime.model_packs import model_pack
from tests.runtime.packs import LANES, best_level, make_pack, packed_op
from tests.runtime.test_models import GRAPHS

PLAN = {
    "op": "batch_matmul", "shape": {"b": 2, "m": 3, "n": 4, "k": 5}, "threads": 1, "split": "serial", "unverified": False,
    "in_range": True, "regions": [{"kernel": "some__m4", "box": {"m": [0, 3], "n": [0, 4]}}], "program": None,
    "measured_us": None, "not_timed": "", "runner_up": None,
}  # fmt: skip


class Opened:
    """A pack of one batched product."""

    axes = tuple(SimpleNamespace(name=axis) for axis in "bmnk")
    entry = SimpleNamespace(name="batch_matmul", kind="batch_matmul", group=None, dynamic=axes)
    manifest = SimpleNamespace(ops=(entry,), models={}, on_device=False)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def op(self, name: str) -> None:
        assert name == "batch_matmul"


def test_the_plan_of_a_product_is_printed_before_it_is_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before: list[str] = []

    def timed(*_: object) -> float:
        before.append(capsys.readouterr().out)
        return 12.5

    for name, value in {"read_manifest": lambda _: Opened.manifest, "Pack": lambda *_: Opened()}.items():
        monkeypatch.setattr(explain, name, value)
    monkeypatch.setattr(explain, "cell_document", lambda *_: PLAN)
    monkeypatch.setattr(explain_op, "meaning_of", lambda _: None)
    monkeypatch.setattr(explain_op, "_call_us", timed)
    explain.explain(Path("pack"), shape="b=2;m=3;n=4;k=5", threads=1)
    assert "some__m4" in before[0] and "plan for 1 thread" in before[0]
    assert "measured now 12.5 us" in capsys.readouterr().out


def test_the_plan_of_a_layer_is_printed_before_it_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    level = best_level()
    pack = make_pack(tmp_path / "pack", [packed_op("dense_n8_k8", LANES[level], 2 * LANES[level])], level)
    before: list[str] = []

    def timed(*_: object) -> float:
        before.append(capsys.readouterr().out)
        return 1.0

    monkeypatch.setattr(explain, "call_us", timed)
    explain.explain(pack.path, shape="m=7", threads=1)
    assert "dense_n8_k8 m=7, plan for 1 thread" in before[0] and "measured now 1.0 us" in capsys.readouterr().out


def test_the_steps_of_a_model_are_named_before_they_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_pack(tmp_path / "pack", {"encoder": GRAPHS["encoder"]})
    lines: list[str] = []
    document = explain_model.steps_document(path, "encoder", "batch=2;seq=7", "", 1, lines.append)
    assert lines[0].startswith("encoder, batch=2;seq=7: ") and f"{len(document['steps'])} steps: " in lines[0]
    assert "generated groups" in lines[0] and document["calls"] == explain_model.CALLS
    monkeypatch.setattr(explain_model, "MOST_S", 0.0)
    assert explain_model.steps_document(path, "encoder", "batch=2;seq=7", "", 1)["calls"] == 1


def test_a_call_that_is_expected_to_take_long_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    op, chosen = Op.parse("softmax:"), Composition.of("a")
    near, far = "m=64;n=64", "m=4;n=4"
    plan = {
        "measured_us": {near: {chosen.label: 10.0}, far: {chosen.label: 1.0}, "m=512;n=64": {Composition.of("b").label: 3.0}}
    }
    shape = Shape.of(dict.fromkeys(op.dynamic, 128))
    assert _expected_us(plan, op, shape, chosen) == pytest.approx(40.0), "four times the elements of the nearest shape"
    assert _expected_us({}, op, shape, chosen) is None
    assert call_time.too_long(3e6).startswith("explain times for 2 s at most") and call_time.too_long(None) == ""
    monkeypatch.setattr(explain_op, "_call_us", lambda *_: pytest.fail("timed"))
    document = {**PLAN, "not_timed": call_time.too_long(3e6)}
    assert time_cell(None, None, {}, document) == document  # type: ignore[arg-type]
