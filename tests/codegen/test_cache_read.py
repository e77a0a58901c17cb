"""Copies of operands that tiles read: right for every copy and layout, of boxes that are known, within their memory."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from haotuner.codegen.cache_read import COLUMNS, MOST_FLOATS, ROWS
from haotuner.codegen.emit import emit
from haotuner.codegen.in_place import in_place
from haotuner.codegen.op_counter import Access, Loop, OpCounter
from haotuner.codegen.schedule import Plan, Schedule, planned
from haotuner.codegen.space import CACHE_READ, Space
from haotuner.errors import UsageError
from haotuner.graph.extents import dimension, evaluate
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from tests.codegen.interpreter import run

B, M = dimension("b"), dimension("m")
BOTH_OPERANDS = COLUMNS | ROWS


def convolution(side: int, channels: int, filters: int, stride: int = 1, dilation: int = 1, pad: int = 1) -> Graph:
    """A 3x3 convolution of images with channels first, and a ReLU."""
    g = GraphBuilder()
    x, w = g.input("x", (B, channels, side, side)), g.input("w", (filters, channels, 3, 3))
    pads = (0, 0, pad, pad)
    padded = g.add("pad", x, before=pads, after=pads, mode="constant", value=0.0)
    steps: dict[str, Any] = {"strides": (stride, stride), "dilations": (dilation, dilation)}
    windows = g.add("window", padded, axes=(2, 3), sizes=(3, 3), **steps)
    return g.finish(g.map("max", g.add("contract", windows, w, labels="bcpquv,fcuv->bfpq"), 0.0))


def product(labels: str = "mk,kn->mn", k: int = 37) -> Graph:
    g = GraphBuilder()
    extents: dict[str, Any] = {"b": B, "m": M, "n": 11, "k": k}
    first, other = labels.partition("->")[0].split(",")
    x, w = (g.input(name, [extents[label] for label in word]) for name, word in (("x", first), ("w", other)))
    return g.finish(g.add("contract", g.map("neg", x), w, labels=labels))


CASES = {
    "convolution": convolution(5, 2, 5),
    "strides": convolution(5, 1, 5, stride=2),
    "dilation": convolution(5, 1, 5, dilation=2, pad=2),
    "no pads": convolution(5, 1, 5, pad=0),
    "product": product(k=7),
    "transposed": product("mk,nk->mn", 7),
    "batch": product("bmk,bnk->bmn", 3),
}


def arrays(graph: Graph) -> dict[str, Any]:
    rng, sizes = np.random.default_rng(0), {"b": 2, "m": 5}
    shapes = {name: [evaluate(extent, sizes) for extent in graph.types[name].shape] for name in graph.inputs}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def plans(graph: Graph) -> list[Plan]:
    """Every axis of lanes, every copy, of tiles that end within the tensors."""
    result = []
    axes = range(graph.types[graph.outputs[0]].rank)
    for number, (axis, bits) in enumerate(itertools.product(axes, (COLUMNS, ROWS, BOTH_OPERANDS))):
        item = Schedule(lane_axis=axis, lanes=4, unroll=2, rows=2, tiles=(2, 1, 0), cache_read=bits)
        other = replace(item, unroll=1, rows=4, tiles=(1, 2, 2), masked=False)
        with suppress(UsageError):
            result.append(planned(graph, other if number % 4 == 3 else item))
    return result


@pytest.mark.parametrize("name", CASES)
def test_tiles_of_copies_compute_the_graph(name: str) -> None:
    graph, inputs = CASES[name], arrays(CASES[name])
    expected = interpret(graph, inputs)[graph.outputs[0]]
    all_plans = plans(graph)
    assert {plan.schedule.cache_read for plan in all_plans} == {COLUMNS, ROWS, BOTH_OPERANDS}
    for plan in all_plans:
        result, _ = run(plan, inputs)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5, err_msg=str(plan.schedule))


def test_bits_are_those_of_the_program_without_copies() -> None:
    graph, inputs = CASES["no pads"], arrays(CASES["no pads"])
    for plan in plans(graph)[::4]:
        result, _ = run(plan, inputs)
        other, _ = run(planned(graph, replace(plan.schedule, cache_read=0)), inputs)
        np.testing.assert_array_equal(result, other)


def accesses(loop: Loop, tensor: str, times: int = 1) -> list[tuple[Access, int]]:
    """Loads of a tensor with how often each runs."""
    result = []
    for part in loop.body:
        if isinstance(part, Loop):
            result += accesses(part, tensor, times * part.count)
        elif isinstance(part, Access) and part.tensor == tensor and not part.store:
            result.append((part, times))
    return result


def loads_of(schedule: Schedule, tensor: str) -> int:
    graph = convolution(56, 32, 64)
    plan = planned(graph, schedule)
    counter = OpCounter({"b": 1}, graph.types)
    emit(plan, counter)
    return sum(times * access.lanes for access, times in accesses(counter.top, tensor))


def test_copied_operands_are_read_once_a_tile_and_pads_with_masks() -> None:
    item = Schedule(lane_axis=1, lanes=16, unroll=4, rows=4, tiles=(14, 1, 0))
    copied = replace(item, cache_read=BOTH_OPERANDS)
    assert loads_of(copied, "w") == 64 * 32 * 9, "every weight once"
    assert loads_of(item, "w") == 56 * 14 * 64 * 32 * 9, "once a block of rows"
    assert loads_of(copied, "x") == 56 * 32 * 3 * 64, "three rows of the image in whole vectors, for each row of the output"
    assert loads_of(item, "x") == 56 * 56 * 32 * 9, "once a point and term"


def test_a_product_is_computed_on_tiles_whose_rows_are_of_another_operand() -> None:
    plan = planned(convolution(56, 64, 64), Schedule(lane_axis=3, lanes=16, unroll=4, rows=4, tiles=(4, 1, 0)))
    assert [str(extent) for _, extent in plan.loops] == ["b", "56", "64", "56"], "rows are filters: images are used again"


def test_copies_are_of_known_size_and_fit() -> None:
    g = GraphBuilder()
    open_terms = g.finish(g.add("contract", g.input("x", (M, B)), g.input("w", (B, 8)), labels="mk,kn->mn"))
    with pytest.raises(UsageError, match="no box of a known size"):
        planned(open_terms, Schedule(lane_axis=1, lanes=4, unroll=1, tiles=(1, 1, 0), cache_read=COLUMNS))
    assert all(hole.name != CACHE_READ for hole in Space(open_terms, 4).holes)
    large = convolution(8, 512, 512)
    with pytest.raises(UsageError, match="smaller tiles"):
        planned(large, Schedule(lane_axis=1, lanes=16, unroll=4, tiles=(1, 1, 0), cache_read=COLUMNS))
    space = Space(large, 16)
    reads = [planned(large, space.schedule(point)).reads for point in space.points[::501]]
    assert any(reads) and MOST_FLOATS < 512 * 9 * 64
    with pytest.raises(UsageError, match="no operand that could be copied"):
        builder = GraphBuilder()
        x = builder.input("x", (M, 8))
        gram = builder.finish(builder.add("contract", x, x, labels="mk,nk->mn"))
        planned(gram, Schedule(lane_axis=1, lanes=4, unroll=1, tiles=(1, 1, 0), cache_read=COLUMNS))


def test_what_is_copied_is_not_written_over() -> None:
    g = GraphBuilder()
    x, w = g.input("x", (8, 8)), g.input("w", (8, 8))
    graph = g.finish(g.add("contract", x, w, labels="mk,kn->mn"))
    item = Schedule(lane_axis=1, lanes=4, unroll=1, rows=2, tiles=(4, 2, 0))
    for bits in (0, COLUMNS, ROWS, BOTH_OPERANDS):
        assert in_place(planned(graph, replace(item, cache_read=bits))) == ()


def test_points_of_copies_are_planned() -> None:
    space, rng = Space(CASES["convolution"], 4), np.random.default_rng(0)
    for point in [space.drawn(rng) for _ in range(40)]:
        planned(space.graph, space.schedule(point))
    assert {space.schedule(point).cache_read for point in space.points} == {0, COLUMNS, ROWS, BOTH_OPERANDS}
    assert all(hole.name != CACHE_READ for hole in replace(space, copies=False).holes)
