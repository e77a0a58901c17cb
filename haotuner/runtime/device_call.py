"""Calls on a device: streams, operands of a framework, what is refused, and queueing in a stream's order.

Stream on which a call is queued: the current one of the tensor's framework, never silently the legacy stream.

``op`` is the name that begins every message.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from haotuner.errors import HaotunerError, UsageError
from haotuner.pack.op import PackOp
from haotuner.runtime.call import REFUSED, check_lazy

LEGACY = 1  # CU_STREAM_LEGACY: what 0 means, in the words of DLPack, where 0 is ambiguous


@dataclass(frozen=True, slots=True)
class Kind:
    """Facts of all tensors of a class."""

    plain: bool  # the library takes them as they are, without a hand-over in the order of a stream
    gives: bool  # it can ask their framework for an output
    lazy: bool  # torch's: they may be lazy negations, or want gradients


def _look_at(kind: type) -> Kind:
    library, exchange = kind.__module__.partition(".")[0], hasattr(kind, "__dlpack_c_exchange_api__")
    plain = exchange or library in ("torch", "tvm_ffi") or not hasattr(kind, "__dlpack__")
    return Kind(plain, exchange, hasattr(kind, "is_neg"))


kind_of: Callable[[type], Kind] = lru_cache(maxsize=64)(_look_at)  # once a class: it is on the path of every call


class NoCurrentStream(ValueError):
    """A tensor whose framework has no current stream that could be asked for."""


def stream_of(x: Any) -> int | None:
    """The current stream of x's framework on x's device; None where the library is told by tvm-ffi, or refuses x anyway.

    Raises Unclear for tensors of a device that nobody knows a stream of.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _torch_stream(torch, x)
    kind = type(x)
    if _tells_stream(kind) or not hasattr(x, "__dlpack_device__"):
        return None
    if int(x.__dlpack_device__()[0]) == 1:  # the CPU: refused by the library, in its words
        return None
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        return int(cupy.cuda.get_current_stream(x.device.id).ptr)
    stream = _protocol_stream(x)
    if stream:
        return stream
    library = kind.__module__.partition(".")[0]
    raise NoCurrentStream(
        f"a {library} {kind.__name__} does not say its current stream: pass stream=, a handle that x is ready on "
        "(0: the legacy stream), or call under tvm_ffi.use_raw_stream"
    )


def still(x: Any, stream: int | None) -> Any:
    """Pass x as the library takes it: as it is, or handed over by DLPack so that it is ready on ``stream``.

    Asked without a stream, a framework would make the legacy stream wait, which ends a capture.
    """
    if stream is None or kind_of(type(x)).plain:
        return x
    return _Handed(x, stream) if hasattr(x, "__dlpack_device__") else x


class _Handed:
    """DLPack's producer protocol with a stream: tvm-ffi's own call names none."""

    __slots__ = ("_stream", "_x")

    def __init__(self, x: Any, stream: int) -> None:
        self._x, self._stream = x, stream or LEGACY

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()

    def __dlpack__(self, **requested: Any) -> Any:
        on_cpu = int(self._x.__dlpack_device__()[0]) == 1
        return self._x.__dlpack__(**(requested if on_cpu else requested | {"stream": self._stream}))


def _torch_stream(torch: Any, x: Any) -> int | None:
    index = x.get_device()
    if index < 0:
        return None
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(torch.cuda.current_stream(index).cuda_stream) if raw is None else int(raw(index))


def _tells_stream(kind: type) -> bool:
    """True if tvm-ffi asks the class itself, through DLPack's exchange table (torch's is asked by us, see above)."""
    return hasattr(kind, "__dlpack_c_exchange_api__") and kind.__module__.partition(".")[0] != "tvm_ffi"


def _protocol_stream(x: Any) -> int:
    import tvm_ffi

    device = x.__dlpack_device__()
    return int(tvm_ffi.get_raw_stream(tvm_ffi.Device(int(device[0]), int(device[1]))))


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


class DeviceCall(NamedTuple):
    """A function of a pack's library with what it is passed at every call.

    Layers and products are ``call(first operands[, record], outs, setting, stream, further operands)``, every other op is
    ``call(setting, stream, operands, outs)``.
    """

    name: str
    call: Any
    setting: int
    first: int  # operands before the output; 0: the setting comes first and the outputs last
    record: tuple[Any, ...] = ()  # what the library worked out for a bound weight

    @staticmethod
    def of(op: PackOp, call: Any, setting: int, record: Any = None) -> DeviceCall:
        """The call of an op with a setting; ``record`` of one whose weight is bound."""
        bound = () if record is None else (record,)
        optional = any(operand.optional for operand in op.operands)
        return DeviceCall(op.name, call, setting, 1 if bound else len(op.inputs) if optional else 0, bound)

    def run(self, inputs: Mapping[str, Any], outs: Mapping[str, Any], stream: int | None) -> Any:
        """Queue one call; gives the output that the library made in the place of None.

        TypeError, ValueError or RuntimeError name the operand or the driver's error, and what to do.
        """
        try:
            values, written = [_still(item, stream) for item in inputs.values()], [still(y, stream) for y in outs.values()]
            return self._queue(values, written, stream)
        except REFUSED as error:
            names = list(inputs)
            ordered = {name: inputs[name] for name in names[: self.first]} | dict(outs) | dict(inputs)
            raise explained(self.name, error, ordered) from error

    def _queue(self, values: Sequence[Any], outs: Sequence[Any], stream: int | None) -> Any:
        if self.first:
            first, behind = values[: self.first], values[self.first :]
            return self.call(*first, *self.record, *outs, self.setting, stream, *behind)
        return self.call(self.setting, stream, *values, *outs)


def checked_stream(op: str, inputs: Mapping[str, Any], stream: int | None) -> int | None:
    """The stream that is given, or the current one of the first operand's framework.

    ValueError where that does not say one, or where an operand is a lazy negation or wants a gradient.
    """
    for name, value in inputs.items():
        check_lazy(op, name, value)
    return stream_for(op, next(iter(inputs.values()))) if stream is None else stream


def _still(value: Any, stream: int | None) -> Any:
    """An operand that may be left out, or be a number in memory of the host."""
    number = isinstance(value, np.ndarray) and value.ndim == 0
    return value if value is None or number else still(value, stream)
