"""Numbers as a dtype stores them: data of other types are drawn as fp32 that the dtype holds exactly. Needs numpy only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.contender import Array
from haotuner.ops.dtypes import DTYPES

HIGH = 16  # bf16 is the upper half of an fp32


def rounded(values: Array, dtype: str) -> Array:
    """The nearest numbers of the dtype, ties to even, as fp32. ValueError for a dtype that is not raced."""
    return decoded(encoded(values, dtype), dtype)


def encoded(values: Array, dtype: str) -> NDArray[Any]:
    """Values as the dtype stores them: float32, float16, int8, uint8, or the bits of bf16 as uint16. Finite values only."""
    if dtype == "bf16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        even = (bits >> np.uint32(HIGH)) & np.uint32(1)
        return ((bits + np.uint32(0x7FFF) + even) >> np.uint32(HIGH)).astype(np.uint16)
    if dtype == "int32":
        return np.ascontiguousarray(values, np.int32)
    if dtype in ("int8", "uint8"):
        element_type = DTYPES[dtype]
        return np.clip(np.rint(values), element_type.low, element_type.high).astype(element_type.numpy)
    if dtype not in ("fp32", "fp16"):
        raise ValueError(f"{dtype} is not raced; fp32, fp16, bf16, int8 and uint8 are")
    return np.ascontiguousarray(values, DTYPES[dtype].numpy)


def decoded(stored: NDArray[Any], dtype: str) -> Array:
    """Values of what `encoded` made, as fp32."""
    if dtype == "bf16":
        return (stored.astype(np.uint32) << np.uint32(HIGH)).view(np.float32)
    return np.asarray(stored, np.float32)
