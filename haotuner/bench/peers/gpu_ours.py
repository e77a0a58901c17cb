"""Ours on a GPU: a pack, loaded and called as a server would, on tensors of its device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.peers.gpu_clock import GraphClock
from haotuner.bench.peers.gpu_driver import Driver, Memory
from haotuner.words.op import Op


class GpuOurs:
    """``linear(x, out=y, stream=…)`` of a pack."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import haotuner

        if setting.pack is None or setting.ordinal is None:
            raise ValueError("no pack or no GPU was named")
        self.version = haotuner.__version__
        self._driver = Driver(setting.ordinal)
        self._pack = haotuner.load(setting.pack, device=f"cuda:{setting.ordinal}")
        self._op: Any = None
        self._dtype, self._n = "fp32", 0
        self._linears: list[Any] = []
        self._weights: list[Memory] = []
        self._operands: list[Memory] = []
        self._graph: Any = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Upload and bind every weight; each is used where it lies."""
        self._leave()
        self._linears = []
        self._driver.free(self._weights)
        self._weights = []
        self._op, self._dtype, self._n = self._pack.op(op.name), op.dtype, op["n"]
        self._weights = [self._driver.upload(weight, op.dtype) for weight in weights]
        self._linears = [self._op.bind(weight.tensor()) for weight in self._weights]
        for linear in self._linears:
            linear.prepare(self._driver.stream)

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """One call a weight, all into the same output."""
        self._leave()
        self._operands = [self._driver.upload(x, self._dtype), self._driver.empty((x.shape[0], self._n), self._dtype)]
        x_tensor, y_tensor = (memory.tensor() for memory in self._operands)
        return [partial(linear, x_tensor, out=y_tensor, stream=self._driver.stream) for linear in self._linears[:count]]

    def result(self, index: int) -> Array:
        """Into a poisoned output, so that an element nobody writes shows."""
        x, y = self._operands
        self._driver.poison(y)
        self._linears[index](x.tensor(), out=y.tensor(), stream=self._driver.stream)
        return self._driver.download(y)

    def clock(self, calls: Sequence[Call]) -> GraphClock:
        """Graphs of the served calls."""
        return GraphClock(self._driver, calls)

    def plan(self, m: int) -> str:
        """What is served at this m, as text: it goes into a line of JSON."""
        return str(self._op.composition(m).label)

    def overhead_ns(self, seconds: float) -> float | None:
        """None: a call is queued, so that its cost to the host is no part of these times."""
        return None

    def _leave(self) -> None:
        """Give the last aim's operands back; whoever asks has let go of the clock that replays them."""
        self._driver.free(self._operands)
        self._operands = []
