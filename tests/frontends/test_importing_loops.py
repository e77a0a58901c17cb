"""Loop and Scan as they are read: what is written out, what is computed before a loop, how many turns, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, Node
from haotuner.graph.interpret import interpret
from haotuner.partition.tasks import calls_of, model_task

pytest.importorskip("onnx")
from tests.frontends.onnx_loops import BOOL, FLOAT, GRAPHS, INT, WEIGHT, body, helper, info, number, read  # noqa: E402, after the skip


def node(op: str, *ends: list[str], **attributes: Any) -> Any:
    return helper.make_node(op, ends[0], ends[1], **attributes)


def loops(graph: Graph) -> list[Node]:
    return [graph_node for graph_node in graph.nodes if graph_node.primitive == "loop"]


def repeated(turns: Any, nodes: list[Any], outputs: list[str], more_inputs: Any = None) -> Graph:
    """A Loop of ``turns`` (None: an input says how many) that carries ``state``, x at first."""
    inner = body(nodes, [("turn", [], INT), ("go", [], BOOL), ("state", None, FLOAT)], outputs)
    first = [] if turns is None else [number("n", np.int64(turns))]
    names = [f"out{index}" for index in range(len(outputs) - 1)]
    inputs = [info("x", ["rows", 4]), *([info("n", [], INT)] if turns is None else []), *(more_inputs or [])]
    return read([*first, node("Loop", ["n", "", "x"], names, body=inner, name="again")], inputs, names)


DOUBLED = [node("Add", ["state", "state"], ["next"]), node("Identity", ["go"], ["more"])]


def test_few_turns_are_written_out():
    graph = repeated(3, DOUBLED, ["more", "next", "next"])
    assert not loops(graph)
    x = np.ones((2, 4), np.float32)
    outputs = interpret(graph, {"x": x})
    assert np.array_equal(outputs["out0"], 8 * x)
    assert np.array_equal(outputs["out1"], np.stack([2 * x, 4 * x, 8 * x]))


def test_values_that_grow_are_read_whether_or_not_the_turns_are_written_out():
    grown = [node("Concat", ["state", "state"], ["next"], axis=0), node("Identity", ["go"], ["more"])]
    assert interpret(repeated(2, grown, ["more", "next"]), {"x": np.ones((1, 4), np.float32)})["out0"].shape == (4, 4)
    assert [str(extent) for extent in repeated(None, grown, ["more", "next"]).types["out0"].shape] == ["grown_0", "4"]
    longer = [node("Unsqueeze", ["state", "zeros"], ["next"]), node("Identity", ["go"], ["more"])]
    longer.insert(0, node("Constant", [], ["zeros"], value_ints=[0]))
    with pytest.raises(UsageError, match=r"again \(Loop\): 'next' is fp32\[rows, 4\] before .* fp32\[1, rows, 4\]"):
        repeated(None, longer, ["more", "next"])


@pytest.mark.parametrize("turns", [0, -1, 1000])
def test_no_turn_and_many_are_a_loop(turns):
    graph = repeated(turns, DOUBLED, ["more", "next", "next"])
    assert len(loops(graph)) == 1
    x = np.zeros((2, 4), np.float32)
    assert interpret(graph, {"x": x})["out1"].shape == (max(turns, 0), 2, 4)


def test_a_limit_that_is_data_makes_a_dimension():
    graph = repeated(None, DOUBLED, ["more", "next", "next"])
    assert str(graph.types["out1"].shape[0]) == "turns_0"
    for turns in (-2, 0, 3):
        outputs = interpret(graph, {"x": np.ones((2, 4), np.float32), "n": np.array(turns)})
        assert outputs["out1"].shape == (max(turns, 0), 2, 4)
        assert outputs["out0"][0, 0] == 2.0 ** max(turns, 0)


def test_what_no_turn_changes_is_computed_before():
    shared = [node("Exp", ["y"], ["same"]), node("Add", ["state", "same"], ["next"]), node("Identity", ["go"], ["more"])]
    graph = repeated(100, shared, ["more", "next"], [info("y", [4])])
    (loop,) = loops(graph)
    inside = [graph_node.attributes.get("function") for graph_node in loop.attributes["body"].graph.nodes]
    assert inside == ["add"]
    assert "exp" in [graph_node.attributes.get("function") for graph_node in graph.nodes]


def test_a_counter_below_a_limit_tells_the_turns():
    graph = GRAPHS["tensorflow"]()
    (loop,) = loops(graph)
    assert loop.attributes["turns"] == dimension("seq")
    assert len(loop.attributes["body"].carried) == 2  # the counter and the state; its limit is the same in all turns
    assert graph.types["joined"].shape[0] == dimension("seq")


def test_a_scan_backwards_along_another_axis():
    graph = GRAPHS["scanned"]()
    assert list(map(str, graph.types["every"].shape)) == ["batch", "seq", "8"]
    x, h = np.zeros((1, 2, 8), np.float32), np.zeros((1, 8), np.float32)
    x[0, 1] = 1  # the first row that it sees
    outputs = interpret(graph, {"h": h, "x": x, "shift": np.zeros(8, np.float32)})
    assert np.allclose(outputs["every"][0, 1], np.tanh(1.0))
    assert np.array_equal(outputs["every"][0, 0], outputs["last"][0])


RANDOM = [node("RandomNormalLike", ["state"], ["next"]), node("Identity", ["go"], ["more"])]
BAD = {
    "random": (RANDOM, ["more", "next"], "random numbers in the body"),
    "few": (DOUBLED, ["more"], "gives 0 of 1 carried values"),
    "type": ([*DOUBLED, node("Cast", ["next"], ["whole"], to=INT)], ["more", "whole"], r"'whole' is fp32\[rows, 4\] before"),
    "lost": (DOUBLED, ["more", "nowhere"], "'nowhere' is made by no node"),
    "ever": (DOUBLED, ["more", "next"], "never ends"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_a_loop_cannot_be_is_said(name):
    nodes, outputs, words = BAD[name]
    with pytest.raises(UsageError, match=rf"\(Loop\).*{words}"):
        if name == "ever":
            inner = body(nodes, [("turn", [], INT), ("go", [], BOOL), ("state", None, FLOAT)], outputs)
            read([node("Loop", ["", "", "x"], ["y"], body=inner, name="again")], [info("x", ["rows", 4])], ["y"])
        else:
            repeated(None, nodes, outputs)


def test_loops_that_nest_without_end_are_refused():
    inner = body(DOUBLED, [("turn", [], INT), ("go", [], BOOL), ("state", None, FLOAT)], ["more", "next"])
    for _ in range(20):
        nodes = [node("Loop", ["turn", "", "state"], ["next"], body=inner), node("Identity", ["go"], ["more"])]
        inner = body(nodes, [("turn", [], INT), ("go", [], BOOL), ("state", None, FLOAT)], ["more", "next"])
    with pytest.raises(UsageError, match="nested more than 16 deep"):
        read([node("Loop", ["n", "", "x"], ["y"], body=inner)], [info("x", ["rows", 4]), info("n", [], INT)], ["y"])


@pytest.mark.parametrize("form", ["gather", "scan"])
def test_products_of_rows_are_one_of_the_sequence(form):
    layer = [
        node("Tanh", ["row"], ["bent"]),
        node("Cast", ["bent"], ["same"], to=FLOAT),
        node("MatMul", ["same", "w"], ["of_row"]),
        node("MatMul", ["state", "w"], ["of_state"]),
        node("Add", ["of_row", "of_state"], ["sum"]),
        node("Tanh", ["sum"], ["next"]),
        node("Mul", ["next", "row"], ["out"]),
    ]
    inputs = [info("x", ["seq", "batch", 8]), info("h", ["batch", 8])]
    if form == "scan":
        inner = body(layer, [("state", None, FLOAT), ("row", None, FLOAT)], ["next", "out"])
        graph = read([node("Scan", ["h", "x"], ["last", "all"], body=inner, num_scan_inputs=1)], inputs, ["last", "all"])
    else:
        layer = [node("Gather", ["x", "turn"], ["row"], axis=0), *layer, node("Identity", ["go"], ["more"])]
        inner = body(layer, [("turn", [], INT), ("go", [], BOOL), ("state", None, FLOAT)], ["more", "next", "out"])
        before = [number("none", np.int64(0)), node("Shape", ["x"], ["s"]), node("Gather", ["s", "none"], ["n"])]
        graph = read([*before, node("Loop", ["n", "", "h"], ["last", "all"], body=inner)], inputs, ["last", "all"])
    (loop,) = loops(graph)
    inside = loop.attributes["body"]
    assert [graph_node.primitive for graph_node in inside.graph.nodes if graph_node.primitive != "map"] == ["contract"]
    assert len(inside.rows) == 2  # the product's, and what multiplies the result
    assert [graph.types[graph_node.output].rank for graph_node in graph.nodes if graph_node.primitive == "contract"] == [3]
    draw = np.random.default_rng(1)
    x, h = draw.standard_normal((5, 3, 8)).astype(np.float32), draw.standard_normal((3, 8)).astype(np.float32)
    outputs, state, rows = interpret(graph, {"x": x, "h": h}), h, []
    for row in x:
        state = np.tanh(np.tanh(row) @ WEIGHT + state @ WEIGHT)
        rows.append(state * row)
    assert np.allclose(outputs["last"], state, atol=1e-5)
    assert np.allclose(outputs["all"], np.stack(rows), atol=1e-5)


def test_products_of_a_turn_count_as_often_as_it_runs():
    task = model_task("m", GRAPHS["scanned"](), "batch=2;seq=10", Path("m.onnx"))
    ((name, calls),) = calls_of(task).items()
    assert name.startswith("dense_n8_k8")
    assert list(calls.values()) == [10.0]


def test_rows_whose_length_each_turn_tells_are_refused():
    nodes = [node("NonZero", ["state"], ["places"]), node("Identity", ["go"], ["more"]), node("Neg", ["state"], ["next"])]
    with pytest.raises(UsageError, match=r"\(Loop\): a turn makes .*count_0.* of a size that its data tell"):
        repeated(None, nodes, ["more", "next", "places"])


def test_loops_in_loops_are_written_out_up_to_a_bound():
    inner = body(DOUBLED, [("turn", [], INT), ("go", [], BOOL), ("state", None, FLOAT)], ["more", "next"])
    for _ in range(5):
        nodes = [node("Loop", ["n", "", "state"], ["next"], body=inner), node("Identity", ["go"], ["more"])]
        inner = body(nodes, [("turn", [], INT), ("go", [], BOOL), ("state", None, FLOAT)], ["more", "next"])
    graph = read(
        [number("n", np.int64(16)), node("Loop", ["n", "", "x"], ["y"], body=inner)], [info("x", ["rows", 4])], ["y"]
    )
    assert 16 <= len(loops(graph)) < 300


def test_a_loop_that_carries_nothing():
    inner = body(
        [node("Add", ["x", "x"], ["row"]), node("Identity", ["go"], ["more"])],
        [("t", [], INT), ("go", [], BOOL)],
        ["more", "row"],
    )
    graph = read([node("Loop", ["n", ""], ["y"], body=inner)], [info("x", ["rows", 4]), info("n", [], INT)], ["y"])
    output = interpret(graph, {"x": np.ones((2, 4), np.float32), "n": np.array(3)})["y"]
    assert np.array_equal(output, np.full((3, 2, 4), 2))


def test_a_first_state_of_zeros_for_each_of_a_batch_is_no_weight():
    layer = [
        node("MatMul", ["state", "w"], ["mixed"]),
        node("Tanh", ["mixed"], ["next"]),
        node("Identity", ["go"], ["more"]),
    ]
    inner = body(layer, [("turn", [], INT), ("go", [], BOOL), ("state", None, FLOAT)], ["more", "next"])
    before = [number("n", np.int64(2)), node("Shape", ["x"], ["s"]), node("Expand", ["zero", "s"], ["h"])]
    nodes = [number("zero", np.ones((1, 8), np.float32)), *before, node("Loop", ["n", "", "h"], ["y"], body=inner)]
    output = interpret(read(nodes, [info("x", ["rows", 8])], ["y"]), {"x": np.zeros((2, 8), np.float32)})["y"]
    assert np.allclose(output, np.tanh(np.tanh(np.ones((2, 8)) @ WEIGHT) @ WEIGHT), atol=1e-5)
