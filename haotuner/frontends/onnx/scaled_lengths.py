"""Lengths of scaled images: a length times a scale, multiplied and cut as ONNX Runtime and torch do in floating point.

The product is rounded before it is cut: 10 x 0.7 is 7 in float32, though the float32 next to 0.7 is less than 0.7.
"""

from __future__ import annotations

import numpy as np

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.graph.extents import Extent


def scaled_length(g: ConstantFolding, extent: Extent, scale: float | str, dtype: str) -> Extent:
    """The whole part of ``extent`` x ``scale`` in the arithmetic of ``dtype``, that of a scale which is a scalar tensor.

    Where only the request's data tell the scale, the length is a dimension of its own.
    """
    own = g.cast(g.of_extents(np.array(extent, object), "int64"), dtype)
    length = g.cast(g.map("floor", g.map("mul", own, scale)), "int64")
    return g.whole_numbers(length, "a scaled length")[0]
