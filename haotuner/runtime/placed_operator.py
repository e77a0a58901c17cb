"""An op of a pack on a device whose operands all come with the call, which is queued on the caller's stream."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from haotuner.errors import UsageError
from haotuner.pack.op import PackOp
from haotuner.runtime.operator import Operator
from haotuner.runtime.refusal import REFUSED
from haotuner.runtime.streams import Unclear, kind_of, still, stream_of

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


class PlacedOperator(Operator):
    """``y = op.run(a, b)`` or ``op.run(a, b, out=y, stream=…)``: torch, CuPy and other DLPack tensors of the pack's device.

    The call is one launch on the current stream of the first operand's framework, or on ``stream``; it returns without
    waiting. Safe while the stream is captured: nothing is loaded, allocated or waited for (without ``out`` the framework
    gives the memory). Concurrent calls are allowed.
    """

    def __init__(self, pack: Pack, op: PackOp) -> None:
        super().__init__(pack, op)

    def with_threads(self, threads: int) -> Operator:
        """UsageError: a device has no thread counts."""
        raise UsageError(f"{self.name}: threads={threads}: a device has no thread counts")

    def run(self, *operands: Any, out: Any = None, stream: int | None = None, **named: Any) -> Any:
        """The result, in ``out`` if that is given, else new and of the first operand's kind.

        TypeError, ValueError or RuntimeError name the operand or the driver's error, and what to do; PackClosed after the
        pack was closed.
        """
        if not self._pack.is_open:
            self._pack.library()
        given = self._given(operands, named)
        for name, value in given.items():
            self._check_lazy(name, value)
        if stream is None:
            try:
                stream = stream_of(next(iter(given.values())))
            except Unclear as error:
                raise ValueError(f"{self.name}: {error}") from error
        if out is None:
            out = self._empty(given)
        elif self._derived:
            self._fits(given, out)
        try:
            self._call(self._setting, stream, *(still(value, stream) for value in given.values()), still(out, stream))
        except REFUSED as error:
            for name, value in {**given, self.entry.output.name: out}.items():
                if not hasattr(value, "__dlpack__") and not hasattr(type(value), "__dlpack_c_exchange_api__"):
                    kind = type(value).__name__
                    raise TypeError(f"{self.name}: {name} is a {kind}; pass a tensor of the pack's device") from error
            raise error if str(error).startswith(self.name) else type(error)(f"{self.name}: {error}") from error
        return out

    def _check_lazy(self, name: str, value: Any) -> None:
        """Refuse what DLPack would hand out wrongly: lazy negations, and tensors whose gradient is wanted."""
        if not kind_of(type(value)).lazy:
            return
        if value.is_neg():
            raise ValueError(f"{self.name}: {name} is a lazy negation; pass {name}.resolve_neg()")
        if value.requires_grad and sys.modules["torch"].is_grad_enabled():
            raise ValueError(f"{self.name}: {name} requires grad; a pack only infers: call it under torch.inference_mode()")

    def _empty(self, given: Mapping[str, Any]) -> Any:
        size, first = self.output_shape(given), next(iter(given.values()))
        if hasattr(first, "new_empty"):
            return first.new_empty(size)
        cupy = sys.modules.get("cupy")
        if cupy is not None and isinstance(first, cupy.ndarray):
            return cupy.empty(size, dtype=first.dtype)
        raise ValueError(f"{self.name}: no output can be made for a {type(first).__name__}; pass out=")
