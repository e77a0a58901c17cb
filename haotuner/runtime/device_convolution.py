"""A convolution of a pack on a device: its weight stays where its owner has it, calls are queued on the caller's stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from haotuner.pack.op import PackOp
from haotuner.runtime.convolution import image_size, windows_of
from haotuner.runtime.device_linear import DeviceBound, DeviceLinear, in_order, served_weight

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


class DeviceConvOp:
    """One convolution of a pack that was opened for a device."""

    def __init__(self, pack: Pack, op: PackOp) -> None:
        self._pack, self.entry = pack, op

    @property
    def name(self) -> str:
        """Canonical name."""
        return self.entry.name

    def bind(self, weight: Any, bias: Any = None, *, threads: int | None = None, **channels: Any) -> DeviceConvolution:
        """Serve a weight (f, c/groups, r, s) and a bias (f,) that lie on the pack's device.

        Kernels that read windows want the weight turned: that is done here, once, behind all that the device was asked for,
        in memory of its own that goes with what is bound (``packed_bytes``). ``rebind`` a weight that has changed.
        ``channels``: what else the epilogue reads with one value a feature, ``scale``, ``low``, ``high``. Later changes to
        them show. ValueError unless they are contiguous and aligned. Not while a stream is captured.
        """
        return served_weight(
            DeviceConvolution, self._pack, self.entry, weight, in_order(self.entry, bias, channels), threads
        )


class DeviceConvolution(DeviceLinear):
    """``y = convolution(x)`` or ``convolution(x, out=y)``; x is (b, c, h, w) of the op's type, or as its layout says.

    Where the epilogue adds a residual, ``residual=`` brings it: it lies as ``out`` does, and may be ``out`` itself.

    Takes torch, CuPy and other DLPack tensors of the pack's device and returns without waiting. x may have any strides.
    A call wants memory for image columns: torch gives it; with others ``prepare(stream)`` it once.
    """

    __slots__ = ("_windows",)

    def warm(self) -> None:
        """Have memory ready for calls on the current stream."""
        self.prepare()

    def serve(self, bound: DeviceBound) -> None:
        """Serve later calls from ``bound``; calls that run now finish as they began."""
        self._windows = windows_of(bound.op)
        super().serve(bound)

    def _output_size(self, x: Any) -> tuple[int, ...]:
        op, dims, shape = self._bound.op, self._bound.op.operands[0].dims, getattr(x, "shape", None)
        if shape is None or len(shape) < len(dims) - 1:
            raise TypeError(
                f"{op.name}: x must be a tensor ({', '.join(dims)}) of the pack's device, got {type(x).__name__}"
            )
        return tuple(max(0, extent) for extent in image_size(op, self._windows, tuple(shape)))
