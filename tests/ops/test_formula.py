"""Formulas: arithmetic and reductions over named axes, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.ops.formula import Apply, Formula, Load, Number, Reduce, evaluate, reductions

X, TOP = Load("x"), Reduce("max", "n", Load("x"))
POWER = Apply("exp", (Apply("sub", (X, TOP)),))
SOFTMAX = Apply("div", (POWER, Reduce("sum", "n", POWER)))


def test_a_row_sum_is_numpys():
    x = np.random.default_rng(0).standard_normal((3, 5))
    result = evaluate(Reduce("sum", "n", X), {"x": x}, {"x": ("m", "n")}, ("m",))
    np.testing.assert_allclose(result, x.sum(axis=1), rtol=1e-15)


def test_nested_reductions_make_a_softmax_that_is_safe():
    x = np.random.default_rng(0).standard_normal((3, 5)) + 1000.0
    result = evaluate(SOFTMAX, {"x": x}, {"x": ("m", "n")}, ("m", "n"))
    exponentials = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(result, exponentials / exponentials.sum(1, keepdims=True), rtol=1e-14)
    assert reductions(SOFTMAX) == (TOP, Reduce("sum", "n", POWER))


@pytest.mark.parametrize("stored", [("b", "m", "n"), ("n", "b", "m")])
def test_axes_are_matched_by_name_and_broadcast(stored):
    rng = np.random.default_rng(0)
    x, scale = rng.standard_normal((2, 3, 5)), rng.standard_normal(5)
    formula: Formula = Apply("mul", (Apply("add", (X, Number(1.0))), Load("scale")))
    transposed = x.transpose([("b", "m", "n").index(axis) for axis in stored])
    result = evaluate(formula, {"x": transposed, "scale": scale}, {"x": stored, "scale": ("n",)}, ("m", "b", "n"))
    np.testing.assert_allclose(result, ((x + 1) * scale).transpose(1, 0, 2))


def test_what_does_not_vary_along_an_axis_fills_it():
    result = evaluate(Reduce("sum", "n", X), {"x": np.ones((2, 3))}, {"x": ("m", "n")}, ("m", "n"))
    assert result.tolist() == [[3.0] * 3] * 2
