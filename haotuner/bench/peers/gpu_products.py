"""Contenders for batch_matmul on a GPU: both factors lie where the call before left them, results go into one output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.peers.gpu_ours import GpuOurOperator
from haotuner.bench.peers.gpu_torch import OnTorch
from haotuner.spec.op import Op


def turned(op: Op) -> tuple[bool, bool]:
    """Whether x is stored (k, m), and w (n, k)."""
    layout = op.option("layout")
    return layout == "tn", layout == "nt"


class GpuOurProducts(GpuOurOperator):
    """``op.run(x, w, out=y, stream=…)`` of a pack."""

    def aim(self, factors: tuple[Array, Array], count: int) -> Sequence[Call]:
        """The same call as often as asked."""
        assert self._named is not None
        (x, w), (x_turned, w_turned) = factors, turned(self._named)
        size = (x.shape[0], x.shape[2 if x_turned else 1], w.shape[1 if w_turned else 2])
        return self._placed(self._named, factors, size, count)


class GpuTorchProducts(OnTorch):
    """``torch.bmm(x, w, out=y)`` under inference mode, on views where the op stores factors turned."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._op: Any = None
        self._y: Any = None
        self._run: Any = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Nothing is bound."""
        self._op = op

    def aim(self, factors: tuple[Array, Array], count: int) -> Sequence[Call]:
        """The same call as often as asked."""
        x, w = (
            placed.transpose(1, 2) if across else placed
            for placed, across in zip(
                (self._engine.put(factor, self._op.dtype) for factor in factors), turned(self._op), strict=True
            )
        )
        self._y = x.new_empty(x.shape[0], x.shape[1], w.shape[2])
        self._run = partial(self._engine.torch.bmm, x, w, out=self._y)
        return [self._run] * count

    def result(self, index: int) -> Array:
        """Into a poisoned output."""
        self._y.fill_(float("nan"))
        self._run()
        result: Array = self._y.float().cpu().numpy()
        return result
