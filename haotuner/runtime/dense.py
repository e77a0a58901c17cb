"""DenseOp: a dense op of an open pack. Its weight is bound once, see ``Linear``."""

from __future__ import annotations

from typing import Any

from haotuner.errors import UsageError
from haotuner.runtime.bound import Bound
from haotuner.runtime.linear import Linear, named_channels
from haotuner.runtime.linear_op import LinearOp
from haotuner.spec.composition import WAYS, Composition


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
