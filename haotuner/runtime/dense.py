"""DenseOp: a dense op of an open pack. Its weight is bound once, see ``Linear``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from haotuner.errors import UsageError
from haotuner.pack.op import PackOp
from haotuner.runtime.fused import FusedLinear, fused_bound
from haotuner.runtime.linear import Bound, Linear
from haotuner.runtime.linear_op import LinearOp
from haotuner.runtime.typed import TypedBound, TypedLinear, is_typed
from haotuner.spec.composition import WAYS, Composition

if TYPE_CHECKING:
    from haotuner.runtime.pack import Pack


class DenseOp(LinearOp):
    """One op of an open pack."""

    def __init__(self, pack: Pack, op: PackOp) -> None:
        super().__init__(pack, op)
        self._fused = bool(op.op.epilogue)

    def bind(self, weight: Any, bias: Any = None, *, threads: int | None = None, **constants: Any) -> Linear:
        """Pack a weight once; see ``Linear``. Weight and bias (n,) are copied: later changes to them do not show.

        ``threads`` replaces the pack's count for this linear. ``constants``: what else the op's epilogue reads, one value
        a column, such as ``scale``, ``low`` and ``high``: arrays (n,), or one number for all; see ``FusedLinear``.
        """
        if is_typed(self._op):
            inputs = constants if bias is None else {"bias": bias, **constants}
            typed = TypedLinear(TypedBound.made(self._pack, self._op, weight, inputs, threads))
            self._pack.own(typed)
            return typed
        if self._fused:
            inputs = constants if bias is None else {"bias": bias, **constants}
            linear: Linear = FusedLinear(fused_bound(self._pack, self._op, weight, inputs, threads))
        elif constants:
            raise TypeError(f"{self.name} has no epilogue that reads {', '.join(constants)}; it takes a weight and a bias")
        else:
            linear = Linear(Bound.of(self._pack, self._op, weight, bias, threads))
        self._pack.own(linear)
        return linear

    def composition(self, m: Any, threads: int | None = None) -> Composition:
        """How m rows are served, from the library's own look-up."""
        if threads is not None and threads not in self._op.threads:
            raise UsageError(f"{self.name}: threads={threads!r} has no plan; it has plans for {self._op.threads}")
        index = self._pack.plan_index(self._op) if threads is None else self._op.threads.index(threads)
        parts, way = self._look_up(index, m)
        return Composition(parts, tuple(WAYS)[way])
