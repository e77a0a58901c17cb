"""numpy: whatever BLAS it was built with, OpenBLAS in the wheels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from haotuner.bench.contender import Array, Call, Setting, only
from haotuner.spec.op import Op


class NumpyBlas:
    """``np.matmul(x, w, out=y)``, the weight kept as ``(k, n)``; for one row as ``(n, k)``.

    With OpenBLAS 0.3.31 on AVX-512, n=2304, k=768: ``(k, n)`` takes 391, 427, 958, 2566 us at m = 2, 8, 37, 128, ``(n, k)``
    884, 950, 1393, 3072; at m = 1 ``(n, k)`` wins, 81 to 92. The thread count comes from the environment of this process.
    """

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        self.version = np.__version__
        self._by_row: list[Array] = []
        self._by_column: list[Array] = []
        self._x = self._y = np.empty((0, 0), np.float32)

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Keep both layouts."""
        only(op.dtype, "fp32")
        self._by_row = self._by_column = []
        self._by_row = [weight.T for weight in weights]
        self._by_column = [np.ascontiguousarray(weight.T) for weight in weights]

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """One call a weight, all into the same output."""
        self._x, self._y = x, np.empty((x.shape[0], self._by_row[0].shape[1]), np.float32)
        return [partial(np.matmul, x, weight, out=self._y) for weight in self._chosen()[:count]]

    def result(self, index: int) -> Array:
        """Into a poisoned output."""
        self._y.fill(np.nan)
        np.matmul(self._x, self._chosen()[index], out=self._y)
        return self._y

    def _chosen(self) -> list[Array]:
        return self._by_row if self._x.shape[0] == 1 else self._by_column
