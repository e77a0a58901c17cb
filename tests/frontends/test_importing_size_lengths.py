"""Lengths that a model computes from sizes alone at run time: nobody has to say how large they may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret
from haotuner.partition.dim_ranges import ranges_of, spans_of
from haotuner.spec.shape import Span

onnx = pytest.importorskip("onnx")
from tests.frontends.test_importing import model  # noqa: E402, after the skip

n = onnx.helper.make_node
SIZE = n("Shape", ["x"], ["s"])
REAL = n("Cast", ["s"], ["real"], to=onnx.TensorProto.FLOAT)
WHOLE = n("Cast", ["part"], ["k"], to=onnx.TensorProto.INT64)
SHAPES = "n=1..40"

LENGTHS: dict[str, Any] = {  # nodes, constants, the length at a size
    "half of even ones": ([n("Mod", ["s", "two"], ["odd"]), n("Equal", ["odd", "zero"], ["even"]),
                           n("Div", ["s", "two"], ["half"]), n("Where", ["even", "half", "s"], ["k"])],
                          {"two": np.array([2])}, lambda size: size if size % 2 else size // 2),
    "remainder of a product": ([REAL, n("Mul", ["real", "by"], ["part"]), n("Cast", ["part"], ["whole"], to=7),
                                n("Mod", ["whole", "s"], ["k"])],
                               {"by": np.array([2.3], np.float32)},
                               lambda size: int(np.float32(size) * np.float32(2.3)) % size),
    "power": ([n("Div", ["s", "ten"], ["tens"]), n("Pow", ["two", "tens"], ["k"])],
              {"ten": np.array([10]), "two": np.array([2])}, lambda size: min(2 ** (size // 10), size)),
    "multiple of 8": ([n("BitwiseAnd", ["s", "bits"], ["k"])], {"bits": np.array([~7])}, lambda size: size & ~7),
    "running sum": ([n("Concat", ["s", "two"], ["both"], axis=0), n("CumSum", ["both", "first"], ["sums"]),
                     n("Gather", ["sums", "last"], ["sum"]), n("Div", ["sum", "two"], ["k"])],
                    {"two": np.array([2]), "first": np.array(0), "last": np.array([1])},
                    lambda size: min((size + 2) // 2, size)),
}  # fmt: skip


@pytest.mark.parametrize("name", LENGTHS)
def test_a_length_of_sizes_has_a_range_of_its_own(name: str) -> None:
    nodes, weights, expected_length = LENGTHS[name]
    onnx_model = model(
        [SIZE, *nodes, n("Slice", ["x", "zero", "k"], ["y"])], {"x": ["n"]}, ["y"], {"zero": np.array([0]), **weights}
    )
    graph = graph_of(onnx_model, None, {}, lambda inputs: ranges_of(inputs, SHAPES))
    (length,) = spans_of(graph, SHAPES).keys() - {"n"}
    span = spans_of(graph, SHAPES)[length]
    lengths = [interpret(graph, {"x": np.zeros(size, np.float32)})["y"].size for size in range(1, 41)]
    assert lengths == [expected_length(size) for size in range(1, 41)]
    assert span.first == max(1, min(lengths)) and max(lengths) <= span.last
    spans = spans_of(graph, f"{SHAPES};{length}=3..5")
    assert spans[length] == Span(first=3, last=5)


def test_a_length_that_the_data_tell_has_to_be_said():
    nodes = [SIZE, n("Cast", ["t"], ["one"], to=7), n("Mul", ["one", "s"], ["k"]), n("Expand", ["first", "k"], ["y"])]
    onnx_model = model(nodes, {"x": ["n"], "t": [1]}, ["y"], {"first": np.zeros(1, np.float32)})
    graph = graph_of(onnx_model, None, {}, lambda inputs: ranges_of(inputs, SHAPES))
    with pytest.raises(UsageError, match="length_0 depends on data"):
        spans_of(graph, SHAPES)
