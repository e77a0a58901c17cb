"""Which forms of a model are served: what a race says at each request, else what is expected, with a margin."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.graph.rewrites import Site, rewritten
from haotuner.pack.manifest import read_manifest
from haotuner.partition.costs import Prices
from haotuner.partition.form_choice import MEASURED, TUNED, FormPlans
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.tasks import Laid, ModelTask, model_task
from haotuner.tuning import publisher as publishing_module
from haotuner.tuning.form_decision import NOISE, decided
from haotuner.tuning.publisher import served
from haotuner.tuning.request import Request
from haotuner.tuning.session import produce
from tests.derive.test_graphs import H, N, W

SHAPES = "n=1;h=8..64;w=8"
DEVICE: Any = SimpleNamespace(id="none")


def graph() -> Graph:
    g = GraphBuilder()
    return g.finish(g.map("exp", g.map("add", g.input("x", (N, H, W)), 1.0)))


@dataclass
class Forms:
    """Another form of the graph, whose region is expected to take so much of the whole's time."""

    share: float = 0.5

    def __call__(self, plan: IlpPartitioner, laid_out: IlpPartitioner, laid: Laid) -> FormPlans:
        g = GraphBuilder()
        form = g.finish(g.map("sub", g.input("x", (N, H, W)), -1.0))
        tensor = plan.graph.nodes[0].output
        prices = Prices(plan.prices.requests)
        other = laid(plan.of(rewritten(plan.graph, [Site("derived: a", tensor, frozenset({tensor}), form)]), prices))
        us = np.array([Prices([request]).loops_us(graph()) for request in prices.requests])
        rules = ({"rule": "derived: a", "tensor": tensor, "us": 1.0, "without_us": 2.0},)
        return FormPlans((other,), (rules,), (tuple(us), tuple(us * 2)), (tuple(us * self.share),))


def model() -> ModelTask:
    return model_task("net", graph(), SHAPES, Path("net.onnx"), forms=Forms())


def forms_by_request(task: ModelTask) -> list[int]:
    ((*ways,),) = task.ways
    return [int(next(way for way in ways if way.serves(request)).graph is not None) for request in task.prices.requests]


def times(task: ModelTask, ratios: dict[int, float]) -> list[dict[str, float]]:
    """Made-up times of both forms; ``ratios``: by height, of the form over the model's own."""
    names = {";".join(f"{name}={size}" for name, size in request.items()): request["h"] for request in task.prices.requests}
    return [dict.fromkeys(names, 10.0), {name: 10.0 * ratios.get(height, 1.2) for name, height in names.items()}]


def test_a_form_serves_the_requests_at_which_it_won_the_race():
    task = model()
    assert task.open_forms and task.form_count == 2
    heights = sorted({request["h"] for request in task.prices.requests})
    (result,) = decided([task], [], DEVICE, 1, lambda item: times(item, {heights[0]: 0.5, heights[1]: 0.9}))
    assert not result.open_forms and result.forms[0].basis == MEASURED
    assert forms_by_request(result) == [int(request["h"] <= heights[1]) for request in result.prices.requests]
    assert result.report.ways[0]["form"] == "a derived" and result.report.ways[0]["times"] == MEASURED
    assert [row["rule"] for row in result.report.rewrites] == ["derived: a"]


@pytest.mark.parametrize("ratio", [1 - NOISE / 2, 1.0, 1.3])
def test_a_form_that_wins_by_noise_alone_serves_nothing(ratio: float):
    (result,) = decided([model()], [], DEVICE, 1, lambda item: times(item, dict.fromkeys(range(1, 99), ratio)))
    assert set(forms_by_request(result)) == {0} and result.report.rewrites == []


def test_without_a_race_a_form_must_save_a_share_of_what_it_computes():
    for race in (None, lambda item: None):
        (result,) = decided([model()], [], DEVICE, 1, race)
        assert set(forms_by_request(result)) == {0}, "it is expected to take as long"
        assert result.forms[0].basis == TUNED


def test_a_model_without_forms_stays_as_it_is():
    task = model_task("net", graph(), SHAPES, Path("net.onnx"))
    assert decided([task], [], DEVICE, 1, None) == (task,)


def test_ops_that_no_request_calls_are_in_no_pack():
    tuned: Any = [SimpleNamespace(task=SimpleNamespace(op=SimpleNamespace(name=name))) for name in ("a", "b")]
    task: Any = SimpleNamespace(called={"b"})
    assert served(tuned, [task]) == tuned[1:] and served(tuned, []) is tuned
    assert served(tuned, [SimpleNamespace(called={"a", "b"})]) is tuned  # type: ignore[list-item]


@pytest.mark.long
def test_a_tuned_pack_switches_its_form_where_the_race_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from onnx import TensorProto, helper, save

    nodes = [helper.make_node("Add", ["x", "c"], ["s"]), helper.make_node("Exp", ["s"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "h", "w"]) for name in ("x", "y")]
    constant = helper.make_tensor("c", TensorProto.FLOAT, [], [1.0])
    file = tmp_path / "net.onnx"
    onnx_graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], [constant])
    save(helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    from haotuner.frontends.onnx.read import read

    task = model_task("net", read(file), SHAPES, file, forms=Forms())
    raced = list[int]()

    def form_times(packs: Any, environment: Any) -> Any:
        raced.append(len(packs))
        assert all(read_manifest(pack).models for pack in packs)
        rows = times(task, dict.fromkeys(range(20), 0.5))
        return [{("net", sizes): us for sizes, us in row.items()} for row in rows]

    monkeypatch.setattr(publishing_module, "form_times", form_times)
    more: Any = {"threads": (1,), "environment": dict(os.environ), "cache": tmp_path / "cache"}
    produce(Request(ops=(), budget_s=8.0, out=tmp_path / "pack", models=(task,), **more))
    assert raced == [2]
    (plan,) = read_manifest(tmp_path / "pack").tuning["models"].values()
    assert [way["form"] for way in plan["ways"]] == ["a derived", "the model's own"]
    with haotuner.load(tmp_path / "pack") as pack:
        for height in (8, 64):
            x = np.random.default_rng(0).normal(size=(1, height, 8)).astype(np.float32)
            (expected,) = interpret(graph(), {"x": x}).values()
            np.testing.assert_allclose(pack.model("net").run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)
