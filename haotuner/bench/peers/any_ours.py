"""Ours in a race of any op: a pack's operator, called as a server calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from haotuner import judge
from haotuner.bench.any_op import Operands, bound, shape_of
from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.peers.on_host import HostPack
from haotuner.words.op import Op


class OurAnyOp(HostPack):
    """``op.bind(weight, **constants)(x, out=y, **more)``, or ``op.run(**operands, out=y)`` where nothing is bound."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._op: Any = None
        self._call: Callable[[], Any] = lambda: None
        self._y: Any = np.empty(0)

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Operands come with the shape."""
        self._op = op

    def aim(self, operands: Operands, count: int) -> Sequence[Call]:
        """The same call as often as asked."""
        op, served = self._op, self._pack.op(self._op.name)
        output, kept = op.meaning.output, bound(op)
        self._y = np.empty(op.operand_shape(output, shape_of(op, operands)), judge.numpy_dtype(op.dtype_of(output)))
        given = {name: values for name, values in operands.items() if name not in kept}
        if kept:
            layer = served.bind(operands["weight"], **{name: operands[name] for name in kept[1:]})
            self._call = partial(layer, given.pop("x"), out=self._y, **given)
        else:
            self._call = partial(served.run, out=self._y, **given)
        return [self._call] * count

    def result(self, index: int) -> Array:
        """Into a poisoned output, so that an element nobody writes shows."""
        self._y.view(np.uint8).fill(0x7F)  # no number of any float type, and the largest of int8
        self._call()
        found: Array = self._y
        return found

    def plan(self, shape: Mapping[str, int]) -> str:
        """What is served at this shape, where the runtime says it."""
        served = self._pack.op(self._op.name)
        return f"cell {served.cell(shape)}" if hasattr(served, "cell") else ""

    def overhead_ns(self, seconds: float) -> float | None:
        """Not told: there is no bare call to compare with."""
        return None
