"""ONNX's sequences and optionals, whose lengths the file tells: against onnx's own reference; what is refused, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret

reference = pytest.importorskip("onnx.reference")
from tests.frontends.onnx_sequences import MODELS, feeds, info, model, n  # noqa: E402, after the skip


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "optional"])
def test_answers_are_those_of_the_reference(name: str, rows: int) -> None:
    whole = MODELS[name]()
    graph = graph_of(whole, None, {})
    for request in feeds(name, rows):
        expected = reference.ReferenceEvaluator(whole).run(None, request)
        outputs = interpret(graph, request)
        for output_name, value in zip(graph.outputs, expected, strict=True):
            assert outputs[output_name].shape == np.shape(value)
            np.testing.assert_allclose(outputs[output_name], value, rtol=1e-5)


def test_optionals() -> None:
    """Not judged by onnx's reference, which puts what an optional holds into a list."""
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    outputs = interpret(graph_of(MODELS["optional"](), None, {}), {"x": x})
    assert outputs["there"]
    np.testing.assert_array_equal(outputs["y"], np.concatenate([x, -x], axis=1))


def test_an_optional_may_hold_a_sequence() -> None:
    nodes = [n("SequenceConstruct", ["x", "x"], ["s"]), n("Optional", ["s"], ["o"]), n("OptionalGetElement", ["o"], ["t"])]
    graph = graph_of(model([*nodes, n("ConcatFromSequence", ["t"], ["y"], axis=1)], ["y"]), None, {})
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], np.concatenate([x, x], axis=1))


REFUSED: list[tuple[list[Any], str]] = [
    (
        [n("SplitToSequence", ["x", "two"], ["s"], axis=0), n("SequenceAt", ["s", "zero"], ["y"])],
        "parts of 2 of an axis of rows",
    ),
    ([n("SequenceConstruct", ["x", "x"], ["y"])], "output y is a sequence"),
    ([n("SequenceConstruct", ["x"], ["s"]), n("SequenceAt", ["s", "two"], ["y"])], "position 2 in a sequence of 1"),
    ([n("SequenceEmpty", [], ["s"]), n("ConcatFromSequence", ["s"], ["y"], axis=0)], "nothing says what its result is like"),
    ([n("SequenceConstruct", ["x"], ["s"]), n("Exp", ["s"], ["y"])], "input 0 is a sequence"),
    ([n("SequenceAt", ["x", "zero"], ["y"])], "input 0 is a tensor; expected a sequence"),
    ([n("SequenceConstruct", ["x", "two"], ["s"]), n("SequenceAt", ["s", "zero"], ["y"])], "have one element type"),
]


@pytest.mark.parametrize(("nodes", "words"), REFUSED)
def test_what_has_no_length_or_no_tensor_is_refused_in_words(nodes: list[Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        graph_of(model(nodes, ["y"]), None, {})


def test_a_sequence_that_a_loop_of_unknown_turns_makes_is_refused() -> None:
    whole = MODELS["carried"]()
    whole.graph.input.append(info("most", [], 7))
    (loop,) = (node for node in whole.graph.node if node.op_type == "Loop")
    loop.input[0] = "most"
    with pytest.raises(UsageError, match="carries a sequence, whose length must be known"):
        graph_of(whole, None, {})
