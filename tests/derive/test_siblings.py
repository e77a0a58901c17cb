"""Relatives of the published cases: uneven pads, windows of one row, groups, channels last, and the shapes of the bars."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from haotuner.derive.model import Derivation, Form
from haotuner.derive.plan_forms import unfit
from haotuner.derive.search import Limits
from haotuner.graph.extents import evaluate
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from tests.derive.test_graphs import H, N, W, drawn

PRODUCT_AND_SUM = {"summation splitting"}


def windowed(
    window: tuple[int, int],
    before: tuple[int, int],
    after: tuple[int, int],
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
    groups: int = 1,
    channels_last: bool = False,
    channels: int = 6,
    features: int = 4,
) -> Graph:
    """A convolution as the reader of models writes it, of any pads; of groups, or of an image with channels last."""
    g = GraphBuilder()
    x = g.input("x", (N, H, W, channels) if channels_last else (N, channels, H, W))
    first = 1 if channels_last else 2
    pads = [[0] * 4, [0] * 4]
    for side, widths in zip(pads, (before, after), strict=True):
        side[first : first + 2] = widths
    image = g.add("pad", x, before=tuple(pads[0]), after=tuple(pads[1]), mode="constant", value=0.0)
    sides: dict[str, Any] = {"sizes": window, "strides": strides, "dilations": dilations}
    if groups > 1:
        image = g.add("reshape", image, shape=(N, groups, channels // groups, *g.types[image].shape[2:]))
        sliding = g.add("window", image, axes=(3, 4), **sides)
        weight = g.constant(drawn((groups, features // groups, channels // groups, *window)))
        return g.finish(g.add("contract", sliding, weight, labels="bgcpquv,gfcuv->bgfpq"))
    sliding = g.add("window", image, axes=(first, first + 1), **sides)
    weight = g.constant(drawn((features, channels, *window)))
    labels = "bpqcuv,fcuv->bpqf" if channels_last else "bcpquv,fcuv->bfpq"
    return g.finish(g.add("contract", sliding, weight, labels=labels))


CASES = {
    "a row of 5": windowed((1, 5), (0, 2), (0, 2)),
    "a column of 3": windowed((3, 1), (1, 0), (1, 0)),
    "uneven pads": windowed((3, 3), (0, 2), (2, 1)),
    "without pads": windowed((3, 3), (0, 0), (0, 0)),
    "uneven windows, dilated in one direction": windowed((3, 5), (2, 2), (2, 2), dilations=(2, 1)),
    "channels last": windowed((3, 3), (1, 1), (1, 1), channels_last=True),
    "one feature, channels last": windowed((5, 5), (2, 2), (2, 2), channels_last=True, features=1),
    "an even window": windowed((2, 4), (1, 1), (0, 2)),
    "groups": windowed((3, 3), (1, 1), (1, 1), groups=2),
    "a stride, uneven pads": windowed((3, 3), (0, 0), (1, 1), strides=(2, 2)),
    "a stride in one direction": windowed((3, 3), (1, 1), (1, 1), strides=(2, 1)),
    "one channel": windowed((5, 5), (2, 2), (2, 2), channels=1, features=56),
}
STRIDED = {"a stride, uneven pads", "a stride in one direction"}


@lru_cache
def forms(name: str) -> tuple[str, tuple[Form, ...]]:
    graph = CASES[name]
    requests = [{"n": 1, "h": 7, "w": 7}, {"n": 2, "h": 14, "w": 30}]
    derivation = Derivation(graph, requests, Limits(explorative=2, seconds=30.0))
    (tensor,) = derivation.products()
    return tensor, derivation.forms_of(tensor).others


OFTEN = ("uneven pads", "channels last")


@pytest.mark.parametrize("name", [item if item in OFTEN else pytest.param(item, marks=pytest.mark.long) for item in CASES])
def test_a_relative_has_forms_with_its_numbers(name: str) -> None:
    graph, (tensor, others) = CASES[name], forms(name)
    assert others, "no form of it is a graph"
    if name not in STRIDED:
        assert any({rule for rule, _ in form.steps} >= PRODUCT_AND_SUM for form in others)
    assert any(not unfit(graph, (tensor,), form, set()) for form in others), "none is served"
    for size in ((1, 7, 7), (4, 7, 9), (2, 14, 12), (1, 8, 3), (0, 7, 7)):
        sizes = dict(zip("nhw", size, strict=True))
        shape = [evaluate(extent, sizes) for extent in graph.types["x"].shape]
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        (expected,) = interpret(graph, {"x": x}).values()
        for form in others:
            (answer,) = interpret(form.graph, {"x": x}).values()
            np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-4, err_msg=str(form.steps))


@pytest.mark.parametrize("size", [(1, 7, 7), (4, 7, 7), (1, 14, 14), (16, 14, 14), (1, 56, 56)])
def test_one_derivation_holds_for_every_size(size: tuple[int, int, int]) -> None:
    graph, (_, others) = CASES["a column of 3"], forms("a column of 3")
    shape = (size[0], 6, *size[1:])
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    (expected,) = interpret(graph, {"x": x}).values()
    (answer,) = interpret(others[0].graph, {"x": x}).values()
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-4)
