"""Nodes that compute a real number of sizes: each function of ``typed_extents.py`` by the primitive that it stands for."""

from __future__ import annotations

from typing import Any

import sympy

from haotuner.frontends.onnx.typed_numbers import is_number, is_whole
from haotuner.graph.extents import canonical
from haotuner.graph.graph import GraphBuilder
from haotuner.graph.typed_extents import Typed

WIDE = "fp64"  # of steps: functions that round to a narrower type are casts


def real_scalar(g: GraphBuilder, value: Any, dtype: str) -> str:
    """A scalar of a float type: an extent, an exact fraction, or a function of real numbers."""
    if is_whole(value):
        return GraphBuilder.add(g, "size", extent=canonical(value), dtype=dtype)
    if is_number(value):
        return g.constant(float(value), dtype)
    if not isinstance(value, Typed):
        above, below = sympy.fraction(sympy.together(value))
        if below == 1:  # sympy cannot show of every extent that it is whole, such as what a long floor division leaves
            return GraphBuilder.add(g, "size", extent=canonical(value), dtype=dtype)
        parts = [real_scalar(g, item, dtype) for item in (above, below)]
        return GraphBuilder.add(g, "map", *parts, function="div")
    return _cast(g, _step(g, value), dtype)


def _step(g: GraphBuilder, value: Typed) -> str:
    function = type(value).__name__
    if function == "real":
        return real_scalar(g, value.args[0], WIDE)
    parts = [real_scalar(g, argument, WIDE) for argument in value.args]
    if function.startswith("to_"):
        return _cast(g, _cast(g, parts[0], function.removeprefix("to_")), WIDE)
    return GraphBuilder.add(g, "map", *parts, function=function.removeprefix("real_"))


def _cast(g: GraphBuilder, tensor: str, dtype: str) -> str:
    return tensor if g.types[tensor].dtype == dtype else GraphBuilder.add(g, "cast", tensor, dtype=dtype)
