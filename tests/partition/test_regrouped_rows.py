"""Rows of a dense layer that are regrouped behind it, as exporters write layers of three axes: all of it is one product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.graph import decompositions
from haotuner.graph.extents import dimension
from haotuner.graph.graph import GraphBuilder
from haotuner.partition.products import Finder
from haotuner.spec.op import Op

BATCH, SEQ = dimension("batch"), dimension("seq")


def layer(*, keeps: bool = True, read_twice: bool = False) -> tuple[GraphBuilder, str]:
    """(batch, seq, 8) as rows, times (8, 12), plus a bias, and the rows as they were."""
    g = GraphBuilder()
    x = g.input("x", (BATCH, SEQ, 8), "fp32")
    flat = g.add("reshape", x, shape=(BATCH * SEQ, 8))
    y = g.add("contract", flat, g.constant(np.ones((8, 12), np.float32)), labels="mk,kn->mn")
    y = g.map("add", y, g.constant(np.ones(12, np.float32)))
    back = g.add("reshape", y, shape=(BATCH, SEQ, 12) if keeps else (BATCH, SEQ, 3, 4))
    if read_twice:
        g.add("map", y, name="more", function="tanh")
    return g, back


@pytest.mark.parametrize("function", ["gelu", "relu", "residual", "residual_relu"])
def test_what_follows_the_view_is_in_the_product(function: str) -> None:
    g, y = layer()
    if function.startswith("residual"):
        y = g.map("add", y, g.input("r", (BATCH, SEQ, 12), "fp32"))
    y = decompositions.gelu(g, y) if function == "gelu" else g.map("max", y, 0.0) if function.endswith("relu") else y
    graph = g.finish(y)
    (product,) = Finder(graph).products()
    assert product.op == Op.parse(f"dense:n=12,k=8,epilogue=bias+{function.replace('_', '+')}")
    assert product.output == y and product.out_shape == (BATCH * SEQ, 12)
    assert any(node.primitive == "reshape" and node.output in product.nodes for node in graph.nodes)


@pytest.mark.parametrize("other", [{"keeps": False}, {"read_twice": True}])
def test_a_view_of_other_channels_or_of_what_others_read_ends_the_product(other: dict[str, Any]) -> None:
    g, y = layer(**other)
    last = decompositions.gelu(g, y)
    (product,) = Finder(g.finish(last, *(["more"] if other.get("read_twice") else []))).products()
    assert product.op == Op.parse("dense:n=12,k=8") and last not in product.nodes
