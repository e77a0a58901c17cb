"""A grouped op of a pack on a device: rows in groups, each with a matrix of its own, in one launch."""

from __future__ import annotations

from typing import Any

from haotuner.errors import UsageError
from haotuner.runtime.call_errors import REFUSED
from haotuner.runtime.device_linear import DeviceBound, DeviceDenseOp, DeviceLinear, in_order
from haotuner.runtime.on_device import check_lazy, explained, stream_for
from haotuner.runtime.streams import kind_of, still


class GroupedOp(DeviceDenseOp):
    """One grouped op of a pack that was opened for a device."""

    @property
    def groups(self) -> int:
        """Matrices, one for each group of rows."""
        return self.entry.axis("g").extent or 0

    def bind(self, weight: Any, bias: Any = None, *, threads: int | None = None, **channels: Any) -> DeviceGroupedLinear:
        """Serve weights (g, n, k) ((g, k, n) for weight=kn) and biases (g, n) that lie on the pack's device; none is copied.

        ``channels``: what else the epilogue reads with one value a column of a group: ``scale``, ``low`` and ``high``. Later
        changes to them show. ValueError unless they are contiguous and aligned. Not while a stream is captured.
        """
        if threads is not None:
            raise UsageError(f"{self.name}: threads={threads!r}: a device has no thread counts; leave it out")
        linear = DeviceGroupedLinear(DeviceBound.of(self._pack, self._op, weight, in_order(self._op, bias, channels)))
        self._pack.own(linear)
        return linear


class DeviceGroupedLinear(DeviceLinear):
    """``y = linear(x, offsets)`` or ``linear(x, offsets, out=y)``; x is ``(…, k)`` as for a ``DeviceLinear``.

    ``offsets``: int32 ``(g,)`` on the device, the row where each group ends, ascending; a group begins where the one before
    ends, the first at row 0, and may be empty. They are read when the call runs: nothing waits for what computes them, and a
    graph replays with what they hold then. Rows behind the last end are not written. Ends that go back or lie outside x are
    taken as the nearest that do not, so no call reads or writes elsewhere.
    """

    __slots__ = ()

    def __call__(  # type: ignore[override]  # rows come with where their groups end
        self, x: Any, offsets: Any = None, out: Any = None, stream: int | None = None, residual: Any = None
    ) -> Any:
        """The products, with a ``residual`` like the result where the epilogue adds one.

        TypeError, ValueError or RuntimeError name the argument or the driver's error, and what to do.
        """
        if offsets is None:
            raise TypeError(f"{self.name}: pass offsets, the row where each of the groups ends, as int32 on the device")
        call, record, setting = self._state
        kind = kind_of(type(x))
        if stream is None:
            stream = stream_for(self.name, x)
        if kind.lazy:
            check_lazy(self.name, "x", x)
        if out is not None:
            check_lazy(self.name, "out", out)
        more = {} if residual is None else {"residual": residual}
        try:
            behind = (still(offsets, stream), *(still(item, stream) for item in more.values()))
            if out is None:
                if kind.gives:
                    return call(x, record, None, setting, stream, *behind)
                out = self._empty(x)
            call(still(x, stream), record, still(out, stream), setting, stream, *behind)
        except REFUSED as error:
            raise explained(self.name, error, {"x": x, "out": out, "offsets": offsets, **more}) from error
        return out
