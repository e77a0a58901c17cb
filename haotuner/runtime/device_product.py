"""A batch_matmul of a pack on a device: both factors come with the call, which is queued on the caller's stream."""

from __future__ import annotations

from typing import Any

from haotuner.pack.op import PackOperand
from haotuner.runtime.device_operator import DeviceOperator
from haotuner.runtime.products import ProductOp


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
