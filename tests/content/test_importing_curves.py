"""Arcs, hyperbolic functions and logarithms near 1 against numpy in double precision, tiny and large numbers among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.frontends.onnx import curves
from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.graph.extents import dimension
from haotuner.graph.interpret import interpret

EVERYWHERE = np.concatenate([10.0 ** np.arange(-30, 31, 0.37), [0, 0.2499, 0.2501, 0.66, 2.4142, np.inf]])
INSIDE = np.concatenate([10.0 ** np.arange(-30, 0, 0.29), np.linspace(0, 1, 77)])
BOTH, UNIT = (np.concatenate([-one, one, [np.nan]]) for one in (EVERYWHERE, INSIDE))
CURVES: dict[str, tuple[Any, Any]] = {
    "atan": (np.arctan, BOTH),
    "asin": (np.arcsin, UNIT),
    "acos": (np.arccos, UNIT),
    "sinh": (np.sinh, BOTH),
    "cosh": (np.cosh, BOTH),
    "asinh": (np.arcsinh, BOTH),
    "acosh": (np.arccosh, 1 + EVERYWHERE),
    "atanh": (np.arctanh, UNIT),
    "log1p": (np.log1p, np.concatenate([UNIT, EVERYWHERE])),
    "expm1": (np.expm1, BOTH),
}


def computed(curve: Any, *inputs: Any) -> Any:
    g = ConstantFolding()
    dtype = {"f4": "fp32", "f8": "fp64", "f2": "fp16"}[inputs[0].dtype.str[1:]]
    names = [g.input(f"x{place}", (dimension("n"),), dtype) for place in range(len(inputs))]
    return interpret(g.finish(curve(g, *names)), dict(zip(names, inputs, strict=True))).popitem()[1]


@pytest.mark.parametrize("kind, tolerance", [("f4", 8e-7), ("f8", 2e-15), ("f2", 1e-3)])
@pytest.mark.parametrize("name", CURVES)
def test_a_curve_keeps_its_digits(name: str, kind: str, tolerance: float) -> None:
    reference, given = CURVES[name]
    with np.errstate(all="ignore"):
        x = given.astype(kind)
        expected = reference(x.astype(np.float64))
        least = float(np.finfo(kind).tiny)
        np.testing.assert_allclose(
            computed(getattr(curves, name), x), expected.astype(kind), rtol=tolerance, atol=least, equal_nan=True
        )


def test_the_angle_of_a_point_is_right_in_every_quarter() -> None:
    points = [(y, x) for y in (-2.0, -1e-20, 0.0, 0.3, 5.0) for x in (-3.0, -1e-9, 0.0, 0.2, 7.0)]
    y, x = (np.array(one, np.float32) for one in zip(*points, strict=True))
    np.testing.assert_allclose(computed(curves.atan2, y, x), np.arctan2(y, x), rtol=8e-7)
