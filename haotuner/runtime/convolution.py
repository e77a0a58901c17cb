"""ConvOp: a convolution of an open pack, and Convolution: one with its weight packed once, what a server calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.ops.convolution import Window, windows
from haotuner.pack.op import PackOp
from haotuner.runtime.arrays import numpy_type
from haotuner.runtime.linear import Bound, Linear, named_channels
from haotuner.runtime.reprs import described_op
from haotuner.spec.limits import CELL_AXES

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack

WARM_ELEMENTS = 16  # of an image's side, or the least that the window needs: enough for workers to start
AFTER = (("h", "p"), ("w", "q"))  # axes of the image, and what a convolution makes of them


class ConvOp:
    """One convolution of an open pack."""

    def __init__(self, pack: Pack, op: PackOp) -> None:
        self._pack, self.entry = pack, op

    def __repr__(self) -> str:
        return described_op(self)

    @property
    def name(self) -> str:
        """Canonical name."""
        return self.entry.name

    def windows(self) -> dict[Any, Window]:
        """Window, and how it moves, by axis of the image."""
        return windows_of(self.entry)

    def bind(self, weight: Any, bias: Any = None, *, threads: int | None = None, **constants: Any) -> Convolution:
        """Pack a weight once, as torch stores it: (f, c/groups, r, s), transposed (c, f/groups, r, s); see ``Convolution``.

        Weight and bias (f,) are copied: later changes to them do not show. ``threads`` replaces the pack's count.
        ``constants``: further values of a feature that an epilogue reads, such as ``scale``: arrays (f,), or one number.
        """
        made = Convolution(Bound.of(self._pack, self.entry, weight, named_channels(bias, constants), threads))
        self._pack.own(made)
        return made

    def cell(self, extents: Mapping[str, int]) -> int:
        """The cell of the plan's table that serves a shape, from the library's own look-up."""
        values = np.zeros(CELL_AXES, np.int64)
        for index, axis in enumerate(("b", "h", "w")):  # as native/kinds/conv.h numbers them
            values[index] = extents.get(axis, 1)
        plan = self._pack.plan_index(self.entry)
        return int(self._pack.library().function("ht_cell")(self._pack.table_index(self.entry), plan, values))


class Convolution(Linear):
    """``y = convolution(x)`` or ``convolution(x, out=y)``; x is (b, c, h, w) of the op's type, or as its layout says.

    All else is as of a ``Linear``. The innermost axis must be contiguous, others may have any stride; an image without the
    axis b is one. With an epilogue that adds a residual: ``convolution(x, residual=r)``.
    """

    __slots__ = ("windows",)

    def serve(self, bound: Bound) -> None:
        """Serve later calls from ``bound``; calls that run now finish as they began."""
        self.windows = windows_of(bound.op)
        super().serve(bound)

    def warm(self) -> None:
        """One small image, so that no request is the first."""
        op = self._bound.op
        dynamic = {axis.name for axis in op.dynamic}
        extents = {axis.name: axis.extent or 1 for axis in op.axes}
        for axis, side in self.windows.items():
            if axis in dynamic:
                extents[axis] = max(WARM_ELEMENTS, side.dilation * (side.taps - 1) + 1)
        x = op.operands[0]
        self._warm(np.zeros([extents[axis] for axis in x.dims], numpy_type(x.dtype)))

    def _output_size(self, x: Any) -> tuple[int, ...]:
        op, image = self._bound.op, self._bound.op.operands[0]
        if len(getattr(x, "shape", ())) < len(image.dims) - 1:
            raise TypeError(f"{op.name}: {self._state[5].signature.expected(image)}, got {type(x).__name__}")
        extents = dict(zip(image.dims[1:], (int(n) for n in x.shape[1 - len(image.dims) :]), strict=True))
        size = image_size(op, self.windows, tuple(x.shape))
        if min(*(extents[axis] for axis in self.windows), *size[-len(op.output.dims) + 1 :]) < 1:
            result = " x ".join(str(extents[axis]) for axis in self.windows)
            raise ValueError(f"{op.name}: x is an image of {result}, with its pads smaller than the window: nothing is left")
        return size


def windows_of(op: PackOp) -> dict[Any, Window]:
    """Window of a convolution along each axis of the image: how it moves."""
    meaning = op.op
    return dict(windows(meaning.kind, dict(meaning.static), meaning.all_options()))


def image_size(op: PackOp, sides: Mapping[Any, Window], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Dimensions of a convolution's result for an image of a shape; a side that is negative has nothing to hold."""
    dims = op.operands[0].dims
    split = len(shape) - len(dims) + 1
    extents = dict(zip(dims[1:], (int(n) for n in shape[split:]), strict=True))
    known = {"f": op.axis("f").extent or 0} | {after: sides[of].out(extents[of]) for of, after in AFTER if of in sides}
    return (*shape[:split], *(known[axis] for axis in op.output.dims[1:]))
