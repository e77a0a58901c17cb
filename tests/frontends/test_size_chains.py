"""Arithmetic on sizes, chain after chain, at all sizes of a range: numpy, ONNX, ONNX Runtime and the graph agree."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest

from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret
from haotuner.spec.shape import Span

onnx = pytest.importorskip("onnx")
from tests.frontends.size_chains import drawn, model_of  # noqa: E402, after the skip
from tests.frontends.test_importing import model  # noqa: E402

n = onnx.helper.make_node
LAST = 64
SIZES = range(1, LAST + 1)
SEED = 53


def ranges(inputs: Any, last: int = LAST) -> dict[str, Span]:
    return {"n": Span(first=1, last=last)}


def agree(count: int, seed: int, sizes: range) -> None:
    """All chains, computed in one model, are at each size what numpy made of them step by step."""
    draw = random.Random(seed)
    chains = [drawn(number, draw, sizes) for number in range(count)]
    graph = graph_of(model_of(chains), None, {}, lambda inputs: ranges(inputs, sizes[-1]))
    for index, size in enumerate(sizes):
        outputs = interpret(graph, {"x": np.zeros(size, np.float32)})
        for chain in chains:
            assert outputs[chain.out].shape == (size,)
            np.testing.assert_allclose(
                outputs[chain.out], chain.values[index], rtol=1e-6, err_msg=f"{chain.words} at {size}"
            )


def test_chains_are_computed_as_the_file_says():
    agree(24, SEED, SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_many_chains_are_computed_as_the_file_says(seed: int) -> None:
    agree(50, seed, range(1, 200 if seed % 4 == 0 else LAST))


def test_the_chains_values_are_those_of_onnx_and_onnx_runtime():
    draw = random.Random(SEED)
    chains = [drawn(number, draw, SIZES) for number in range(24)]
    reference = pytest.importorskip("onnx.reference").ReferenceEvaluator(model_of(chains))
    for size in (1, 2, 3, 7, 10, 26, LAST):
        for chain, output in zip(chains, reference.run(None, {"x": np.zeros(size, np.float32)}), strict=True):
            np.testing.assert_allclose(output, chain.values[size - 1], rtol=1e-6, err_msg=chain.words)
    runtime = pytest.importorskip("onnxruntime")
    common = [chain for chain in chains if chain.in_onnx_runtime]
    assert len(common) > 2
    session = runtime.InferenceSession(model_of(common).SerializeToString(), providers=["CPUExecutionProvider"])
    for size in SIZES:
        for chain, output in zip(common, session.run(None, {"x": np.zeros(size, np.float32)}), strict=True):
            np.testing.assert_allclose(output, chain.values[size - 1], rtol=1e-6, err_msg=chain.words)


REAL = [n("Shape", ["x"], ["s"]), n("Cast", ["s"], ["real"], to=onnx.TensorProto.FLOAT)]
PART = [n("Cast", ["part"], ["k"], to=onnx.TensorProto.INT64), n("Slice", ["x", "zero", "k"], ["y"])]
ZERO = {"zero": np.array([0])}
CROPPED = [n("Shape", ["x"], ["s"]), n("Sub", ["s", "eight"], ["less"]), n("Div", ["less", "two"], ["from"]),
           n("Add", ["from", "eight"], ["to"]), n("Slice", ["x", "from", "to"], ["y"])]  # fmt: skip
TENTHS = [
    *REAL,
    n("Squeeze", ["real"], ["one"]),
    n("Mul", ["one", "by"], ["stop"]),
    n("Range", ["zero", "stop", "by"], ["y"]),
]


def part_of(rounded: Any, by: float, size: int) -> Any:
    return rounded(np.float32(size) * np.float32(by))


LENGTHS: dict[str, Any] = {
    **{
        f"{how} of {by}": ([*REAL, n("Mul", ["real", "by"], ["product"]), n(how, ["product"], ["part"]), *PART],
                           {"by": np.array([by], np.float32), **ZERO},
                           partial(part_of, getattr(np, how.lower()), by))
        for how, by in (("Floor", 0.7), ("Floor", 1 / 3), ("Ceil", 0.1), ("Ceil", 0.3), ("Ceil", 0.6), ("Round", 0.35))
    },
    "cast of 0.7": ([*REAL, n("Mul", ["real", "by"], ["part"]), *PART], {"by": np.array([0.7], np.float32), **ZERO},
                    lambda size: np.float32(size) * np.float32(0.7)),
    "third": ([*REAL, n("Div", ["real", "by"], ["part"]), *PART], {"by": np.array([3], np.float32), **ZERO},
              lambda size: size // 3),
    "crop": (CROPPED, {"eight": np.array([8]), "two": np.array([2])},
             lambda size: len(range(size)[int((size - 8) / 2) : int((size - 8) / 2) + 8])),
    "range": (TENTHS, {"by": np.float32(0.1), "zero": np.float32(0)},
              lambda size: np.ceil(float(np.float32(size) * np.float32(0.1)) / float(np.float32(0.1)))),
}  # fmt: skip


@pytest.mark.parametrize("name", LENGTHS)
def test_a_length_is_what_the_file_computes(name: str) -> None:
    nodes, weights, expected_length = LENGTHS[name]
    graph = graph_of(model(nodes, {"x": ["n"]}, ["y"], weights), None, {}, ranges)
    assert set(graph.dimensions) == {"n"}
    assert not [node for node in graph.nodes if node.primitive == "counted"]  # no size is left to the data
    for size in SIZES:
        (length,) = interpret(graph, {"x": np.zeros(size, np.float32)})["y"].shape
        assert length == min(int(expected_length(size)), size) or name == "range" and length == int(expected_length(size)), (
            size
        )


def test_requests_for_which_a_proof_does_not_hold_are_refused():
    onnx_model = model(CROPPED, {"x": ["n"]}, ["y"], {"eight": np.array([8]), "two": np.array([2])})
    graph = graph_of(onnx_model, None, {}, lambda inputs: {"n": Span(first=16, last=64)})
    assert [requirement.words for requirement in graph.required] == [
        "this pack serves requests where (-8 + n) >= 0; tune with --shapes that hold others"
    ]
    assert interpret(graph, {"x": np.zeros(9, np.float32)})["y"].shape == (8,)


def test_values_of_sizes_that_are_no_whole_numbers_are_never_extents():
    nodes = [*REAL, n("Div", ["real", "by"], ["a"]), n("Sub", ["a", "half"], ["b"]), n("Abs", ["b"], ["c"]),
             n("Sub", ["one", "c"], ["d"]), n("Max", ["d", "zero"], ["e"]), n("Add", ["x", "e"], ["y"])]  # fmt: skip
    weights = {"by": 16, "half": 0.5, "one": 1, "zero": 0}
    graph = graph_of(model(nodes, {"x": ["n"]}, ["y"], {k: np.array([v], np.float32) for k, v in weights.items()}), None, {})
    for size in (1, 8, 20, 40):
        output = interpret(graph, {"x": np.zeros(size, np.float32)})["y"]
        np.testing.assert_allclose(output, max(0, 1 - abs(size / 16 - 0.5)))
