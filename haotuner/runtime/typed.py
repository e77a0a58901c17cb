"""Arrays of types that numpy may not have: bfloat16 is taken from torch, from numpy with ml_dtypes, or as bits in uint16."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp

_BITS = "uint16"  # of bfloat16 in arrays of a numpy that knows none
FLOATS = frozenset({"float32"})
_KNOWN = {name: np.dtype(kind.numpy) for name, kind in DTYPES.items() if hasattr(np, kind.numpy)}


def empty_like(x: Any, size: tuple[int, ...], dtype: str) -> Any:
    """A new array of a type: of x's own where that stands for it, and of x's library where that takes DLPack."""
    if isinstance(x, np.ndarray):
        own = dtype == "bf16" and x.dtype.name in ("bfloat16", _BITS)
        return np.empty(size, x.dtype if own else numpy_type(dtype))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.new_empty(size, dtype=getattr(torch, DTYPES[dtype].numpy))
    result = np.empty(size, numpy_type(dtype))
    same = getattr(sys.modules.get(type(x).__module__.partition(".")[0]), "from_dlpack", None)
    return same(as_bits(result)) if callable(same) else result


def numpy_type(name: str) -> np.dtype[Any]:
    """Numpy's type of a dtype; of bf16 the one of ml_dtypes, or 16 bits where that is not installed."""
    if name in _KNOWN:
        return _KNOWN[name]
    element_type = DTYPES[name].numpy
    try:
        importlib.import_module("ml_dtypes")
    except ImportError:
        return np.dtype(_BITS)
    return np.dtype(element_type)


def channel_values(op: PackOp, name: str, value: Any, count: int) -> Any:
    """A float32 copy of one value a channel: an array of float32 or of the op's type (count,), or one number.

    TypeError for another type, ValueError for another shape or device.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return np.full(count, value, np.float32)
    plain = "terms" not in op.operands[1].packed and op.operands[1].dtype == "fp32"
    allowed = FLOATS if plain else (FLOATS | {DTYPES[op.operands[0].dtype].numpy}) - {"uint8", "int8"}
    row = typed_array(op, name, value, allowed)
    if row.shape not in ((count,), (), (1,)):
        raise ValueError(f"{op.name}: {name} has shape {tuple(row.shape)}; expected ({count},)")
    result = _widened(row) if row.dtype == _BITS else row.astype(np.float32)
    return result if row.shape == (count,) else np.full(count, result.item(), np.float32)


def _widened(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def typed_array(op: PackOp, name: str, value: Any, allowed: AbstractSet[str]) -> Any:
    """As a numpy array, bfloat16 as its bits. TypeError for another type, ValueError for another device."""
    torch, result = sys.modules.get("torch"), value
    if torch is not None and isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise ValueError(f"{op.name}: {name} is on {value.device}; this pack computes on the CPU: pass {name}.cpu()")
        result = value.detach()
        if value.dtype == torch.bfloat16 and "bfloat16" in allowed:
            return result.view(torch.int16).numpy().view(_BITS)
        if str(value.dtype).removeprefix("torch.") in allowed:
            result = result.numpy()
    elif not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        result = np.from_dlpack(value)
    dtype = getattr(result, "dtype", None)
    if not isinstance(result, np.ndarray) or not result.dtype.isnative or result.dtype.name not in _taken_names(allowed):
        text = "a float32 array" if allowed == FLOATS else " or ".join(sorted(allowed))
        raise TypeError(f"{op.name}: {name} is {dtype or type(value).__name__}; expected {text} of native byte order")
    return as_bits(result)


def _taken_names(allowed: AbstractSet[str]) -> AbstractSet[str]:
    return allowed | ({_BITS} if "bfloat16" in allowed else set())


def taken(value: Any, text: str) -> str:
    """The type that an array is held against: bits stand for bfloat16."""
    return _BITS if text == "bfloat16" and isinstance(value, np.ndarray) and value.dtype == _BITS else text


def as_bits(value: Any) -> Any:
    """View that DLPack can pass on: numpy has no bfloat16 of its own."""
    return value.view(_BITS) if isinstance(value, np.ndarray) and value.dtype.kind == "V" else value
