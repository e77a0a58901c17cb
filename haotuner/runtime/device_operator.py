"""An op of a pack on a device whose operands all come with the call, which is queued on the caller's stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from haotuner.errors import UsageError
from haotuner.pack.op import PackOp
from haotuner.runtime.call_errors import REFUSED
from haotuner.runtime.on_device import check_lazy, empty_like, explained, stream_for
from haotuner.runtime.operator import Operator
from haotuner.runtime.streams import still

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


class DeviceOperator(Operator):
    """``y = op.run(a, b)`` or ``op.run(a, b, out=y, stream=…)``: torch, CuPy and other DLPack tensors of the pack's device.

    The call is one launch (two where blocks share a fold) on the current stream of the first operand's framework, or on
    ``stream``; it returns without waiting. Safe while the stream is captured: nothing is loaded, allocated or waited for
    (without ``out``, and for parts of a fold, the framework gives the memory). Concurrent calls are allowed.
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
        inputs, stream = self._asked(operands, named, stream)
        if out is None:
            out = self._empty(inputs)
        else:
            check_lazy(self.name, "out", out)
            if self._derived:
                self._fits(inputs, out)
        try:
            self._call(self._setting, stream, *(still(value, stream) for value in inputs.values()), still(out, stream))
        except REFUSED as error:
            raise explained(self.name, error, {**inputs, "out": out}) from error
        return out

    def prepare(self, stream: int | None = None) -> None:
        """Have memory ready for calls on a stream (None: the legacy default one), so that blocks may share few long rows.

        Not needed with torch, which gives it to each call. Not while a stream is captured.
        """
        pack = self._pack
        assert pack.gpu is not None, "an op on a device"
        pack.library().function("ht_prepare")(pack.place(self.entry), pack.gpu.ordinal, stream or 0)

    def _asked(self, operands: tuple[Any, ...], named: Mapping[str, Any], stream: int | None) -> tuple[dict[str, Any], Any]:
        """A call's operands by name, and its stream. PackClosed after the pack was closed; TypeError as ``run``."""
        if not self._pack.is_open:
            self._pack.library()
        inputs = self._given(operands, named)
        for name, value in inputs.items():
            check_lazy(self.name, name, value)
        return inputs, stream_for(self.name, next(iter(inputs.values()))) if stream is None else stream

    def _empty(self, inputs: Mapping[str, Any]) -> Any:
        size, first = self.output_shape(inputs), next(iter(inputs.values()))
        return empty_like(self.name, first, size)
