"""Operands of a framework in calls on a device: their stream, what is refused, memory for the result.

``op`` is the name that begins every message.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from haotuner.errors import HaotunerError, UsageError
from haotuner.runtime.call_errors import REFUSED, check_lazy
from haotuner.runtime.streams import NoCurrentStream, stream_of


def stream_for(op: str, x: Any) -> int | None:
    """The current stream of x's framework; ValueError where it does not say one."""
    try:
        return stream_of(x)
    except NoCurrentStream as error:
        raise ValueError(f"{op}: {error}") from error


def check_inputs(op: str, inputs: Mapping[str, Any]) -> None:
    """UsageError for what DLPack would hand out wrongly."""
    for name, value in inputs.items():
        try:
            check_lazy(op, name, value)
        except ValueError as error:
            raise UsageError(str(error)) from error


def explicit_or_current_stream(op: str, x: Any, stream: int | None) -> int | None:
    """The stream that is given, or the current one of x's framework. UsageError where it does not say one."""
    try:
        return stream_for(op, x) if stream is None else stream
    except ValueError as error:
        raise UsageError(str(error)) from error


def called(op: str, function: Any, *inputs: Any) -> Any:
    """Result of a function of a pack's library. UsageError, or HaotunerError of the device, in its words."""
    try:
        return function(*inputs)
    except REFUSED as error:
        text = str(explained(op, error, {}))
        raise (HaotunerError if isinstance(error, RuntimeError) else UsageError)(text) from error


def empty_like(op: str, x: Any, size: tuple[int, ...], dtype: str = "") -> Any:
    """New memory of x's framework and device; ValueError where it has no way to be asked for it.

    ``dtype``: numpy's name of its type; empty: x's.
    """
    if hasattr(x, "new_empty"):
        return x.new_empty(size, dtype=getattr(sys.modules["torch"], dtype)) if dtype else x.new_empty(size)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        return cupy.empty(size, dtype=dtype or x.dtype)
    raise ValueError(f"{op}: no output can be made for a {type(x).__name__}; pass out=")


def explained(op: str, error: Exception, inputs: Mapping[str, Any]) -> Exception:
    """The error itself where the library raised it, whose words begin with the op; else what was not taken."""
    for name, value in inputs.items():
        if value is not None and not hasattr(value, "__dlpack__") and exchange_of(value) is None:
            return TypeError(f"{op}: {name} is a {type(value).__name__}; pass a tensor of the pack's device")
    return error if str(error).startswith(op) else type(error)(f"{op}: {error}")


def exchange_of(value: Any) -> Any:
    """The table by which its framework hands tensors over, or None."""
    return getattr(type(value), "__dlpack_c_exchange_api__", None)
