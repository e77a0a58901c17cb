"""Scales and zero points that data tell, behind sums of bytes: rows that a kernel takes along; what must stay, stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.graph.extents import dimension
from haotuner.graph.fold_scales import dequantised_by_rows
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret

WEIGHT = np.random.default_rng(1).integers(-128, 128, (6, 5), np.int8).astype(np.int32)
BIAS = np.linspace(-1, 1, 5, dtype=np.float32)


def layer(bias: Any = BIAS, *, scale: tuple[Any, ...] = (), shift: bool = True, twice: bool = False) -> Graph:
    """(rows, 6) bytes less a zero point times a weight, times a scale that comes with the call, and a bias."""
    g = GraphBuilder()
    x, zero = g.input("x", (dimension("rows"), 6), "uint8"), g.input("zero", (), "uint8")
    factor = g.input("scale", scale)
    sums = g.add("contract", g.add("cast", x, dtype="int32"), g.constant(WEIGHT), labels="mk,kn->mn")
    less = g.map("mul", g.add("cast", zero, dtype="int32"), g.constant(WEIGHT.sum(axis=0, dtype=np.int32)))
    moved = g.map("sub", sums, less) if shift else sums
    scaled = g.map("mul", g.add("cast", moved, dtype="fp32"), factor)
    ends = [scaled if bias is None else g.map("add", scaled, g.constant(bias))]
    return g.finish(*ends, *([moved] if twice else []))


def given(scale: tuple[int, ...]) -> dict[str, Any]:
    draw = np.random.default_rng(2)
    return {
        "x": draw.integers(0, 256, (4, 6), np.uint8), "zero": np.uint8(131),
        "scale": draw.uniform(0.01, 0.02, scale).astype(np.float32),
    }  # fmt: skip


@pytest.mark.parametrize("scale", [(), (1,), (5,), (1, 5)])
@pytest.mark.parametrize("bias", [None, BIAS, BIAS[:1], BIAS.reshape(1, 5)])
@pytest.mark.parametrize("shift", [True, False])
def test_sums_are_scaled_and_moved_by_rows(bias: Any, scale: tuple[int, ...], shift: bool) -> None:
    graph = layer(bias, scale=scale, shift=shift)
    by_rows = dequantised_by_rows(graph)
    wide = [n for n in by_rows.nodes if by_rows.types[n.output].rank == 2 and n.primitive == "map"]
    assert [n.attributes["function"] for n in wide] == ["mul", *(["add"] if shift or bias is not None else [])]
    sums = next(n for n in by_rows.nodes if n.primitive == "contract").output
    assert [n.primitive for n in by_rows.readers(sums)] == ["cast"]
    (output,), (expected,) = (list(interpret(version, given(scale)).values()) for version in (by_rows, graph))
    np.testing.assert_allclose(output, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    "graph",
    [layer(twice=True), layer(scale=(dimension("rows"), 1)), layer(scale=(1,), shift=False, twice=True)],
    ids=["sums are asked for", "a scale of each row", "sums are asked for, not moved"],
)
def test_what_rows_cannot_say_stays(graph: Graph) -> None:
    assert dequantised_by_rows(graph) == graph


def test_long_sums_stay_in_whole_numbers() -> None:
    """A longer sum than 32 bits have room for wraps around, with the zero point's share or without."""
    g = GraphBuilder()
    x, scale = g.input("x", (2, 70_000), "uint8"), g.input("scale", ())
    weight = g.constant(np.full((70_000, 3), 127, np.int32))
    sums = g.add("contract", g.add("cast", x, dtype="int32"), weight, labels="mk,kn->mn")
    graph = g.finish(g.map("mul", g.add("cast", sums, dtype="fp32"), scale))
    assert dequantised_by_rows(graph) == graph
