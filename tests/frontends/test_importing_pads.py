"""Pads of an ONNX file that no tensor can have: negative ones that take off more than there is, and absurd ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from haotuner.partition.costs import Prices
from haotuner.partition.dim_ranges import demands, unmet

onnx = pytest.importorskip("onnx")
from haotuner.frontends.onnx.read import graph_of  # noqa: E402, after the skip


def padded(*pads: int, shape: tuple[Any, ...] = ("b", "h")) -> Graph:
    """``Pad`` of the last axis by two numbers, and ``exp`` of it."""
    info, half = onnx.helper.make_tensor_value_info, len(shape) - 1
    initializer = onnx.numpy_helper.from_array(np.array([*[0] * half, pads[0], *[0] * half, pads[1]], np.int64), "p")
    nodes = [onnx.helper.make_node("Pad", ["x", "p"], ["m"]), onnx.helper.make_node("Exp", ["m"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", [info("x", 1, list(shape))], [info("y", 1, None)], [initializer])
    return graph_of(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), None, {})


@pytest.mark.parametrize("pads", [(-10, 0), (0, -10), (-4, -6), (-10, 3)])
def test_requests_from_which_negative_pads_take_more_than_there_is_are_refused(pads: tuple[int, int]) -> None:
    graph = padded(*pads)
    assert [requirement.words for requirement in graph.required] == [
        "the model's negative pads take 10 elements off an axis of h; send a larger request"
    ]
    assert unmet(demands(graph), {"b": 1, "h": 9}) and not unmet(demands(graph), {"b": 1, "h": 10})
    x = np.ones((1, 12), np.float32)
    before, after = (max(0, pad) for pad in pads)
    cut = x[:, max(0, -pads[0]) : 12 + min(0, pads[1])]
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"], np.exp(np.pad(cut, [(0, 0), (before, after)])), rtol=1e-6)


def test_negative_pads_that_always_leave_elements_ask_nothing() -> None:
    assert not padded(-2, -3, shape=("b", 5)).required


def test_requests_of_negative_extents_cost_nothing() -> None:
    graph = padded(-10, 0)
    prices = Prices([{"b": 1, "h": 1}, {"b": 1, "h": 30}])
    assert prices._size(graph.types["y"].shape[1], 0) == 0
    assert prices._size(graph.types["y"].shape[1], 1) == 20


@pytest.mark.parametrize(
    ("pads", "shape", "words"),
    [
        ((-10, 0), ("b", 5), "negative pads take 10 elements off an axis of 5; correct the model's pads"),
        ((1 << 60, 0), ("b", "h"), "at any request; correct the model's sizes"),
        ((0, 1 << 62), ("b", "h"), "at any request; correct the model's sizes"),
        ((1 << 41, 0), ("b", 5), "more than"),
    ],
)
def test_pads_that_no_tensor_can_have_are_refused_when_the_file_is_read(pads: Any, shape: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        padded(*pads, shape=shape)
