"""ProductOp: a batch_matmul of an open pack, called with both factors and what is to be added beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.pack.op import PackOp, PackOperand
from haotuner.runtime.operator import Operator

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


class ProductOp(Operator):
    """``y = op.run(x, w)``, of matrices in the last two axes; the axes before them count matrices and are broadcast.

    ``run(x, w, out=y, bias=…, scale=…, mask=…)`` computes ``(x · w) * scale + bias + mask``, then the op's epilogue: a bias
    of the columns, a scale that is a number or has the batch axes, a mask that is broadcast to the output. Every operand may
    have any strides, such as a head's slice of (b, t, h, d); ``out`` must be contiguous in its last axis. Concurrent calls
    are allowed.
    """

    gives = True

    def __init__(self, pack: Pack, op: PackOp, threads: int | None = None) -> None:
        super().__init__(pack, op, threads)
        x, w = (operand.dims for operand in op.inputs[:2])
        self._rows, self._columns = x.index("m") - 3, w.index("n") - 3  # counted from the last axis

    def _for_arrays(self, passed: tuple[Any, ...]) -> Any:
        """An output for two arrays of as many matrices; for others None or one that the call refuses."""
        of_x, of_w = passed[0].shape, passed[1].shape
        before = of_x[:-2]
        if self._made is None or before != of_w[:-2]:
            return None
        return np.empty((*before, of_x[self._rows], of_w[self._columns]), self._made)

    def output_shape(self, inputs: Mapping[str, Any], written: PackOperand | None = None) -> tuple[int, ...]:
        """Dimensions of the products of these factors; ValueError where their batches do not go together."""
        x, w = (self._shape_of(inputs, operand) for operand in self.entry.inputs)
        return product_size(self.entry, x, w)


def product_size(op: PackOp, x: Sequence[int], w: Sequence[int]) -> tuple[int, ...]:
    """Dimensions of the products of factors of these; ValueError where their batches do not go together."""
    try:
        batch = broadcast(x[:-2], w[:-2])
    except ValueError:
        raise ValueError(f"{op.name}: batches {tuple(x[:-2])} of x and {tuple(w[:-2])} of w do not go together") from None
    m_at, n_at = (operand.dims.index(axis) - 3 for operand, axis in zip(op.inputs, "mn", strict=True))
    return (*batch, x[m_at], w[n_at])


def broadcast(x: Sequence[int], w: Sequence[int]) -> tuple[int, ...]:
    """Batch axes of the product, aligned from the last one; ValueError if they do not go together."""
    rank = max(len(x), len(w))
    pairs = zip((1,) * (rank - len(x)) + tuple(x), (1,) * (rank - len(w)) + tuple(w), strict=True)
    result = []
    for a, b in pairs:
        if a != b and 1 not in (a, b):
            raise ValueError
        result.append(b if a == 1 else a)
    return tuple(result)
