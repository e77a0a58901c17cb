"""Dense ops of an open pack: their facts, wherever the pack computes, and the op on the CPU.

DenseOp: a dense op of an open pack. Its weight is bound once, see ``Linear``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.pack.op import PackOp
from haotuner.runtime.linear import Bound, Linear, named_channels
from haotuner.runtime.reprs import described_op
from haotuner.spec.composition import WAYS, Composition, Part
from haotuner.spec.limits import MAX_PARTS

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


class LinearOp:
    """One op of an open pack whose weight is bound once."""

    def __init__(self, pack: Pack, op: PackOp) -> None:
        self._pack, self._op = pack, op

    def __repr__(self) -> str:
        return described_op(self)

    @property
    def name(self) -> str:
        """Canonical name."""
        return self._op.name

    @property
    def entry(self) -> PackOp:
        """The op's entry in the manifest."""
        return self._op

    @property
    def n(self) -> int:
        """Columns of the output."""
        return self._op.n

    @property
    def k(self) -> int:
        """Columns of the input."""
        return self._op.k

    def _look_up(self, plan: int, m: Any) -> tuple[tuple[Part, ...], int]:
        """Kernels with their tiles that serve m rows by a plan, and the way's number, from the library's own look-up."""
        if isinstance(m, bool) or not isinstance(m, int | np.integer) or not 1 <= m < 2**31:
            raise UsageError(f"{self.name}: m={m!r} must be a whole number of rows in 1..2^31-1")
        values = np.zeros(2 + 2 * MAX_PARTS, np.int64)
        self._pack.library().function("ht_look_up")(self._pack.table_index(self._op), plan, int(m), values)
        pairs = values[2 : 2 + 2 * int(values[0])].reshape(-1, 2).tolist()
        return tuple(Part(self._op.kernels[kernel], tiles) for kernel, tiles in pairs), int(values[1])


class DenseOp(LinearOp):
    """One op of an open pack."""

    def bind(self, weight: Any, bias: Any = None, *, threads: int | None = None, **constants: Any) -> Linear:
        """Pack a weight once; see ``Linear``. Weight and bias (n,) are copied: later changes to them do not show.

        ``threads`` replaces the pack's count for this linear. ``constants``: what else the op's epilogue reads, one value
        a column, such as ``scale``, ``low`` and ``high``: arrays (n,), or one number for all.
        """
        linear = Linear(Bound.of(self._pack, self._op, weight, named_channels(bias, constants), threads))
        self._pack.own(linear)
        return linear

    def composition(self, m: Any, threads: int | None = None) -> Composition:
        """Composition that serves m rows, from the library's own look-up."""
        if threads is not None and threads not in self._op.threads:
            raise UsageError(f"{self.name}: threads={threads!r} has no plan; it has plans for {self._op.threads}")
        index = self._pack.plan_index(self._op) if threads is None else self._op.threads.index(threads)
        parts, way = self._look_up(index, m)
        return Composition(parts, tuple(WAYS)[way])
