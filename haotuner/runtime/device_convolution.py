"""A convolution of a pack on a device: its weight stays where its owner has it, calls are queued on the caller's stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from haotuner.errors import UsageError
from haotuner.ops.convolution import windows
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp
from haotuner.runtime.call_errors import REFUSED
from haotuner.runtime.convolution import AFTER
from haotuner.runtime.device_linear import DeviceBound, DeviceLinear, in_order
from haotuner.runtime.on_device import check_lazy, empty_like, explained, stream_for
from haotuner.runtime.streams import still

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
        if threads is not None:
            raise UsageError(f"{self.name}: threads={threads!r}: a device has no thread counts; leave it out")
        beside = in_order(self.entry, bias, channels)
        made = DeviceConvolution(DeviceBound.of(self._pack, self.entry, weight, beside, keep=True))
        self._pack.own(made)
        return made


class DeviceConvolution(DeviceLinear):
    """``y = convolution(x)`` or ``convolution(x, out=y)``; x is (b, c, h, w) of the op's type, or as its layout says.

    Where the epilogue adds a residual, ``residual=`` brings it: it lies as ``out`` does, and may be ``out`` itself.

    Takes torch, CuPy and other DLPack tensors of the pack's device and returns without waiting. x may have any strides.
    A call wants memory for image columns: torch gives it; with others ``prepare(stream)`` it once.
    """

    __slots__ = ("_adds",)

    def __call__(self, x: Any, out: Any = None, stream: int | None = None, residual: Any = None) -> Any:
        """The convolution; TypeError, ValueError or RuntimeError name the argument or the driver's error, and what to do."""
        call, record, setting = self._state
        if stream is None:
            stream = stream_for(self.name, x)
        more = {"residual": residual} if residual is not None or self._adds else {}
        if self._adds and residual is None:
            raise TypeError(f"{self.name}: pass residual=, a tensor like the result, which the epilogue adds")
        for name, value in (("x", x), *more.items()):
            check_lazy(self.name, name, value)
        if out is None:
            out = self._empty(x)
        else:
            check_lazy(self.name, "out", out)
        try:
            call(
                still(x, stream),
                record,
                still(out, stream),
                setting,
                stream,
                *(still(item, stream) for item in more.values()),
            )
        except REFUSED as error:
            raise explained(self.name, error, {"x": x, "out": out, **more}) from error
        return out

    def warm(self) -> None:
        """Have memory ready for calls on the current stream."""
        self.prepare()

    def serve(self, bound: DeviceBound) -> None:
        """Serve later calls from ``bound``; calls that run now finish as they began."""
        self._bound, self._n = bound, bound.op.axis("f").extent or 0
        self._adds = any(operand.role == "input" for operand in bound.op.extra)
        self._state = bound.call, bound.record, bound.setting

    def _empty(self, x: Any) -> Any:
        op = self._bound.op
        meaning, dims, shape = op.op, op.operands[0].dims, getattr(x, "shape", None)
        if shape is None or len(shape) < len(dims) - 1:
            raise TypeError(
                f"{op.name}: x must be a tensor ({', '.join(dims)}) of the pack's device, got {type(x).__name__}"
            )
        split = len(shape) - len(dims) + 1
        extents = dict(zip(dims[1:], (int(n) for n in shape[split:]), strict=True))
        sides = windows(meaning.kind, dict(meaning.static), meaning.all_options())
        known = {"f": meaning["f"], **{after: sides[of].out(extents[of]) for of, after in AFTER if of in sides}}
        size = (*shape[:split], *(max(0, known[axis]) for axis in op.output.dims[1:]))
        return empty_like(self.name, x, size, DTYPES[op.output.dtype].numpy)
