"""Ours: a pack, loaded and called as a server would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.encoding import decoded, encoded
from haotuner.bench.peers.on_host import HostPack
from haotuner.bench.timing import difference_ns
from haotuner.ops.dtypes import DTYPES
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape


class Ours(HostPack):
    """``linear(x, out=y)`` of a pack."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._dense: Any = None
        self._linears: list[Any] = []
        self._y: Any = np.empty((0, 0), np.float32)
        self._x: Any = self._y
        self._n = 0
        self._op: Any = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Bind every weight; each is packed once."""
        self._linears = []  # the old weights go before the new ones come
        self._dense = self._pack.op(op.name)
        self._op, self._n = op, op["n"] if op.kind == "dense" else 0
        self._linears = [self._dense.bind(encoded(weight, op.dtype)) for weight in weights]

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """One call a weight, all into the same output."""
        if self._op.kind == "dense":
            output = self._op.dtype_of(self._op.meaning.output)
            self._x = encoded(x, self._op.dtype_of(self._op.meaning.operands[0]))
            self._y = np.empty((x.shape[0], self._n), np.uint16 if output == "bf16" else DTYPES[output].numpy)
        else:
            self._x = x
            axes = self._op.meaning.operands[0].axes(self._op.all_options())
            extents = dict(zip(axes, x.shape, strict=True))
            shape = Shape.of({axis: extents[axis] for axis in self._op.dynamic})
            self._y = np.empty(self._op.operand_shape(self._op.meaning.output, shape), np.float32)
        return [partial(linear, self._x, out=self._y) for linear in self._linears[:count]]

    def result(self, index: int) -> Array:
        """Into a poisoned output, so that an element nobody writes shows."""
        self._y.fill(np.nan if self._y.dtype.kind == "f" else np.iinfo(self._y.dtype).max)
        self._linears[index](self._x, out=self._y)
        return decoded(self._y, self._op.dtype_of(self._op.meaning.output)) if self._op.kind == "dense" else self._y

    def plan(self, m: int | Mapping[str, int]) -> str:
        """What is served at this m, or at this shape, as text: it goes into a line of JSON."""
        return str(self._dense.composition(m).label) if isinstance(m, int) else f"cell {self._dense.cell(m)}"

    def overhead_ns(self, seconds: float) -> float | None:
        """What the Python call costs over the bare foreign call; None where the runtime does not offer the latter.

        Both with no rows: then neither has arithmetic whose noise would drown the difference.
        """
        bare = getattr(self._linears[0], "bare_call", None)
        if bare is None:
            return None
        if self._op.kind != "dense":
            return None
        x, y = self._x[:0], self._y[:0]
        return difference_ns(partial(self._linears[0], x, out=y), partial(bare, x, y), seconds)
