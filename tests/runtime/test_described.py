"""What ``repr`` gives of graphs, packs and what they serve: one line, without arrays."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from haotuner.graph.extents import dimension
from haotuner.graph.graph import GraphBuilder
from haotuner.runtime.reprs import described_end, described_model, described_op, described_pack


class Served(SimpleNamespace):
    """Stands for a model, an op or a pack."""


def end(name: str, *shape: object) -> Served:
    return Served(name=name, dtype=np.dtype("float32"), shape=shape)


def test_a_graph_is_one_line():
    g = GraphBuilder()
    x = g.input("x", (dimension("batch"), 8), "fp32")
    y = g.add("contract", x, g.constant(np.zeros((8, 900), np.float32)), labels="mk,kn->mn")
    assert (
        "\n" not in repr(g.finish(y))
        and repr(g.finish(y)) == f"<Graph x fp32[batch, 8] -> {y} fp32[batch, 900]: 1 primitives, 1 constants>"
    )


def test_packs_ops_and_models_say_what_they_are():
    pack = Served(path="z", ops=("a", "b"), models=("bert",), device="cpu-x", threads=1, is_open=True,
                  manifest=Served(unverified=True))  # fmt: skip
    assert described_pack(pack) == '<Served "z": 2 ops, model bert, cpu-x, 1 thread, unverified>'
    assert described_op(Served(name="dense_n8_k8")) == "<Served dense_n8_k8>"
    ends = [end(f"x{index}", "batch", None, 3) for index in range(6)]
    assert described_end(ends[0]) == "x0 float32 (batch, ?, 3)"
    model = Served(name="bert", inputs=ends, outputs=ends[:1])
    assert described_model(model).endswith("x3 float32 (batch, ?, 3), 2 more -> x0 float32 (batch, ?, 3)>")
