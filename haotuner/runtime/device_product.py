"""A batch_matmul of a pack on a device: both factors come with the call, which is queued on the caller's stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.ops.batch_matmul import BESIDE
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp
from haotuner.runtime.call_errors import REFUSED
from haotuner.runtime.on_device import check_lazy, empty_like, explained, stream_for
from haotuner.runtime.products import broadcast
from haotuner.runtime.streams import still

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


class DeviceProductOp:
    """``y = op.run(x, w)`` of matrices in the last two axes; the axes before them count matrices and are broadcast.

    ``run(x, w, bias=…, scale=…, mask=…)`` computes ``(x · w) * scale + bias + mask``: a bias of the columns and a mask
    that is broadcast to the output, of x's type and on the device; a scale that is a number, or float32 of the batch axes.

    Takes torch, CuPy and other DLPack tensors of the pack's device and returns without waiting. Matrices may lie at any
    strides, such as a head's slice of (b, t, h, d), if elements of the last axis lie side by side. Safe while the stream is
    captured: nothing is loaded, allocated or waited for (without ``out`` the framework gives the memory). Concurrent calls
    are allowed.
    """

    def __init__(self, pack: Pack, op: PackOp) -> None:
        self._pack, self.entry = pack, op
        self._call, self._setting = pack.entry(op)

    @property
    def name(self) -> str:
        """Canonical name."""
        return self.entry.name

    def run(self, x: Any, w: Any, out: Any = None, *, stream: int | None = None, **beside: Any) -> Any:
        """The products, in ``out`` if that is given, else new and of x's kind.

        TypeError, ValueError or RuntimeError name the operand or the driver's error, and what to do; PackClosed after the
        pack was closed.
        """
        if not self._pack.is_open:
            self._pack.library()
        if unknown := beside.keys() - BESIDE.keys():
            raise TypeError(f"{self.name}: {', '.join(sorted(unknown))} is no operand; a call takes {', '.join(BESIDE)}")
        more = {name: beside.get(name) for name in BESIDE}
        if isinstance(more["scale"], int | float):
            more["scale"] = np.array(more["scale"], np.float32)
        inputs = [(name, value) for name, value in more.items() if value is not None]
        for name, value in (("x", x), ("w", w), *inputs):
            check_lazy(self.name, name, value)
        if stream is None:
            stream = stream_for(self.name, x)
        if out is None:
            out = self._empty(x, w)
        else:
            check_lazy(self.name, "out", out)
        try:
            call = (still(x, stream), still(w, stream), still(out, stream), self._setting, stream)
            self._call(*call, *(() if not inputs else (_still(value, stream) for value in more.values())))
        except REFUSED as error:
            raise explained(self.name, error, {"x": x, "w": w, "out": out, **dict(inputs)}) from error
        return out

    def _empty(self, x: Any, w: Any) -> Any:
        """An output for these factors; what else is wrong with them is said by the call itself."""
        shapes = []
        for operand, value in zip(self.entry.inputs, (x, w), strict=True):
            shape = getattr(value, "shape", None)
            if shape is None or len(shape) < len(operand.dims) - 1:
                want = f"{operand.name} must be a tensor ({', '.join(operand.dims)}) of the pack's device"
                raise TypeError(f"{self.name}: {want}, got {type(value).__name__}")
            shapes.append(tuple(int(extent) for extent in shape))
        try:
            batch = broadcast(shapes[0][:-2], shapes[1][:-2])
        except ValueError:
            raise ValueError(
                f"{self.name}: batches {shapes[0][:-2]} of x and {shapes[1][:-2]} of w do not go together"
            ) from None
        m_at, n_at = (operand.dims.index(axis) - 3 for operand, axis in zip(self.entry.inputs, "mn", strict=True))
        size = (*batch, shapes[0][m_at], shapes[1][n_at])
        return empty_like(self.name, x, size, DTYPES[self.entry.output.dtype].numpy)


def _still(value: Any, stream: int | None) -> Any:
    """An operand that may be left out, or be a number in memory of the host."""
    return value if value is None or isinstance(value, np.ndarray) else still(value, stream)
