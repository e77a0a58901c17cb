"""Models with branches, against the reference: each side by what the data or the sizes say, in turn, by one model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackInvalid, UsageError
from haotuner.graph.extents import dimension, largest, smallest
from haotuner.graph.graph import Graph, GraphBuilder, Required
from haotuner.graph.interpret import interpret
from haotuner.partition.dim_ranges import shape_constraints, spans_of, unmet
from haotuner.partition.segments import branches, counts, cut, data_dimensions
from tests.runtime.model_packs import model_pack

B, EITHER, COUNT = dimension("batch"), dimension("either_0"), dimension("count_0")
DRAW = np.random.default_rng(0)
WEIGHT = DRAW.standard_normal((8, 8)).astype(np.float32)


def product(g: GraphBuilder, x: str) -> str:
    return g.add("contract", x, g.constant(WEIGHT), labels="ab,bc->ac")


def branch(
    g: GraphBuilder, condition: str | Any, then: Any, other: Any, shape: tuple[Any, ...], axis_extents: Any = ()
) -> str:
    """What ``then`` or ``other`` makes; a condition is a tensor or an extent."""
    name = f"branch_{sum(node.primitive == 'decided' for node in g.nodes)}"
    if isinstance(condition, str):
        flag = g.add("decided", condition, branch=name)
    else:
        flag = g.add("decided", extent=condition, branch=name)
    outer, sides = g.guard, []
    for value, side in ((1, then), (0, other)):
        g.guard = (*outer, (name, value))
        sides.append(side())
    g.guard = outer
    return g.add("chosen", flag, *sides, branch=name, shape=shape, told=axis_extents)


def above(g: GraphBuilder, x: str, limit: float = 0.0) -> str:
    return g.map("greater", g.add("reduce", x, axes=(0, 1), how="sum", keepdims=False), limit)


def of_data() -> Graph:
    """A layer, or the input itself, and what both share before and behind."""
    g = GraphBuilder()
    x = g.input("x", (B, 8))
    y = product(g, x)
    chosen = branch(g, above(g, x), lambda: g.map("add", product(g, y), y), lambda: x, (B, 8))
    return g.finish(g.map("mul", chosen, 2.0), y, chosen)


def impossible() -> Graph:
    """Below four rows one side has sizes under 0; the other is served all the same. Extents of both differ."""
    g = GraphBuilder()
    x, flag = g.input("x", (B, 8)), g.input("flag", (), "int64")

    def fewer() -> str:
        return product(g, g.add("slice", x, axes=(0,), starts=(0,), stops=(B - 4,), steps=(1,)))

    chosen = branch(g, g.map("equal", flag, 7), fewer, lambda: product(g, x), (EITHER, 8), ((0, EITHER),))
    return g.finish(g.map("add", chosen, 1.0), g.add("size", extent=EITHER))


def nested() -> Graph:
    """Four ways through two branches, one of which counts rows of the data; the outer one is a matter of sizes."""
    g = GraphBuilder()
    x = g.input("x", (B, 8))

    def chosen_rows() -> str:
        first = g.add("reshape", g.add("slice", x, axes=(1,), starts=(0,), stops=(1,), steps=(1,)), shape=(B,))
        rows = g.add("nonzero", g.map("greater", first, 0.0), extent=COUNT)
        gathered = g.add("gather", x, g.add("reshape", rows, shape=(COUNT,)), axis=0)
        return g.add("reduce", product(g, gathered), axes=(0,), how="sum", keepdims=True)

    def inner() -> str:
        y = product(g, x)
        means = lambda: g.add("reduce", y, axes=(0,), how="max", keepdims=True)  # noqa: E731
        return branch(g, above(g, y), chosen_rows, means, (1, 8))

    def constant() -> str:
        return g.add("broadcast", g.constant(WEIGHT[:1]), shape=(1, 8))

    few = smallest([1, largest([0, 4 - B])])  # 1 below four rows
    return g.finish(branch(g, few, constant, inner, (1, 8)))


def some_only() -> Graph:
    """Requests that are not served: of one row, and on one side of a branch of more than nine."""
    g = GraphBuilder()
    x, flag = g.input("x", (B, 8)), g.input("flag", (), "bool")
    g.required.append(Required(largest([0, B - 1]), "batch is 1"))
    g.required.append(Required(largest([0, 10 - B]), "batch is above 9", (("branch_0", 1),)))
    return g.finish(branch(g, flag, lambda: product(g, x), lambda: x, (B, 8)))


def plain_some() -> Graph:
    """The same of a model in one piece."""
    g = GraphBuilder()
    x = g.input("x", (B, 8))
    g.required.append(Required(largest([0, B - 1]), "batch is 1"))
    return g.finish(product(g, x))


GRAPHS = {
    "of_data": of_data(),
    "impossible": impossible(),
    "nested": nested(),
    "some_only": some_only(),
    "plain": plain_some(),
}


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    path = model_pack(tmp_path_factory.mktemp("branches") / "pack", GRAPHS)
    with haotuner.load(path, threads=2) as opened:
        yield opened


def rows(count: int, sign: float) -> Any:
    return np.abs(DRAW.standard_normal((count, 8))).astype(np.float32) * np.float32(sign)


def agree(model: Any, graph: Graph, inputs: dict[str, Any]) -> None:
    expected = interpret(graph, inputs)
    for outputs in (
        model.run(inputs),
        model.bound._walked(inputs, None, None, lambda segment, own, placed: segment.run(own, placed)),
    ):
        assert list(outputs) == list(graph.outputs)
        for name, reference in expected.items():
            np.testing.assert_allclose(outputs[name], reference, rtol=3e-4, atol=3e-4)
            assert outputs[name].dtype == reference.dtype


def test_both_sides_in_turn(pack):
    model = pack.model("of_data")
    for count, sign in ((3, 1), (3, -1), (5, -1), (1, 1), (5, 1), (3, -1)):
        agree(model, GRAPHS["of_data"], {"x": rows(count, sign)})
    x = rows(3, 1)
    last = GRAPHS["of_data"].outputs[2]
    out = {last: np.empty((3, 8), np.float32)}
    assert model.run({"x": x}, out=out)[last] is out[last]
    np.testing.assert_allclose(out[last], interpret(GRAPHS["of_data"], {"x": x})[last], rtol=3e-4, atol=3e-4)


def test_a_side_that_is_not_taken_may_have_impossible_sizes(pack):
    model, graph = pack.model("impossible"), GRAPHS["impossible"]
    for count, flag in ((6, 7), (2, 3), (6, 3), (4, 7)):
        agree(model, graph, {"x": rows(count, 1), "flag": np.int64(flag)})
    with pytest.raises(UsageError, match="takes no such request"):
        model.run({"x": rows(2, 1), "flag": np.int64(7)})
    assert model.memory_bytes(batch=2, either_0=2, branch_0=0) > 0
    with pytest.raises(UsageError, match="takes no such request"):
        model.memory_bytes(batch=2, either_0=2, branch_0=1)


def test_branches_inside_branches(pack):
    for count, sign in ((2, 1), (5, 1), (5, -1), (3, -1), (9, 1)):
        agree(pack.model("nested"), GRAPHS["nested"], {"x": rows(count, sign)})
    assert branches(GRAPHS["nested"]) == ("branch_0", "branch_1") and data_dimensions(GRAPHS["nested"]) == ("count_0",)


def test_requests_that_are_not_served(pack):
    model, graph = pack.model("some_only"), GRAPHS["some_only"]
    for count, flag in ((2, True), (9, True), (20, False)):
        agree(model, graph, {"x": rows(count, 1), "flag": np.bool_(flag)})
    for name, inputs, words in (
        ("some_only", {"x": rows(10, 1), "flag": np.bool_(True)}, "some_only: batch is above 9"),
        ("some_only", {"x": rows(1, 1), "flag": np.bool_(False)}, "some_only: batch is 1"),
        ("plain", {"x": rows(1, 1)}, "plain: batch is 1"),
    ):
        with pytest.raises(UsageError, match=words):
            pack.model(name).run(inputs)
        with pytest.raises(UsageError, match=words.split(": ")[1]):
            interpret(GRAPHS[name], inputs)
    with pytest.raises(UsageError, match="plain: batch is 1"):
        pack.model("plain").schedule.values({"batch": 1})


def test_only_segments_that_ran_are_counted(pack):
    model = pack.model("of_data")
    before = {name: segment.stats()["calls"] for name, segment in model.segments.items()}
    model.run({"x": rows(600, -1)})  # out of the tuned range
    ran = {name for name, segment in model.segments.items() if segment.stats()["calls"] > before[name]}
    assert len(ran) == len(model.segments) - 1
    assert {name for name, segment in model.segments.items() if segment.stats()["out_of_range"]} == ran


def test_the_sides_are_segments_of_their_own_and_their_sizes_follow():
    graph = GRAPHS["impossible"]
    guards = [segment.guard for segment in cut(graph) if segment.graph is not None]
    assert guards.count((("branch_0", 1),)) == 1 and guards.count((("branch_0", 0),)) == 1
    assert dict(counts(graph, {"batch": 9})) == {"either_0": 9}
    assert str(spans_of(graph, "batch=4..9")["either_0"]) == "1..9"
    with pytest.raises(UsageError, match="which side of a branch makes"):
        spans_of(nested_count(), "batch=4..9")


def nested_count() -> Graph:
    """An extent that two sides differ in, of which one is a number of the data."""
    g = GraphBuilder()
    x, flag, long = g.input("x", (B, 8)), g.input("flag", (), "bool"), g.input("long", (1,), "int64")

    def as_long() -> str:
        g.add("counted", long, place=0, extent=dimension("length_0"))
        return g.add("broadcast", g.constant(WEIGHT[:1]), shape=(dimension("length_0"), 8))

    return g.finish(branch(g, flag, as_long, lambda: x, (EITHER, 8), ((0, EITHER),)))


def test_a_condition_of_several_elements_is_refused():
    g = GraphBuilder()
    x, flags = g.input("x", (B, 8)), g.input("flags", (dimension("many"),), "bool")
    graph = g.finish(branch(g, flags, lambda: product(g, x), lambda: x, (B, 8)))
    with pytest.raises(UsageError, match="the condition of a branch has 2 elements"):
        interpret(graph, {"x": rows(2, 1), "flags": np.ones(2, bool)})
    with pytest.raises(PackInvalid, match="is not a model's chain"):
        damaged = b'{"chain": [{"do": "when"}], "name": "a", "dims": [], "inputs": [], "outputs": []}'
        haotuner.runtime.chain_bound.ChainBound(None, damaged, "a", lambda name: None)


def test_a_reflection_needs_as_many_elements():
    g = GraphBuilder()
    graph = g.finish(g.add("pad", g.input("x", (B, dimension("n"))), before=(0, 4), after=(0, 6), mode="reflect", value=0.0))
    assert unmet(shape_constraints(graph), {"batch": 1, "n": 6}) and not unmet(
        shape_constraints(graph), {"batch": 1, "n": 7}
    )
