"""Messages for calls that tvm-ffi could not pass on: which argument, what was found, what to pass instead."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

REFUSED = (BufferError, TypeError, ValueError, RuntimeError)  # what tvm-ffi and a pack's library raise


def explain(op: str, inputs: Mapping[str, tuple[Any, str]], error: Exception) -> Exception:
    """A clear TypeError or ValueError for a call of ``op`` that failed with ``error``; ``error`` itself if it is clear.

    ``inputs``: of each operand the value and the expected dtype; the output is the last one.
    """
    for index, (name, (value, dtype)) in enumerate(inputs.items()):
        result = _argument(op, name, value, dtype, written=index == len(inputs) - 1)
        if result is not None:
            return result
    return error


def refuse_grad(op: str, name: str) -> None:
    """ValueError for an operand that requires grad, unless the caller has told torch to record none."""
    if sys.modules["torch"].is_grad_enabled():
        raise ValueError(f"{op}: {name} requires grad; a pack only infers: call it under torch.inference_mode()")


def check_lazy(op: str, name: str, value: Any) -> None:
    """Refuse what DLPack would hand out wrongly: lazy negations of torch, and tensors whose gradient is wanted."""
    negated = getattr(value, "is_neg", None)
    if negated is None:
        return
    if negated():  # DLPack hands out the numbers without the sign
        raise ValueError(f"{op}: {name} is a lazy negation; pass {name}.resolve_neg()")
    if value.requires_grad:
        refuse_grad(op, name)


def check_written(op: str, out: Any) -> None:
    """Refuse an output that requires grad, as torch does: what is written there has no gradient."""
    if getattr(out, "requires_grad", False):
        refuse_grad(op, "out")


def read_only(value: Any, dtype: str | None = None) -> bool:
    """True if an operand is right but read-only: DLPack has no such tensors, so the call gets a copy."""
    if not isinstance(value, np.ndarray) or value.flags.writeable:
        return False
    return value.dtype.isnative and dtype in (None, value.dtype.name)


def _argument(op: str, name: str, value: Any, dtype: str, *, written: bool) -> Exception | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.dtype != getattr(torch, dtype):
            return TypeError(f"{op}: {name} has dtype {value.dtype}; expected {dtype}")
        if value.device.type != "cpu":
            return ValueError(f"{op}: {name} lives on {value.device}; this pack computes on the CPU: copy it there first")
        if value.layout != torch.strided:
            return ValueError(f"{op}: {name} has layout {value.layout}; expected a strided tensor: pass {name}.to_dense()")
        if value.is_conj() or value.is_neg():
            return ValueError(f"{op}: {name} is a lazy conjugate or negation; pass {name}.resolve_neg()")
        return None
    if isinstance(value, np.ndarray):
        if value.dtype.name != dtype or not value.dtype.isnative:
            return TypeError(f"{op}: {name} has dtype {value.dtype}; expected {dtype} in native byte order")
        if written and not value.flags.writeable:
            return ValueError(f"{op}: {name} is read-only; pass an array that may be written")
        return None
    if not hasattr(value, "__dlpack__"):
        return TypeError(
            f"{op}: {name} is a {type(value).__name__}; pass a numpy array, a torch tensor or another DLPack tensor"
        )
    return None
