"""Graphs in halves computed in fp32: their ends keep their types, and what lies between is what kernels compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes  # noqa: F401 -- gives numpy its bf16
import numpy as np
import pytest

from haotuner.graph.error_bounds import TOLERANCE, tolerance_of
from haotuner.graph.extents import dimension
from haotuner.graph.fp16_to_fp32 import fp16_to_fp32
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.graph.types import numpy_dtype
from haotuner.ops.dtypes import DTYPES
from haotuner.partition.products import Finder
from haotuner.spec.op import Op

M, K = dimension("m"), 600
DRAW = np.random.default_rng(0)


def layer(dtype: str) -> Graph:
    """A dense layer in a half, also handed out in fp32."""
    g = GraphBuilder()
    x = g.add("cast", g.map("exp", g.input("x", (M, K), dtype)), dtype="fp32")
    w = g.constant(DRAW.standard_normal((K, 8)).astype(numpy_dtype(dtype)))
    y = g.add("contract", g.add("cast", x, dtype=dtype), w, labels="mk,kn->mn")
    return g.finish(y, g.add("cast", y, dtype="fp32"))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_what_lies_between_the_ends_is_fp32(dtype: str) -> None:
    half = layer(dtype)
    graph = fp16_to_fp32(half)
    assert [graph.types[name] for name in (*graph.inputs, *graph.outputs)] == [
        half.types[name] for name in (*half.inputs, *half.outputs)
    ]
    assert [product.op for product in Finder(graph).products()] == [Op.parse("dense:n=8,k=600")]
    assert [node.primitive for node in graph.nodes] == ["cast", "map", "contract", "cast", "cast"]
    x: Any = (DRAW.standard_normal((3, K)) * 0.1).astype(numpy_dtype(dtype))
    wide = np.exp(x.astype(np.float64)) @ next(iter(half.constants.values())).astype(np.float64)
    outputs = interpret(graph, {"x": x})
    for name in half.outputs:
        assert outputs[name].dtype == numpy_dtype(half.types[name].dtype)
        np.testing.assert_allclose(outputs[name].astype(np.float64), wide, atol=1e-2 * np.abs(wide).max())


def test_what_has_no_halves_or_hands_out_a_half_as_it_is_stays() -> None:
    g = GraphBuilder()
    single = g.finish(g.map("exp", g.input("x", (M,))))
    g = GraphBuilder()
    same = g.finish(g.input("x", (M,), "fp16"), g.map("exp", "x"))
    assert fp16_to_fp32(single) is single
    assert fp16_to_fp32(same) is same
    graph = fp16_to_fp32(layer("fp16"))
    assert fp16_to_fp32(graph) is graph


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_answers_in_halves_may_be_units_away(dtype: str) -> None:
    whole = fp16_to_fp32(layer(dtype))
    assert DTYPES[dtype].eps < tolerance_of(whole, {}) < 0.05
    half, single = whole.outputs
    assert tolerance_of(replace(whole, outputs=(single,)), {}) == TOLERANCE
    assert half != single
