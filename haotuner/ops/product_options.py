"""Options that every product has: the element types of its result and, of bytes, of its input."""

from __future__ import annotations

from haotuner.ops.kind import Option

# The element type of the result: of floats the op's own, of int8 the sums' int32, unless another is asked for.
OUTPUT_TYPE = Option(default="own", choices=("own", "fp32", "bf16", "fp16", "int32", "int8", "uint8"), said=True)
# int8: bytes that come in have a sign, as the weight's do; of ops in int8 only.
INPUT_TYPE = Option(default="own", choices=("own", "int8"), said=True)

PRODUCT_OPTIONS = {"out": OUTPUT_TYPE, "in": INPUT_TYPE}
