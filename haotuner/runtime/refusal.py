"""Words for calls that tvm-ffi could not pass on: which argument, what was found, what to pass instead."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def explain(op: str, x: Any, out: Any, error: Exception) -> Exception:
    """A clear TypeError or ValueError for a call of ``op`` that failed with ``error``; ``error`` itself if it is clear."""
    for name, value in (("x", x), ("out", out)):
        found = _argument(op, name, value)
        if found is not None:
            return found
    return error


def must_copy(x: Any) -> bool:
    """Whether x is right but read-only: DLPack has no such tensors, so the call gets a copy."""
    return isinstance(x, np.ndarray) and not x.flags.writeable and x.dtype == np.float32 and x.dtype.isnative


def _argument(op: str, name: str, value: Any) -> Exception | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.dtype != torch.float32:
            return TypeError(f"{op}: {name} has dtype {value.dtype}; expected float32")
        if value.device.type != "cpu":
            return ValueError(f"{op}: {name} lives on {value.device}; this pack computes on the CPU: copy it there first")
        if value.layout != torch.strided:
            return ValueError(f"{op}: {name} has layout {value.layout}; expected a strided tensor: pass {name}.to_dense()")
        if value.is_conj() or value.is_neg():
            return ValueError(f"{op}: {name} is a lazy conjugate or negation; pass {name}.resolve_neg()")
        return None
    if isinstance(value, np.ndarray):
        if value.dtype != np.float32 or not value.dtype.isnative:
            return TypeError(f"{op}: {name} has dtype {value.dtype}; expected float32 in native byte order")
        if name == "out" and not value.flags.writeable:
            return ValueError(f"{op}: out is read-only; pass an array that may be written")
        return None
    if not hasattr(value, "__dlpack__"):
        return TypeError(
            f"{op}: {name} is a {type(value).__name__}; pass a numpy array, a torch tensor or another DLPack tensor"
        )
    return None
