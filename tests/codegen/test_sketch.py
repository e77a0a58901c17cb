"""Sketches follow from conditions on the graph; every point of a space has a program, whatever was mutated or crossed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from haotuner.codegen.kinds import attention
from haotuner.codegen.schedule import Schedule, planned
from haotuner.codegen.sketch import lane_axes, sketches
from haotuner.codegen.space import TILES, Space
from haotuner.errors import UsageError
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from tests.codegen.interpreter import run
from tests.codegen.test_generate import GROUPS, SIZES, K, M, N, drawn, group, left_to_the_collector

B = dimension("b")


def transposed_product(g: GraphBuilder, a: str, b: str) -> str:
    """Transpose, transpose, product: TBG of the Ansor paper."""
    left, right = (g.add("transpose", x, order=(0, 2, 1)) for x in (a, b))
    return g.add("contract", left, right, labels="bmk,bkn->bmn")


def product_relu(g: GraphBuilder, a: str, b: str) -> str:
    return g.map("max", g.add("contract", a, b, labels="mk,kn->mn"), 0.0)


def convolution(g: GraphBuilder, x: str, w: str) -> str:
    seen = g.add("window", x, axes=(2,), sizes=(3,), strides=(1,), dilations=(1,))
    return g.add("contract", seen, w, labels="bcwr,fcr->bfw")


CASES = {
    "matmul": GROUPS["matmul"],
    "matmul_relu": group(product_relu, (M, K), (K, N)),
    "convolution": group(convolution, (B, K, N), (M, K, 3)),
    "layer_norm": GROUPS["layer_norm"],
    "transpose_transpose_product": group(transposed_product, (B, K, M), (B, N, K)),
    "softmax": GROUPS["softmax"],
    "sum": GROUPS["sum_last"],
    "attention": attention({"d": "64", "causal": "end"}),
}


@pytest.mark.parametrize("name", CASES)
def test_sketches_of_a_graph(golden: Callable[..., None], name: str) -> None:
    graph, lines = CASES[name], []
    for sketch in sketches(graph):
        lines += [f"lanes along {lane_axes(graph, sketch)}", *(f"  {step}" for step in sketch.steps)]
    golden("\n".join([*lines, ""]))


def test_each_rule_fires_under_its_condition() -> None:
    fired = {name: {step.rule for sketch in sketches(graph) for step in sketch.steps} for name, graph in CASES.items()}
    assert fired["matmul"] == {"cache stage", "tile"}  # reuse, nothing to fuse
    assert fired["matmul_relu"] == {"tile and fuse", "skip"}  # reuse, and what reads the product
    assert {"online", "tile and fuse"} <= fired["attention"]  # products on both sides of a softmax
    assert all("online" not in rules for name, rules in fired.items() if name != "attention")
    assert fired["transpose_transpose_product"] == {"cache stage", "tile", "inline"}
    assert fired["softmax"] == {"skip", "inline", "cache", "factor"}  # powers are read twice


@pytest.mark.parametrize("name", ["matmul", "softmax", "sum_last", "max_first", "instance_norm"])
def test_points_compute_the_graph(name: str) -> None:
    graph: Graph = GROUPS[name]
    space, rng = Space(graph, 4, workers=2), np.random.default_rng(0)
    inputs: dict[str, Any] = drawn(graph, SIZES if name != "instance_norm" else {"m": 2, "n": 3, "k": 2})
    expected = interpret(graph, inputs)[graph.outputs[0]]
    for point in [space.drawn(rng) for _ in range(6)]:
        output, _ = run(planned(graph, space.schedule(point)), inputs)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5, err_msg=str(space.schedule(point)))


def test_workers_may_share_what_is_one_fold() -> None:
    shared = Space(GROUPS["sum_last"], 4, workers=2)
    assert {shared.schedule(point).parts for point in shared.points} == {1, 4}
    assert {Space(GROUPS["sum_last"], 4).schedule(point).parts for point in Space(GROUPS["sum_last"], 4).points} == {1}
    assert all(hole.name != "parts" for hole in Space(CASES["attention"], 4, workers=2).holes), "keys, not the output's row"


def test_workers_may_share_rows_whose_folds_are_read_again_in_stages() -> None:
    space = Space(GROUPS["softmax"], 4, workers=3)
    schedules = [space.schedule(point) for point in space.points if space.schedule(point).parts > 1]
    assert {schedule.parts for schedule in schedules} == {6} and len(schedules) == len(
        {(schedule.lane_axis, schedule.unroll) for schedule in schedules}
    ) > 2
    for schedule in schedules:
        assert not schedule.cached and planned(space.graph, schedule)
    assert all(hole.name != "parts" for hole in Space(GROUPS["softmax"], 4).holes), "nobody to share them"


TILED = ["matmul", "matmul_relu", "convolution", "transpose_transpose_product"]


@pytest.mark.parametrize("name", TILED)
def test_tiles_of_two_levels_compute_the_graph(name: str) -> None:
    space, rng = Space(CASES[name], 4, workers=2), np.random.default_rng(1)
    inputs: dict[str, Any] = drawn(space.graph, {"m": 11, "n": 13, "k": 6, "b": 2})
    expected = interpret(space.graph, inputs)[space.graph.outputs[0]]
    tiled = [space.schedule(point) for point in space.points if space.schedule(point).tiles]
    assert {schedule.parts for schedule in tiled} == ({1} if name == "matmul_relu" else {1, 4}), "a fold that is the output"
    for at in rng.choice(len(tiled), 3, replace=False):
        output, _ = run(planned(space.graph, replace(tiled[at], tiles=(*tiled[at].tiles[:2], at % 5))), inputs)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5, err_msg=str(tiled[at]))


def test_a_program_of_tiles_leaves_no_cycles() -> None:
    space = Space(CASES["matmul"], 4)
    tiled = next(space.schedule(point) for point in space.points if space.schedule(point).tiles)
    for tiles in (tiled.tiles, (*tiled.tiles[:2], 4)):
        plan = planned(space.graph, replace(tiled, tiles=tiles))
        assert left_to_the_collector(plan, drawn(space.graph, SIZES)) == 0


def test_only_what_uses_operands_again_has_tiles() -> None:
    for name, graph in CASES.items():
        names = {hole.name for hole in Space(graph, 4).holes}
        assert names >= set(TILES) if name in TILED else not names & set(TILES)
    with pytest.raises(UsageError, match="one fold"):
        planned(CASES["softmax"], Schedule(lane_axis=1, lanes=4, unroll=1, tiles=(1, 1, 8)))
    with pytest.raises(UsageError, match="smaller tiles"):
        planned(CASES["matmul"], Schedule(lane_axis=1, lanes=16, unroll=8, rows=4, tiles=(16, 4, 64)))


def test_equal_programs_are_equal_points() -> None:
    space = Space(GROUPS["softmax"], 16)
    assert len(set(space.points)) == len(space.points) == len({space.schedule(point) for point in space.points})
    for point in space.points[::37]:
        near = list(space.neighbours(point))
        assert near and point not in near and set(near) <= set(space.points)
