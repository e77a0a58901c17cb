"""Dimensions whose names are arithmetic, as torch.export writes them, and ranges that ``--shapes`` says of them."""

from __future__ import annotations

from typing import Any

import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.types import dimension_name, multiple_of
from haotuner.partition.dim_ranges import ranges_of, spans_of
from haotuner.spec.shape import Span

NAMES = {
    "batch": "batch", "batch-size": "batch_size", "unk__12": "unk__12", "8*h8": "_8_times_h8", "s + 1": "s_plus_1",
    "s - 1": "s_minus_1", "s//2": "s_over_2", "((s//2)) + 1": "s_over_2_plus_1", "s0*s1": "s0_times_s1", "?": "", "12": "",
    "Slice 12 dim 0": "Slice_12_dim_0",
}  # fmt: skip


@pytest.mark.parametrize("text", NAMES)
def test_a_text_has_an_identifier(text: str) -> None:
    assert dimension_name(text) == NAMES[text]


def test_one_step_of_arithmetic_follows_from_the_name_inside():
    assert multiple_of("_8_times_h8", "h8") == (8, 0)
    assert multiple_of("s_plus_1", "s") == (1, 1)
    assert multiple_of("s_minus_2", "s") == (1, -2)
    assert multiple_of("_3_plus_s", "s") == (1, 3)
    for dimension, name in (("_8_times_h8", "h"), ("s_over_2_plus_1", "s"), ("_9_minus_s", "s"), ("s0_times_s1", "s0")):
        assert multiple_of(dimension, name) is None


def graph(shapes: str, **inputs: list[Any]) -> Any:
    onnx = pytest.importorskip("onnx")
    from tests.frontends.test_importing import model

    nodes = [onnx.helper.make_node("Sum", list(inputs), ["y"])]
    return graph_of(model(nodes, inputs, ["y"]), None, {}, lambda graph_inputs: ranges_of(graph_inputs, shapes))


@pytest.mark.parametrize(
    "shapes", ["b=1..2;8*h8=8..64:8", "b=1..2;h8=1..8", "x=1..2x3x8..64:8", "b=1..2;_8_times_h8=8..64:8"]
)
def test_a_multiple_is_said_in_each_way(shapes: str) -> None:
    spans = spans_of(graph(shapes, x=["b", 3, "8*h8"]), shapes)
    assert spans == {"b": Span(first=1, last=2), "_8_times_h8": Span(first=8, last=64, step=8)}


def test_summands_move_a_range_and_sizes_begin_at_1():
    shapes = "s=1..8;t=2,5"
    spans = spans_of(graph(shapes, x=["s - 1", "t + 1"]), shapes)
    assert spans == {"s_minus_1": Span(first=1, last=7), "t_plus_1": Span(first=3, last=6, listed=(3, 6))}


def test_what_is_said_of_the_dimension_itself_counts():
    shapes = "s=1..8;s + 1=3..4"
    assert spans_of(graph(shapes, x=["s", "s + 1"]), shapes)["s_plus_1"] == Span(first=3, last=4)


def test_the_same_text_is_the_same_dimension_and_another_one_is_not():
    shapes = "s=1..8;t=1..9"
    assert set(graph(shapes, x=["s + 1"], z=["s + 1"]).dimensions) == {"s_plus_1"}
    assert set(graph(shapes, x=["s + 1", "s - 1"]).dimensions) == {"s_plus_1", "s_minus_1"}


def test_of_two_dimensions_that_must_be_equal_one_range_is_enough():
    for shapes in ("s10=1..8", "s86=1..8"):
        spans = spans_of(graph(shapes, x=["s10", 4], z=["s86", 4]), shapes)
        assert spans == {"s10": Span(first=1, last=8), "s86": Span(first=1, last=8)}


def test_a_name_that_is_nowhere_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match="the model has the dimensions _8_times_h8 and .* there is no 'h'"):
        spans_of(graph("h=1..8", x=["8*h8"]), "h=1..8")
