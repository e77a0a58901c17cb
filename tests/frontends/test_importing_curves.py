"""The angle of a point, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from haotuner.frontends.onnx import special_functions
from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.graph.extents import dimension
from haotuner.graph.interpret import interpret


def computed(curve: Any, *inputs: Any) -> Any:
    g = ConstantFolding()
    dtype = {"f4": "fp32", "f8": "fp64", "f2": "fp16"}[inputs[0].dtype.str[1:]]
    names = [g.input(f"x{index}", (dimension("n"),), dtype) for index in range(len(inputs))]
    return interpret(g.finish(curve(g, *names)), dict(zip(names, inputs, strict=True))).popitem()[1]


def test_the_angle_of_a_point_is_right_in_every_quarter() -> None:
    points = [(y, x) for y in (-2.0, -1e-20, 0.0, 0.3, 5.0) for x in (-3.0, -1e-9, 0.0, 0.2, 7.0)]
    y, x = (np.array(coordinates, np.float32) for coordinates in zip(*points, strict=True))
    np.testing.assert_allclose(computed(special_functions.atan2, y, x), np.arctan2(y, x), rtol=8e-7)
