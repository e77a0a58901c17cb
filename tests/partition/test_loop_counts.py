"""Loops are counted as their C does it: vectors, strides, divided indices, reductions, and what caches hold."""

from __future__ import annotations

import pytest

from haotuner.graph import decompositions
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.partition.convex_sets import ConvexSets, Floors
from haotuner.partition.costs import CORE, GPU, Prices
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.loop_counts import (
    BYTES,
    DIVIDED,
    DIVIDED_BY_SIZE,
    FUNCTION,
    INDEXED,
    REDUCTION,
    ROW,
    SCALAR,
    SIMPLE,
    STRIDED,
    STRIDED_FAR,
    TURNED,
)

B, T = dimension("b"), dimension("t")
SMALL, LARGE = {"b": 2, "t": 10}, {"b": 2, "t": 20_000}


def work(graph: Graph, request: dict[str, int] = SMALL) -> dict[str, float]:
    (result,) = Prices([request], CORE).work_of(graph)
    return result


def test_maps_are_vectors_and_move_each_tensor_once():
    g = GraphBuilder()
    x, scale = g.input("x", (B, T, 8)), g.input("scale", (8,))
    counts = work(g.finish(g.map("exp", g.map("mul", g.map("add", x, x), scale))))
    assert counts == {BYTES: 4.0 * (2 * 160 + 8), SIMPLE: 320.0, FUNCTION: 160.0, ROW: 20.0}


def test_a_transpose_is_turned_in_squares_and_a_short_one_is_strided():
    g = GraphBuilder()
    x = g.input("x", (B, T, 64))
    assert work(g.finish(g.add("transpose", x, order=(0, 2, 1))))[TURNED] == 2 * 10 * 64
    g = GraphBuilder()
    x = g.input("x", (B, 4, T))
    short = g.finish(g.add("transpose", x, order=(0, 2, 1)))
    assert TURNED not in work(short) and work(short)[STRIDED] == 2 * 10 * 4
    assert STRIDED_FAR not in work(short, LARGE), "four lines are read before one is met again"


def test_lines_that_are_met_again_after_many_others_are_far():
    g = GraphBuilder()
    x = g.input("x", (B, T, 4))
    graph = g.finish(g.add("transpose", x, order=(0, 2, 1)))
    small, large = work(graph), work(graph, LARGE)
    assert STRIDED_FAR not in small
    assert large.get(STRIDED_FAR, 0.0) + large.get(TURNED, 0.0) == 2 * 20_000 * 4


@pytest.mark.parametrize(("shape", "kind"), [((B, 12, T), DIVIDED), ((B, T, 12), DIVIDED_BY_SIZE)])
def test_indices_that_are_divided_are_counted_once_an_element(shape, kind):
    g = GraphBuilder()
    turned = g.add("transpose", g.input("x", shape), order=(0, 2, 1))
    counts = work(g.finish(g.map("exp", g.add("reshape", turned, shape=(B, 12 * T)))))
    assert counts[kind] == 2 * 2 * 120, "a quotient and a rest"
    assert counts[SCALAR[FUNCTION]] == 2 * 120 and FUNCTION not in counts


def test_a_long_reduction_is_a_loop_and_a_window_of_few_taps_is_written_out():
    g = GraphBuilder()
    x = g.input("x", (B, T, 64))
    rows = work(g.finish(g.add("reduce", x, how="max", axes=(2,), keepdims=False)))
    assert rows[REDUCTION] == 20 and rows[SIMPLE] == 20 * 64

    def pooled(taps: int) -> dict[str, float]:
        g = GraphBuilder()
        slid = g.add("window", g.input("x", (B, T, 64)), axes=(1,), sizes=(taps,), strides=(1,), dilations=(1,))
        return work(g.finish(g.add("reduce", slid, how="max", axes=(3,), keepdims=False)), {"b": 2, "t": 40})

    assert REDUCTION not in pooled(5) and REDUCTION not in pooled(13) and pooled(37)[REDUCTION] == 2 * 4 * 64
    assert pooled(5)[SIMPLE] == 2 * 36 * 64 * 5


def test_pieces_of_a_row_ask_nothing_and_channels_put_together_across_do():
    g = GraphBuilder()
    x, y = g.input("x", (B, T, 8)), g.input("y", (B, T, 8))
    assert INDEXED not in work(g.finish(g.add("concat", x, y, axis=2)))
    g = GraphBuilder()
    channels = g.add("concat", g.input("x", (B, T, 24)), g.input("y", (B, T, 24)), axis=2)
    heads = g.add("transpose", g.add("reshape", channels, shape=(B, T, 3, 16)), order=(0, 2, 1, 3))
    counts = work(g.finish(heads))
    assert counts[INDEXED] > 2 * 10 * 48 and counts[SCALAR[SIMPLE]] >= 2 * 10 * 48


def test_bytes_beyond_the_cache_are_dearer():
    assert CORE.moved_us(1e6) == pytest.approx(1e6 / CORE.bytes_moved)
    assert CORE.moved_us(1e8) > 0.9 * 1e8 / CORE.bytes_far > CORE.moved_us(1e8) / 3
    assert GPU.moved_us(1e8) == pytest.approx(1e8 / GPU.bytes_far)


def test_a_softmax_by_rows_waits_in_its_row():
    g = GraphBuilder()
    graph = g.finish(decompositions.softmax(g, g.input("x", (B, T))))
    assert work(graph)[FUNCTION] == 20 and work(graph)[REDUCTION] >= 4
    assert Prices([SMALL], GPU).work_of(graph)[0][FUNCTION] > 20


@pytest.mark.parametrize("rates", [CORE, GPU], ids=["core", "gpu"])
def test_bounds_of_column_generation_lie_under_expected_times(rates):
    g = GraphBuilder()
    x = g.input("x", (B, T, 64))
    normed = decompositions.normalise(g, x, (2,), 1e-5)
    turned = g.add("transpose", g.map("div", g.map("tanh", normed), x), order=(0, 2, 1))
    joined = g.add("concat", turned, g.add("transpose", g.map("exp", x), order=(0, 2, 1)), axis=1)
    graph = g.finish(decompositions.softmax(g, g.map("add", joined, joined)), g.map("neg", turned))
    prices = Prices([SMALL, LARGE, {"b": 64, "t": 1}], rates)
    plan, compared = IlpPartitioner(graph, prices), 0
    for window in plan.windows:
        sets = ConvexSets(window.nodes, plan.producers, plan.required(), frozenset())
        floors = Floors.of(sets, graph, plan.producers, prices)
        for kernel in (kernel for kernel in window.candidates if not kernel.alias and len(kernel.outputs) == 1):
            root = sets.index[kernel.output]
            bound = floors.us(root, sets.mask(kernel.nodes), floors.whole(root), -1)
            assert bound <= prices.price_of(kernel.key, kernel.usual_us) * (1 + 1e-9), sorted(kernel.nodes)
            compared += 1
    assert compared > 20
