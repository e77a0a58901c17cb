"""Loops that carry values of changing sizes, against ONNX Runtime: the reader's graph, interpreted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.extents import shown
from haotuner.graph.interpret import interpret
from haotuner.partition.dim_ranges import spans_of
from haotuner.partition.segments import data_dimensions

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
from tests.frontends.onnx_growing import MODELS, SIZES, feeds, info, model, n  # noqa: E402, after the skip
from tests.frontends.onnx_growing import body as body_of  # noqa: E402, after the skip


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_onnx_runtime(name: str, size: int) -> None:
    """Not of onnx's own reference, which joins the rows of turns along their first axis."""
    whole, request = MODELS[name](), feeds(name, size)
    graph = graph_of(whole, None, {})
    outputs = interpret(graph, request)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(whole.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for output_name, value in zip(graph.outputs, session.run(None, request), strict=True):
        if value.size or outputs[output_name].size:
            assert outputs[output_name].shape == value.shape
        np.testing.assert_allclose(outputs[output_name].reshape(-1), value.reshape(-1), rtol=1e-4, atol=1e-5)


def test_what_grows_by_the_same_each_turn_has_a_size_that_follows_from_the_turns() -> None:
    graph = graph_of(MODELS["cached"](), None, {})
    assert [shown(extent) for extent in graph.types["values_end"].shape] == ["batch", "seq", "4"]
    spans = spans_of(graph, "batch=1..4;seq=1..9")
    assert {name: (span.first, span.last) for name, span in spans.items()} == {
        "batch": (1, 4), "seq": (1, 9), "carried_0": (1, 9),
    }  # fmt: skip
    graph = graph_of(MODELS["decoded"](), None, {})
    assert shown(graph.types["tokens_end"].shape[1]) == "(given + turns_0)"
    spans = spans_of(graph, "batch=1..4;given=1..5")
    assert (spans["turns_0"].last, spans["carried_0"].last) == (30, 35)


def test_what_grows_otherwise_has_a_size_that_the_turns_tell() -> None:
    graph = graph_of(MODELS["doubled"](), None, {})
    assert set(data_dimensions(graph)) == {"carried_0", "grown_0"}
    with pytest.raises(UsageError, match="grown_0 is what how large last, which a loop carries, is behind its last turn"):
        spans_of(graph, "rows=1..4")


def test_a_first_value_of_another_shape_has_its_turn_written_out() -> None:
    graph = graph_of(MODELS["widened"](), None, {})
    (loop,) = (node for node in graph.nodes if node.primitive == "loop")
    assert loop.attributes["body"].changing == ()
    assert [shown(extent) for extent in graph.types["y"].shape] == ["rows", "4"]


def carrying(node: Any, first: str = "x") -> Any:
    inner = body_of([node, n("Identity", ["go"], ["more"])], [info("state")], [info("more", [], 9), info("next")])
    return model(
        [n("Loop", ["count", "yes", first], ["y"], body=inner)], [info("x", ["rows", 4]), info("count", [], 7)], [info("y")]
    )


def test_what_changes_its_number_of_axes_or_is_kept_row_upon_row_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="keep their type and their number of axes"):
        graph_of(carrying(n("Unsqueeze", ["state", "ones"], ["next"])), None, {})
    whole = carrying(n("Concat", ["state", "x"], ["next"], axis=0))
    (inner,) = (attribute.g for attribute in whole.graph.node[0].attribute)
    inner.output.append(info("next"))
    whole.graph.node[0].output.append("rows_of_turns")
    with pytest.raises(UsageError, match="rows of one result are alike"):
        graph_of(whole, None, {})


def test_a_loop_that_never_ends_in_practice_is_refused() -> None:
    whole = carrying(n("Exp", ["state"], ["next"]))
    del whole.graph.input[1]
    whole.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1 << 62), "count"))
    with pytest.raises(UsageError, match="it makes 4611686018427387904 turns whatever the request is"):
        graph_of(whole, None, {})
