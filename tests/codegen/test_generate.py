"""Programs of graphs, run by the counting machine: right for every schedule, inside their tensors, bytes as they must be."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from haotuner.codegen.access import Accesses
from haotuner.codegen.emit import AnyPlan
from haotuner.codegen.expressions import Apply, Load, Variable, arithmetic, index, parts
from haotuner.codegen.mixed_radix import MixedRadix, apart, merged
from haotuner.codegen.schedule import Schedule, keepable, planned
from haotuner.errors import UsageError
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension, evaluate
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from tests.codegen.interpreter import run

K, M, N = (dimension(name) for name in "kmn")


def group(build: Callable[..., str], *shapes: tuple[Any, ...], whole: tuple[int, ...] = ()) -> Graph:
    """The graph of inputs x0, x1, …; those in ``whole`` are whole numbers."""
    g = GraphBuilder()
    names = [
        g.input(f"x{position}", shape, "int64" if position in whole else "fp32") for position, shape in enumerate(shapes)
    ]
    return g.finish(build(g, *names))


def heads(g: GraphBuilder, x: str, y: str) -> str:
    apart = g.add("transpose", g.add("reshape", x, shape=(M, 4, K)), order=(1, 0, 2))
    return g.map("add", apart, y)


GROUPS = {
    "softmax": group(decompositions.softmax, (M, N)),
    "layer_norm": group(lambda g, x, r: decompositions.normalise(g, g.map("add", x, r), (1,), 1e-5), (M, N), (M, N)),
    "instance_norm": group(lambda g, x: g.map("max", decompositions.normalise(g, x, (2, 3), 1e-5), 0.0), (M, K, N, 3)),
    "bias_gelu": group(lambda g, x, b: decompositions.gelu(g, g.map("add", x, b)), (M, N), (N,)),
    "sum_last": group(lambda g, x: g.add("reduce", x, how="sum", axes=(1,)), (M, N)),
    "max_first": group(lambda g, x: g.add("reduce", x, how="max", axes=(0,)), (M, N)),
    "argmax": group(lambda g, x: g.add("arg_reduce", x, how="max", axis=1), (M, N)),
    "transpose_add": group(lambda g, x, y: g.map("add", g.add("transpose", x, order=(1, 0)), y), (M, N), (N, M)),
    "matmul": group(lambda g, a, b: g.add("contract", a, b, labels="mk,kn->mn"), (M, K), (K, N)),
    "pad": group(lambda g, x: g.add("pad", x, before=(0, 2), after=(1, 1), mode="constant", value=1.5), (M, N)),
    "reflect": group(lambda g, x: g.add("pad", x, before=(0, 1), after=(0, 1), mode="reflect"), (M, N)),
    "concat": group(lambda g, x, y: g.add("concat", x, y, axis=1), (M, N), (M, K)),
    "concat_many": group(lambda g, x, y: g.add("concat", x, y, y, x, y, x, x, axis=1), (M, N), (M, K)),
    "slice": group(lambda g, x: g.add("slice", x, axes=(1,), starts=(1,), stops=(N,), steps=(2,)), (M, N)),
    "reshape": group(lambda g, x: g.add("reshape", x, shape=(M * N,)), (M, N)),
    "heads": group(heads, (M, 4 * K), (K,)),
    "gather": group(lambda g, x, i: g.add("gather", x, i, axis=0), (M, N), (K,), whole=(1,)),
    "max_pool": group(
        lambda g, x: g.add(
            "reduce", g.add("window", x, axes=(1,), sizes=(2,), strides=(2,), dilations=(1,)), how="max", axes=(2,)
        ),
        (M, N),
    ),
    "attention": group(
        lambda g, q, k, v: decompositions.attention(g, q, k, v, 0.3), (M, 2, K, 4), (M, 2, N, 4), (M, 2, N, 4)
    ),
}
SIZES, SMALL = {"m": 3, "n": 7, "k": 4}, {"m": 2, "n": 5, "k": 2}


def drawn(graph: Graph, sizes: dict[str, int]) -> dict[str, Any]:
    rng, arrays = np.random.default_rng(0), {}
    for name in graph.inputs:
        shape = [evaluate(extent, sizes) for extent in graph.types[name].shape]
        whole = graph.types[name].dtype == "int64"
        arrays[name] = rng.integers(0, sizes["m"], shape) if whole else rng.standard_normal(shape).astype(np.float32)
    return arrays


def schedules(graph: Graph) -> list[Schedule]:
    candidates = []
    for axis in range(-1, graph.types[graph.outputs[0]].rank):
        for tensors in ((), *((name,) for name in keepable(graph))):
            candidates += [
                Schedule(lane_axis=axis, lanes=lanes, unroll=unroll, cached=tensors) for lanes, unroll in ((1, 1), (4, 2))
            ]
        candidates += [Schedule(lane_axis=axis, lanes=2, unroll=2, packed=packed, peeled=shared_loads)
                       for packed, shared_loads in ((2, False), (1, True), (2, True))]  # fmt: skip
    return candidates


@pytest.mark.long
@pytest.mark.parametrize("name", GROUPS)
def test_every_schedule_computes_the_graph(name: str) -> None:
    graph = GROUPS[name]
    inputs = drawn(graph, SMALL if name in ("attention", "instance_norm") else SIZES)
    expected = interpret(graph, inputs)[graph.outputs[0]]
    tried = 0
    for schedule in schedules(graph):
        try:
            plan = planned(graph, schedule)
        except UsageError as error:
            assert "cannot lie in the output's rows" in str(error)
            continue
        output, _ = run(plan, inputs)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5, err_msg=str(schedule))
        tried += 1
    assert tried >= 4


EMPTY = [("concat", "k"), ("concat", "n"), ("concat_many", "k"), ("concat_many", "n"), ("pad", "n")]


@pytest.mark.parametrize(("name", "empty"), EMPTY)
def test_what_is_empty_is_not_read(name: str, empty: str) -> None:
    graph = GROUPS[name]
    inputs = drawn(graph, SIZES | {empty: 0})
    expected = interpret(graph, inputs)[graph.outputs[0]]
    assert expected.size
    for schedule in schedules(graph):
        np.testing.assert_array_equal(run(planned(graph, schedule), inputs)[0], expected, err_msg=str(schedule))


def test_thousands_of_tensors_side_by_side_are_no_deep_expression() -> None:
    graph = group(lambda g, x: g.add("concat", *[x] * 3000, axis=0), (M, N))
    value = Accesses(graph, {}).computed(graph.outputs[0], (Variable("i"), Variable("j")))
    assert sum(isinstance(part, Load) for part in parts(value)) == 3000


def test_bytes_are_those_that_the_decisions_say() -> None:
    graph, size = GROUPS["softmax"], 4 * 3 * 7
    inputs = drawn(graph, SIZES)
    again = run(planned(graph, Schedule(lane_axis=1, lanes=4, unroll=1)), inputs)[1]
    assert (again.loaded, again.stored) == ({"x0": 3 * size}, {graph.outputs[0]: size})  # max, sum, result
    machine = run(planned(graph, Schedule(lane_axis=1, lanes=4, unroll=1, cached=keepable(graph))), inputs)[1]
    out = graph.outputs[0]
    assert (machine.loaded, machine.stored) == ({"x0": 2 * size, out: size}, {out: 2 * size})  # the powers lie in the output


def test_reductions_are_computed_where_their_variables_are_known() -> None:
    graph = GROUPS["instance_norm"]
    counted = run(planned(graph, Schedule(lane_axis=3, lanes=1, unroll=1)), drawn(graph, SIZES))[1]
    assert counted.loaded["x0"] == 3 * 4 * (3 * 4 * 7 * 3)  # mean, variance, result: once an image each


def test_reshapes_keep_axes_that_agree() -> None:
    i, j, k = Variable("i"), Variable("j"), Variable("k")
    assert MixedRadix().reshaped((M, N), (M, 1, N), (i, index(0), j)) == [i, j]
    assert MixedRadix().reshaped((M, 4 * K), (M, 4, K), (i, j, k))[0] == i


def test_reshapes_divide_only_what_they_cut() -> None:
    """Groups of channels: the channel alone is divided, and the way back finds every axis whole."""
    c, y, x, k = (Variable(name) for name in "cyxk")
    image, groups = (12, M, N), (4, 3 * M * N)
    digits = MixedRadix()
    group, inside = digits.reshaped(groups, image, (c, y, x))
    assert group == arithmetic("floordiv", c, index(3)) and arithmetic("mod", c, index(3)) in parts(inside)
    assert not any(isinstance(part, Apply) and part.function == "mod" and part.arguments[0] != c for part in parts(inside))
    assert digits.reshaped(image, groups, (group, inside)) == [c, y, x]
    assert apart(image, groups, 1) == [3, M, N] and apart(image, groups, 0) == [4]
    loose = digits.reshaped(image, groups, (c, k))  # one index over three axes is divided, but lies in memory as it is
    ((whole, extent),) = merged(list(zip(loose, image, strict=True)))
    assert extent == 12 * M * N and not {"mod", "floordiv"} & {
        part.function for part in parts(whole) if isinstance(part, Apply)
    }


@pytest.mark.parametrize(
    "before, after", [((6, 10), (4, 15)), ((4, 6, 5), (2, 12, 5)), ((2, 3, 4, 5), (6, 20)), ((7,), (7, 1))]
)
def test_reshapes_find_every_element(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    for position in np.ndindex(after):
        indices = MixedRadix().reshaped(before, after, [index(coordinate) for coordinate in position])
        assert indices == [
            index(coordinate) for coordinate in map(int, np.unravel_index(np.ravel_multi_index(position, after), before))
        ]


def test_what_has_no_program_is_told() -> None:
    g = GraphBuilder()
    graph = g.finish(g.map("add", g.input("x", (N,)), g.constant(np.zeros(3, np.float32))))
    with pytest.raises(UsageError, match="a group's constants are single numbers"):
        planned(graph, Schedule(lane_axis=0, lanes=1, unroll=1))
    with pytest.raises(UsageError, match="one tensor fits the output's rows"):
        planned(GROUPS["layer_norm"], Schedule(lane_axis=1, lanes=1, unroll=1, cached=keepable(GROUPS["layer_norm"])))


def left_to_the_collector(plan: AnyPlan, inputs: dict[str, Any]) -> int:
    """Objects that a run of a program leaves and only a collection of garbage finds."""
    run(plan, inputs)  # what is known from the first time on
    gc.collect()
    gc.disable()
    try:
        run(plan, inputs)
        return gc.collect()
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["layer_norm", "attention", "max_pool"])
def test_a_program_leaves_no_cycles(name):
    assert left_to_the_collector(planned(GROUPS[name], schedules(GROUPS[name])[1]), drawn(GROUPS[name], SIZES)) == 0
