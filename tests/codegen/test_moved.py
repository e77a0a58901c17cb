"""Bytes moved, counted from a plan, are those that a witness sees the program touch: at every level, for any group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from haotuner.codegen.cycles import Core, cycles
from haotuner.codegen.memory_traffic import Level, MemoryTraffic
from haotuner.codegen.op_counter import count_ops, register_bytes
from haotuner.codegen.schedule import Plan, Schedule, keepable, merged_sizes, planned
from haotuner.errors import UsageError
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from tests.codegen.interpreter import run
from tests.codegen.moved_witness import moved, witness
from tests.codegen.test_generate import drawn

M, N, K = (dimension(name) for name in "mnk")
FUNCTIONS = ("exp", "abs", "neg")
BINARY = ("add", "mul", "max")


def drawn_group(seed: int) -> Graph:
    """Up to five random primitives over two or three axes: maps of one or two tensors, reductions, what moves elements."""
    rng = np.random.default_rng(seed)
    g = GraphBuilder()
    shape = [(M, N), (M, N, 3), (K, M, N)][int(rng.integers(3))]
    x = g.input("x0", shape)
    inputs = 1
    for _ in range(int(rng.integers(1, 6))):
        rank = g.types[x].rank
        what = str(rng.choice(["map", "binary", "row", "reduce", "transpose", "slice", "pad", "norm", "softmax"]))
        axis = int(rng.integers(rank))
        if what == "map":
            x = g.map(str(rng.choice(FUNCTIONS)), x)
        elif what == "binary":
            x = g.map(str(rng.choice(BINARY)), x, g.input(f"x{inputs}", g.types[x].shape))
            inputs += 1
        elif what == "row":
            x = g.map("mul", x, g.input(f"x{inputs}", g.types[x].shape[-1:]))
            inputs += 1
        elif what == "reduce" and rank > 1:
            x = g.add("reduce", x, how=str(rng.choice(["sum", "max"])), axes=(axis,), keepdims=bool(rng.integers(2)))
        elif what == "transpose":
            x = g.add("transpose", x, order=tuple(int(dim) for dim in rng.permutation(rank)))
        elif what == "slice" and g.types[x].shape[axis] in (M, N):
            x = g.add(
                "slice", x, axes=(axis,), starts=(1,), stops=(g.types[x].shape[axis],), steps=(int(rng.integers(1, 3)),)
            )
        elif what == "pad":
            x = g.add("pad", x, before=(0,) * (rank - 1) + (1,), after=(0,) * (rank - 1) + (2,), mode="constant", value=1.0)
        elif what == "norm":
            x = decompositions.normalise(g, x, (rank - 1,), 1e-5)
        elif what == "softmax":
            x = decompositions.softmax(g, x)
    return g.finish(g.map("neg", x))


def drawn_plan(graph: Graph, seed: int) -> Plan:
    rng = np.random.default_rng(seed)
    choices: list[tuple[str, ...]] = [(), *((tensor,) for tensor in keepable(graph))]
    while True:
        schedule = Schedule(
            lane_axis=int(rng.integers(-1, graph.types[graph.outputs[0]].rank)),
            lanes=int(rng.choice([1, 2, 4])),
            unroll=int(rng.choice([1, 2])),
            cached=choices[int(rng.integers(len(choices)))],
            packed=int(rng.choice([1, 2])),
            peeled=bool(rng.integers(2)),
            parts=int(rng.choice([1, 4])),
        )
        try:
            return planned(graph, schedule)
        except UsageError:
            choices = [()]


FOLDED: dict[str, Callable[[GraphBuilder, str], str]] = {
    "sum": lambda g, x: g.add("reduce", x, how="sum", axes=(1,)),
    "mean of squares": lambda g, x: decompositions.mean(g, g.map("mul", x, x), (1,)),
    "greatest of columns": lambda g, x: g.add("reduce", x, how="max", axes=(0,)),
}
SHARED = {"m": 33, "n": 61}


@pytest.mark.parametrize("lane_axis", (-1, 0))
@pytest.mark.parametrize("name", FOLDED)
def test_parts_of_a_fold_are_joined_and_their_bytes_counted(name: str, lane_axis: int) -> None:
    g = GraphBuilder()
    graph = g.finish(FOLDED[name](g, g.input("x", (M, N))))
    plan = planned(graph, Schedule(lane_axis=lane_axis, lanes=4, unroll=2, parts=4))
    whole = planned(graph, replace(plan.schedule, parts=1))
    for sizes in (SHARED, {"m": 41, "n": 2}, {"m": 1, "n": 1}, {"m": 2, "n": 9}):
        inputs: dict[str, Any] = drawn(graph, sizes)
        output, counted = run(plan, inputs)
        np.testing.assert_allclose(output, interpret(graph, inputs)[graph.outputs[0]], rtol=1e-4, atol=1e-5)
        top, seen = count_ops(plan, graph.sizes(inputs)), witness(plan, inputs)
        assert register_bytes(top) == (counted.loaded, counted.stored)
        for size, line in ((64, 1), (4096, 4)):
            assert MemoryTraffic(top).bytes(Level(size, line)) == moved([seen], size, line), (size, line, sizes)
        if sizes == SHARED:  # each input once; parts written, read and joined
            elements = 4 * counted.stored[graph.outputs[0]]
            assert counted.stored["partial"] == counted.loaded["partial"] == elements
            assert counted.loaded["x"] == run(whole, inputs)[1].loaded["x"]


@pytest.mark.parametrize("seed", range(50))
def test_predicted_bytes_are_counted_bytes(seed: int) -> None:
    graph = drawn_group(seed)
    plan = drawn_plan(graph, seed)
    inputs: dict[str, Any] = drawn(graph, {"m": 2 + seed % 2, "n": 3 + seed % 5, "k": 2})
    top = count_ops(plan, graph.sizes(inputs))
    _, counted = run(plan, inputs)
    assert register_bytes(top) == (counted.loaded, counted.stored)
    seen = witness(plan, inputs)
    line = (1, 4)[seed % 2]
    for size in (64, 256):
        assert MemoryTraffic(top).bytes(Level(size, line)) == moved([seen], size, line), (size, line, plan.schedule)


@pytest.mark.parametrize("norm", [decompositions.softmax, lambda g, x: decompositions.normalise(g, x, (1,), 1e-5)])
def test_rows_in_stages_are_right_and_their_bytes_counted(norm: Callable[[GraphBuilder, str], str]) -> None:
    g = GraphBuilder()
    graph = g.finish(norm(g, g.input("x", (M, N))))
    plan = planned(graph, Schedule(lane_axis=1, lanes=4, unroll=2, parts=3))
    for sizes in ({"m": 3, "n": 37}, {"m": 1, "n": 8}, {"m": 2, "n": 1}):
        inputs: dict[str, Any] = drawn(graph, sizes)
        output, counted = run(plan, inputs)
        np.testing.assert_allclose(output, interpret(graph, inputs)[graph.outputs[0]], rtol=1e-4, atol=1e-5)
        top, seen = count_ops(plan, graph.sizes(inputs)), witness(plan, inputs)
        assert register_bytes(top) == (counted.loaded, counted.stored)
        for size, line in ((64, 1), (4096, 4)):
            assert MemoryTraffic(top, every=10**6).bytes(Level(size, line)) == moved([seen], size, line), (size, line, sizes)
    with pytest.raises(UsageError, match="cannot share"):
        planned(graph, Schedule(lane_axis=0, lanes=4, unroll=1, parts=3))


TILED: dict[str, Callable[[GraphBuilder], str]] = {
    "product": lambda g: g.add("contract", g.input("a", (M, K)), g.input("b", (K, N)), labels="mk,kn->mn"),
    "convolution": lambda g: g.add(
        "contract", g.add("window", g.input("x", (2, K, N)), axes=(2,), sizes=(3,), strides=(1,), dilations=(1,)),
        g.input("w", (M, K, 3)), labels="bcwr,fcr->bfw"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("tiles", "masked"), [((2, 1, 0), True), ((1, 2, 3), False), ((2, 2, 4), True)])
@pytest.mark.parametrize("name", TILED)
def test_bytes_of_tiles_are_counted(name: str, tiles: tuple[int, ...], masked: bool) -> None:
    g = GraphBuilder()
    graph = g.finish(g.map("max", TILED[name](g), 0.0))
    rank = graph.types[graph.outputs[0]].rank
    plan = planned(graph, Schedule(lane_axis=rank - 1, lanes=4, unroll=2, rows=2, masked=masked, tiles=tiles))
    for sizes in ({"m": 5, "n": 21, "k": 7}, {"m": 8, "n": 16, "k": 8}, {"m": 1, "n": 3, "k": 1}, {"m": 3, "n": 5, "k": 0}):
        inputs: dict[str, Any] = drawn(graph, sizes)
        output, counted = run(plan, inputs)
        np.testing.assert_allclose(output, interpret(graph, inputs)[graph.outputs[0]], rtol=1e-4, atol=1e-5)
        top, seen = count_ops(plan, graph.sizes(inputs)), witness(plan, inputs)
        assert register_bytes(top) == (counted.loaded, counted.stored)
        for size, line in ((64, 1), (1024, 4)):
            assert MemoryTraffic(top, every=10**6).bytes(Level(size, line)) == moved([seen], size, line), (size, line, sizes)


TURNED: dict[str, Callable[[GraphBuilder], str]] = {
    "matrix": lambda g: g.add("transpose", g.input("x", (M, N)), order=(1, 0)),
    "images": lambda g: g.add("transpose", g.input("x", (2, K, N, M)), order=(0, 2, 3, 1)),
    "keys": lambda g: g.add(
        "transpose", g.add("reshape", g.input("x", (2, M, 18)), shape=(2, M, 3, 6)), order=(0, 2, 3, 1)),
    "fused": lambda g: g.map("mul", g.map("add", g.map("exp", g.add("transpose", g.input("x", (K, N, M)), order=(0, 2, 1))),
                                          g.input("y", (K, M, N))), g.input("z", (M, 1))),
    "two": lambda g: g.map("sub", g.add("transpose", g.input("x", (M, N)), order=(1, 0)),
                           g.add("transpose", g.input("y", (2, M, N)), order=(0, 2, 1))),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("tiles", [(2, 1, 0), (1, 3, 0)])
@pytest.mark.parametrize("name", TURNED)
def test_squares_are_turned_and_their_bytes_counted(name: str, tiles: tuple[int, ...]) -> None:
    g = GraphBuilder()
    graph = g.finish(TURNED[name](g))
    rank = graph.types[graph.outputs[0]].rank
    plan = planned(graph, Schedule(lane_axis=rank - 1, lanes=4, unroll=1, tiles=tiles))
    assert plan.turns
    for sizes in ({"m": 9, "n": 21, "k": 2}, {"m": 8, "n": 16, "k": 1}, {"m": 1, "n": 3, "k": 5}, {"m": 0, "n": 5, "k": 1}):
        inputs: dict[str, Any] = drawn(graph, sizes)
        output, counted = run(plan, inputs)
        np.testing.assert_array_equal(output, interpret(graph, inputs)[graph.outputs[0]])
        top, seen = count_ops(plan, graph.sizes(inputs)), witness(plan, inputs)
        assert register_bytes(top) == (counted.loaded, counted.stored)
        for size, line in ((64, 1), (1024, 4)):
            assert MemoryTraffic(top, every=10**6).bytes(Level(size, line)) == moved([seen], size, line), (size, line, sizes)


def test_squares_use_a_line_whole_while_it_is_near() -> None:
    g = GraphBuilder()
    graph = g.finish(TURNED["matrix"](g))
    plain = planned(graph, Schedule(lane_axis=1, lanes=16, unroll=1))
    turned = planned(graph, replace(plain.schedule, tiles=(1, 1, 0)))
    sizes, level = {"m": 2048, "n": 2048}, Level(1 << 14, 16)
    once, again = (MemoryTraffic(count_ops(plan, sizes), every=1).bytes(level) for plan in (turned, plain))
    assert once == 2 * 4 * 2048 * 2048 < again / 4
    assert cycles(count_ops(turned, sizes), Core(64)) < 0.5 * cycles(count_ops(plain, sizes), Core(64))


def test_single_lanes_that_read_across_are_not_made_vectors_by_the_compiler() -> None:
    cycles_of = {}
    for name, order in (("near", (0, 1)), ("across", (1, 0))):
        g = GraphBuilder()
        graph = g.finish(g.add("transpose", g.map("neg", g.input("x", (M, N))), order=order))
        plan = planned(graph, Schedule(lane_axis=1, lanes=1, unroll=1))
        cycles_of[name] = cycles(count_ops(plan, {"m": 64, "n": 64}), Core(64))
    assert 3 * cycles_of["near"] < cycles_of["across"] < 5 * cycles_of["near"]


@pytest.mark.parametrize("build", [
    lambda g: g.map("exp", g.input("x", (M, N))),
    lambda g: g.add("reduce", g.add("transpose", g.input("x", (M, N)), order=(1, 0)), how="sum", axes=(1,)),
    lambda g: g.map("add", g.add("transpose", g.input("x", (M, N)), order=(1, 0)),
                    g.add("slice", g.input("y", (N, 2 * M)), axes=(1,), starts=(0,), stops=(2 * M,), steps=(2,))),
])  # fmt: skip
def test_what_has_no_squares_is_told(build: Callable[[GraphBuilder], str]) -> None:
    g = GraphBuilder()
    graph = g.finish(build(g))
    lane_axis = graph.types[graph.outputs[0]].rank - 1
    with pytest.raises(UsageError, match=r"squares are turned where|tiles (of|are)"):
        planned(graph, Schedule(lane_axis=lane_axis, lanes=4, unroll=1, tiles=(1, 1, 0)))


def test_tiles_save_bytes_beyond_a_cache() -> None:
    g = GraphBuilder()
    graph = g.finish(TILED["product"](g))
    flat = planned(graph, Schedule(lane_axis=1, lanes=16, unroll=2, rows=4))
    tiled = planned(graph, replace(flat.schedule, tiles=(16, 4, 256)))
    sizes, level = {"m": 512, "n": 512, "k": 2048}, Level(1 << 19, 16)
    once, again = (MemoryTraffic(count_ops(plan, sizes), every=1).bytes(level) for plan in (tiled, flat))
    assert once < 0.5 * again


def softmax(cached: bool = False) -> Plan:
    g = GraphBuilder()
    graph = g.finish(decompositions.softmax(g, g.input("x", (M, N))))
    return planned(graph, Schedule(lane_axis=1, lanes=16, unroll=2, cached=keepable(graph) if cached else ()))


def test_large_programs_are_counted_without_being_run() -> None:
    top = count_ops(softmax(cached=True), {"m": 100_000, "n": 4096})
    row = 4 * 4096
    level, tiny = MemoryTraffic(top).bytes(Level(2**20, 16)), MemoryTraffic(top).bytes(Level(2**13, 16))
    assert level == MemoryTraffic(top).least() == 100_000 * 2 * row  # a row stays: read once, written once
    assert tiny == 100_000 * 5 * row  # max; powers read and written; result read and written


def test_axes_that_are_taken_as_one_are_counted_however_long() -> None:
    g = GraphBuilder()
    plan = planned(g.finish(g.map("exp", g.input("x", (M, N)))), Schedule(lane_axis=1, lanes=16, unroll=4))
    sizes = merged_sizes(plan, {"m": 8192, "n": 16384})
    assert sizes == {"m": 1, "n": 8192 * 16384}
    top, size = count_ops(plan, sizes), 4 * 8192 * 16384
    assert [sum(counts.values()) for counts in register_bytes(top)] == [size, size]
    assert MemoryTraffic(top).bytes(Level(2**20, 16)) == MemoryTraffic(top).least() == 2 * size


def test_what_is_kept_saves_cycles_and_costs_bytes() -> None:
    sizes = {"m": 64, "n": 1000}
    again, reused = count_ops(softmax(), sizes), count_ops(softmax(cached=True), sizes)
    assert cycles(reused, Core(64)) < 0.9 * cycles(again, Core(64))
    assert sum(sum(counts.values()) for counts in register_bytes(reused)) > sum(
        sum(counts.values()) for counts in register_bytes(again)
    )


def test_a_reduction_repeated_for_every_element_is_seen() -> None:
    g = GraphBuilder()
    graph = g.finish(decompositions.softmax(g, g.input("x", (M, N))))
    rows, columns = (planned(graph, Schedule(lane_axis=axis, lanes=16, unroll=1)) for axis in (1, 0))
    sizes = {"m": 256, "n": 256}
    assert cycles(count_ops(columns, sizes), Core(64)) > 50 * cycles(count_ops(rows, sizes), Core(64))
