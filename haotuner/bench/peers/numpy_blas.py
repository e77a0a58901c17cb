"""numpy: whatever BLAS it was built with, OpenBLAS in the wheels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.contender import Call, Operands, Setting, only, poison
from haotuner.spec.op import Op


class NumpyBlas:
    """``np.matmul(x, w, out=y)``, a layer's weight kept as ``(k, n)``; for one row as ``(n, k)``.

    With OpenBLAS 0.3.31 on AVX-512, n=2304, k=768: ``(k, n)`` takes 391, 427, 958, 2566 us at m = 2, 8, 37, 128, ``(n, k)``
    884, 950, 1393, 3072; at m = 1 ``(n, k)`` wins, 81 to 92. The thread count comes from the environment of this process.
    """

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        self.version = np.__version__
        self._turned = False, False
        self._by_column: list[NDArray[Any]] = []
        self._calls: list[Call] = []
        self._y: Any = None

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Keep both layouts of a weight; factors of a product are views where the op stores them turned."""
        only(op.dtype, "fp32")
        self._by_column, self._calls = [], []
        layout = op.option("layout") if op.kind == "batch_matmul" else "nt"  # a weight is stored (n, k)
        self._turned = layout == "tn", layout == "nt"
        self._by_column = [np.ascontiguousarray(copy["weight"].T) for copy in copies if copy]

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One call a copy, all into the same output."""
        made: list[Call] = []
        for index, operands in enumerate(calls):
            x, w = (v.swapaxes(-1, -2) if turned else v for v, turned in zip(operands.values(), self._turned, strict=True))
            if self._by_column and len(x) > 1:
                w = self._by_column[index]
            made.append(partial(np.matmul, x, w, out=y))
        self._calls, self._y = made, y
        return made

    def result(self, index: int) -> NDArray[Any]:
        """Into a poisoned output."""
        poison(self._y)
        self._calls[index]()
        result: NDArray[Any] = self._y
        return result
