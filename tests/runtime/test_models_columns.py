"""Convolutions whose windows are one element wide run as convolutions of one line, in models; against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.graph.extents import Extent, dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.partition.greedy_fusion import Greedy
from haotuner.partition.products import Product
from haotuner.spec.op import Op
from tests.runtime.model_packs import model_pack

B, T = dimension("batch"), dimension("time")
DRAW = np.random.default_rng(0)


def columns(width: Extent = 1, stride: int = 1, dilation: int = 1, pads: tuple[int, int, int, int] = (0, 0, 0, 0)) -> Graph:
    """Five filters of 3 x 1 over four channels, with bias, ReLU and a residual."""
    g = GraphBuilder()
    x = g.input("x", (B, 4, T, width))
    padded = g.add("pad", x, before=(0, 0, *pads[:2]), after=(0, 0, *pads[2:]), mode="constant", value=0.0)
    slid = g.add("window", padded, axes=(2, 3), sizes=(3, 1), strides=(stride, 1), dilations=(dilation, 1))
    filters = g.constant(DRAW.standard_normal((5, 4, 3, 1)).astype(np.float32))
    y = g.add("contract", slid, filters, labels="bcpquv,fcuv->bfpq")
    y = g.map("add", y, g.constant(DRAW.standard_normal((5, 1, 1)).astype(np.float32)))
    y = g.map("max", y, 0.0)
    most = g.add("reduce", slid, how="max", axes=(1, 4, 5), keepdims=False)
    places = g.types[y].shape
    return g.finish(g.map("add", y, g.add("broadcast", g.add("reshape", most, shape=(B, 1, *places[2:])), shape=places)))


AS = {  # the op that each becomes
    "narrow": (columns(), "r=1,s=3"),
    "narrow_strided": (columns(1, stride=2, dilation=2, pads=(2, 0, 1, 0)), "r=1,s=3,stride=1.2,pad=0.2.0.1,dilation=1.2"),
    "wide": (columns(3, dilation=2, pads=(1, 0, 2, 0)), "r=1,s=3,pad=0.3.0.6,dilation=1.6"),
    "wide_strided": (columns(3, stride=2), "r=3,s=1,stride=2.1"),  # rows are left out: no line
    "padded": (columns(3, pads=(0, 1, 0, 1)), "r=3,s=1,pad=0.1.0.1"),
    "any_width": (columns(dimension("width")), "r=3,s=1"),
}


@pytest.mark.parametrize("name", AS)
def test_the_op_of_a_tall_window(name: str) -> None:
    graph, taps = AS[name]
    (product,) = (step for step in Greedy(graph).steps if isinstance(step, Product))
    assert product.op == Op.parse(f"conv2d:c=4,f=5,{taps},epilogue=bias+relu+residual")


@pytest.mark.parametrize(("taps", "features", "products"), [(41, 1, 0), (41, 2, 1), (9, 1, 1)])
def test_one_long_filter_over_a_signal_is_loops(taps: int, features: int, products: int) -> None:
    g = GraphBuilder()
    slid = g.add("window", g.input("x", (B, 1, T)), axes=(2,), sizes=(taps,), strides=(3,), dilations=(1,))
    filters = g.constant(DRAW.standard_normal((features, 1, taps)).astype(np.float32))
    steps = Greedy(g.finish(g.add("contract", slid, filters, labels="bcpu,fcu->bfp"))).steps
    assert sum(isinstance(step, Product) for step in steps) == products


def test_lines_are_what_the_images_were(tmp_path: Any) -> None:
    graphs = {name: AS[name][0] for name in ("wide",)}
    with haotuner.load(model_pack(tmp_path / "pack", graphs), threads=1) as pack:
        for name, graph in graphs.items():
            for batch, time in ((1, 5), (3, 20)):
                sizes = {"batch": batch, "time": time}
                shape: Any = [sizes.get(str(e), e) for e in graph.types["x"].shape]
                x = DRAW.standard_normal(shape).astype(np.float32)
                outputs = pack.model(name).run({"x": x})
                for output, expected in interpret(graph, {"x": x}).items():
                    np.testing.assert_allclose(outputs[output], expected, rtol=1e-4, atol=1e-4)
