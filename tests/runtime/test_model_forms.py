"""A model that switches its form by size: ways of different graphs share inputs and equal weights, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.runtime.pack import load
from haotuner.runtime.schedule import ExecutionPlan
from tests.runtime.model_packs import model_pack, planned

N, SMALL = dimension("n"), 8
pytestmark = pytest.mark.filterwarnings("ignore:.*not measured|.*nothing was measured")


def layer(seed: int, shared: Any, hidden: int) -> Graph:
    """Two dense layers. All names are the same for all seeds, the first layer's numbers and the hidden width are not."""
    g = GraphBuilder()
    x = g.input("x", (N, 16))
    draw = np.random.default_rng(seed)
    first = g.constant(draw.normal(size=(hidden, 16)).astype(np.float32), name="first")
    second = g.constant(draw.normal(size=(16, hidden)).astype(np.float32), name="second")
    bias = g.constant(shared, name="bias")
    h = g.map("add", g.add("contract", x, first, labels="ak,nk->an"), 1.0)
    y = g.add("contract", h, second, labels="ak,nk->an")
    return g.finish(g.map("sin", g.map("add", y, bias)))


@pytest.fixture(scope="module")
def graphs() -> tuple[Graph, Graph]:
    """The model's own graph, and another one that small requests are answered by; its numbers tell who answered."""
    shared = np.random.default_rng(0).normal(size=16).astype(np.float32)
    return layer(1, shared, 32), layer(2, shared, 48)


@pytest.mark.parametrize("rows", [1, SMALL - 1, SMALL, SMALL + 1, 60])
def test_each_size_is_answered_by_its_own_form(graphs: tuple[Graph, Graph], tmp_path: Path, rows: int) -> None:
    own, other = graphs
    x = np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)
    (expected,) = interpret(other if rows <= SMALL else own, {"x": x}).values()
    with load(model_pack(tmp_path / "pack", {"m": own}, small=SMALL, forms={"m": other}), threads=1) as pack:
        np.testing.assert_allclose(pack.model("m").run({"x": x})[own.outputs[0]], expected, rtol=1e-4, atol=1e-4)


def test_equal_weights_lie_once_and_others_have_names_of_their_own(graphs: tuple[Graph, Graph]) -> None:
    own, other = graphs
    (model,), _, _ = planned({"m": own}, 16, small=SMALL, forms={"m": other})
    document = model.document
    entries = document["weights"]
    assert sum(int(np.prod(item["shape"])) for item in entries.values()) == 2 * 16 * (32 + 48) + 16
    assert not entries.keys() & document["tensors"].keys()
    schedule = ExecutionPlan.of(model.schedule, "m")
    assert [way.where for way in schedule.ways] == [f"n <= {SMALL}", "any sizes"]
