"""A timed plan is never published where the predicted one answers faster, however wrong its times were."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haotuner.errors import PackInvalid
from haotuner.graph.extents import dimension
from haotuner.pack.manifest import read_manifest
from haotuner.partition.group_times import NamedGroup
from haotuner.partition.profiled_costs import ProfiledPrices
from haotuner.partition.tasks import model_task
from haotuner.tuning import publisher as publishing_module
from haotuner.tuning.request import Request
from haotuner.tuning.session import Report, produce
from haotuner.verify import pack_race

B, T = dimension("batch"), dimension("seq")
SHAPES = "batch=1..8;seq=1024..4096"


def wrong_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurer that finds a kernel the slower, the more it computes: everything is then stored and read again."""

    def answers(self: ProfiledPrices, groups: Sequence[NamedGroup], tasks: Sequence[Mapping[str, Any]]) -> list[str]:
        return [
            json.dumps([task["group"], task["request"], 10.0 ** len(groups[task["group"]].graph.nodes)]) for task in tasks
        ]

    monkeypatch.setattr(ProfiledPrices, "_answers", answers)


def tuned(folder: Path, messages: list[str]) -> Report:
    from onnx import TensorProto, helper, save

    kinds = ["Add", "Mul", "Sub", "Add", "Mul", "Sub"]
    names = ["x", *(f"t{index}" for index in range(len(kinds) - 1)), "y"]
    nodes = [helper.make_node(kind, [names[at], "z"], [names[at + 1]]) for at, kind in enumerate(kinds)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "seq"]) for name in ("x", "z", "y")]
    file = folder / "net.onnx"
    graph = helper.make_graph(nodes, "net", ends[:2], ends[2:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), file)
    from haotuner.frontends.onnx.read import read

    model = model_task("net", read(file), SHAPES, file)
    request = Request(
        ops=(), budget_s=5.0, out=folder / "pack", threads=(1,), models=(model,), environment=dict(os.environ),
        cache=folder / "cache",
    )  # fmt: skip

    def watch(name: str, phase: str, record: object) -> bool:
        messages.append(phase)
        return True

    return produce(request, watch)


def kernels(pack: Path) -> int:
    document = json.loads((pack / "models" / "net.json").read_text())
    return sum(step["do"] == "loops" for step in document["steps"])


@pytest.mark.long
def test_the_predicted_plan_is_served_where_times_were_wrong(tmp_path, monkeypatch):
    wrong_times(monkeypatch)
    messages = list[str]()
    report = tuned(tmp_path, messages)
    assert any("predicted answers faster" in words for words in messages), messages
    assert "predicted answers faster" in report.document["kept"]
    assert kernels(tmp_path / "pack") == 1 and read_manifest(tmp_path / "pack").unverified


@pytest.mark.long
def test_the_timed_plan_is_served_where_it_wins_or_the_predicted_one_is_wrong(tmp_path, monkeypatch):
    wrong_times(monkeypatch)
    race = pack_race.raced_apart
    ratios = iter([0.9])
    monkeypatch.setattr(pack_race, "raced_apart", lambda *packs: replace(race(*packs), ratio=next(ratios)))
    won = list[str]()
    (tmp_path / "won").mkdir()
    tuned(tmp_path / "won", won)
    assert "racing the predicted plan" in won and kernels(tmp_path / "won" / "pack") > 1

    monkeypatch.undo()
    wrong_times(monkeypatch)
    check = publishing_module._check_of

    def refused(lacking: str, request: Request, models: Any, watch: Any, *, hurried: bool) -> Any:
        if len(models[0].written.functions) == 1:
            raise PackInvalid("the predicted kernel is wrong")
        return check(lacking, request, models, watch, hurried=hurried)

    monkeypatch.setattr(publishing_module, "_check_of", refused)
    lost = list[str]()
    (tmp_path / "wrong").mkdir()
    tuned(tmp_path / "wrong", lost)
    assert any("is no pack: the predicted kernel is wrong" in words for words in lost)
    assert kernels(tmp_path / "wrong" / "pack") > 1
