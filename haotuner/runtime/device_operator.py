"""Ops of a pack on a device whose operands all come with the call, batch_matmul among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from haotuner.errors import UsageError
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp, PackOperand
from haotuner.runtime.call import check_lazy
from haotuner.runtime.device_call import DeviceCall, checked_stream, empty_like
from haotuner.runtime.operator import Operator, ProductOp

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
        self._queued = DeviceCall.of(op, self._call, self._setting)

    def with_threads(self, threads: int) -> Operator:
        """UsageError: a device has no thread counts."""
        raise UsageError(f"{self.name}: threads={threads}: a device has no thread counts")

    def run(self, *operands: Any, out: Any = None, stream: int | None = None, **named: Any) -> Any:
        """The result, in ``out`` if that is given, else new and of the first operand's kind.

        TypeError, ValueError or RuntimeError name the operand or the driver's error, and what to do, UsageError ``out`` of
        another number of tensors; PackClosed after the pack was closed.
        """
        if not self._pack.is_open:
            self._pack.library()
        inputs = self._operands(operands, named)
        stream = checked_stream(self.name, inputs, stream)
        outs = self._written(inputs, out)
        for name, value in outs.items():
            check_lazy(self.name, name, value)
        self._queued.run(inputs, outs, stream)
        return self._result(outs)

    def prepare(self, stream: int | None = None) -> None:
        """Have memory ready for calls on a stream (None: the legacy default one), so that blocks may share few long rows.

        Not needed with torch, which gives it to each call. Not while a stream is captured.
        """
        pack = self._pack
        assert pack.gpu is not None, "an op on a device"
        pack.library().function("ht_prepare")(pack.table_index(self.entry), pack.gpu.ordinal, stream or 0)

    def _empty(self, inputs: Mapping[str, Any], size: tuple[int, ...], dtype: str) -> Any:
        """Memory of the device."""
        return empty_like(self.name, next(iter(inputs.values())), size, DTYPES[dtype].numpy)

    def _new(self, inputs: Mapping[str, Any], output: PackOperand) -> Any:
        return self._empty(inputs, self.output_shape(inputs, output), output.dtype)


class DeviceProductOp(DeviceOperator):
    """``y = op.run(x, w)`` of matrices in the last two axes; the axes before them count matrices and are broadcast.

    ``run(x, w, bias=…, scale=…, mask=…)`` computes ``(x · w) * scale + bias + mask``: a bias of the columns and a mask
    that is broadcast to the output, of x's type and on the device; a scale that is a number, or float32 of the batch axes.

    Takes torch, CuPy and other DLPack tensors of the pack's device and returns without waiting. Matrices may lie at any
    strides, such as a head's slice of (b, t, h, d), if elements of the last axis lie side by side. Safe while the stream is
    captured: nothing is loaded, allocated or waited for (without ``out`` the framework gives the memory). Concurrent calls
    are allowed.
    """

    output_shape = ProductOp.output_shape

    def _expected(self, operand: PackOperand) -> Any:
        return f"{operand.name} must be a tensor ({', '.join(operand.dims)}) of the pack's device"
