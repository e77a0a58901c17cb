"""Contenders for batch_matmul on a GPU: both factors lie where the call before left them, results go into one output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.peers.gpu_clock import GraphClock
from haotuner.bench.peers.gpu_driver import Driver, Memory
from haotuner.bench.peers.gpu_torch import TorchEngine
from haotuner.words.op import Op


def turned(op: Op) -> tuple[bool, bool]:
    """Whether x is stored (k, m), and w (n, k)."""
    layout = op.option("layout")
    return layout == "tn", layout == "nt"


class GpuOurProducts:
    """``op.run(x, w, out=y, stream=…)`` of a pack."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import haotuner

        if setting.pack is None or setting.ordinal is None:
            raise ValueError("no pack or no GPU was named")
        self.version = haotuner.__version__
        self._driver = Driver(setting.ordinal)
        self._pack = haotuner.load(setting.pack, device=f"cuda:{setting.ordinal}")
        self._named: Op | None = None
        self._held: list[Memory] = []
        self._run: Call | None = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Nothing is bound."""
        self._named = op

    def aim(self, factors: tuple[Array, Array], count: int) -> Sequence[Call]:
        """The same call as often as asked."""
        self._driver.free(self._held)
        assert self._named is not None
        op, (x, w), (x_turned, w_turned) = self._named, factors, turned(self._named)
        size = (x.shape[0], x.shape[2 if x_turned else 1], w.shape[1 if w_turned else 2])
        self._held = [*(self._driver.upload(one, op.dtype) for one in factors), self._driver.empty(size, op.dtype)]
        x_, w_, y = (memory.tensor() for memory in self._held)
        self._run = partial(self._pack.op(op.name).run, x_, w_, out=y, stream=self._driver.stream)
        return [self._run] * count

    def result(self, index: int) -> Array:
        """Into a poisoned output, so that an element nobody writes shows."""
        assert self._run is not None
        self._driver.poison(self._held[2])
        self._run()
        return self._driver.download(self._held[2])

    def clock(self, calls: Sequence[Call]) -> GraphClock:
        """Graphs of the served calls."""
        return GraphClock(self._driver, calls)

    def plan(self, shape: Mapping[str, int]) -> str:
        """What is served at this shape; which kernel, ``haotuner explain`` says."""
        return "one launch"

    def overhead_ns(self, seconds: float) -> float | None:
        """None: a call is queued, so that its cost to the host is no part of these times."""
        return None


class GpuTorchProducts:
    """``torch.bmm(x, w, out=y)`` under inference mode, on views where the op stores factors turned."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        self._engine = TorchEngine(setting.ordinal)
        self.version = self._engine.version
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
                (self._engine.put(one, self._op.dtype) for one in factors), turned(self._op), strict=True
            )
        )
        self._y = x.new_empty(x.shape[0], x.shape[1], w.shape[2])
        self._run = partial(self._engine.torch.bmm, x, w, out=self._y)
        return [self._run] * count

    def result(self, index: int) -> Array:
        """Into a poisoned output."""
        self._y.fill_(float("nan"))
        self._run()
        found: Array = self._y.float().cpu().numpy()
        return found

    def clock(self, calls: Sequence[Call]) -> GraphClock:
        """Graphs of torch."""
        return GraphClock(self._engine, calls)
