"""Ours in a race of any op: a pack's operator, called as a server calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from haotuner.bench.any_op import Operands, bound, of_call, shape_of
from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.peers.on_host import HostPack
from haotuner.spec import numerics
from haotuner.spec.op import Op


class OurAnyOp(HostPack):
    """``op.bind(weight, **constants)(x, out=y, **more)``, or ``op.run(**operands, out=y)`` where nothing is bound."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._op: Any = None
        self._layers: list[Callable[..., Any]] = []
        self._calls: list[Callable[[], Any]] = []
        self._y: Any = np.empty(0)

    def prepare(self, op: Op, weights: Sequence[Operands]) -> None:
        """Bind every copy of what is bound; each weight is packed once."""
        self._op, self._layers, self._calls = op, [], []
        if bound(op):
            self._layers = [self._pack.op(op.name).bind(**copy) for copy in weights]

    def aim(self, operands: Operands, count: int) -> Sequence[Call]:
        """One call a copy, all into the same output."""
        op, output = self._op, self._op.meaning.output
        self._y = np.empty(op.operand_shape(output, shape_of(op, operands)), numerics.numpy_dtype(op.dtype_of(output)))
        if self._layers:
            inputs = {name: values for name, values in operands.items() if name not in bound(op)}
            x = inputs.pop("x")
            self._calls = [partial(layer, x, out=self._y, **inputs) for layer in self._layers[:count]]
        else:
            run = self._pack.op(op.name).run
            self._calls = [partial(run, out=self._y, **of_call(op, operands, (), index)) for index in range(count)]
        return self._calls

    def result(self, index: int) -> Array:
        """Into a poisoned output, so that an element nobody writes shows."""
        self._y.view(np.uint8).fill(0x7F)  # no number of any float type, and the largest of int8
        self._calls[index]()
        result: Array = self._y
        return result

    def plan(self, shape: Mapping[str, int]) -> str:
        """What is served at this shape, where the runtime says it."""
        served = self._pack.op(self._op.name)
        return f"cell {served.cell(shape)}" if hasattr(served, "cell") else ""

    def overhead_ns(self, seconds: float) -> float | None:
        """Not told: there is no bare call to compare with."""
        return None
