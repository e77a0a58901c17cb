"""Ours on a GPU: a pack, loaded and called as a server would, on tensors of its device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.peers.gpu_clock import GraphClock
from haotuner.bench.peers.gpu_driver import Driver, Memory
from haotuner.spec.op import Op


class OnDevice:
    """A pack that was loaded for the race's GPU; what it serves is timed in graphs."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import haotuner

        if setting.pack is None or setting.ordinal is None:
            raise ValueError("no pack or no GPU was named")
        self.version = haotuner.__version__
        self._driver = Driver(setting.ordinal)
        self._pack = haotuner.load(setting.pack, device=f"cuda:{setting.ordinal}")

    def clock(self, calls: Sequence[Call]) -> GraphClock:
        """Graphs of the served calls."""
        return GraphClock(self._driver, calls)

    def overhead_ns(self, seconds: float) -> float | None:
        """None: a call is queued, so that its cost to the host is no part of these times."""
        return None


class GpuOurOperator(OnDevice):
    """``op.run(*inputs, out=y, stream=…)`` of a pack: operands lie where the call before left them."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._named: Op | None = None
        self._held: list[Memory] = []
        self._run: Call | None = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Nothing is bound."""
        self._named = op

    def result(self, index: int) -> Array:
        """Into a poisoned output, so that an element nobody writes shows."""
        assert self._run is not None
        self._driver.poison(self._held[-1])
        self._run()
        return self._driver.download(self._held[-1])

    def plan(self, shape: Mapping[str, int]) -> str:
        """What is served at this shape; which kernel, ``haotuner explain`` says."""
        return "one launch"

    def _leave(self) -> None:
        """Give the last operands back. The call goes first: tensors must not outlive the memory that they were made of."""
        self._run = None
        self._driver.free(self._held)
        self._held = []

    def _placed(self, op: Op, inputs: Iterable[Array], size: tuple[int, ...], count: int) -> Sequence[Call]:
        """The same call on these inputs as often as asked, into an output of this size."""
        self._leave()
        self._held = [*(self._driver.upload(operand, op.dtype) for operand in inputs), self._driver.empty(size, op.dtype)]
        *arguments, out = (memory.tensor() for memory in self._held)
        self._run = partial(self._pack.op(op.name).run, *arguments, out=out, stream=self._driver.stream)
        return [self._run] * count


class GpuOurs(OnDevice):
    """``linear(x, out=y, stream=…)`` of a pack."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
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

    def plan(self, m: int) -> str:
        """What is served at this m, as text: it goes into a line of JSON."""
        return str(self._op.composition(m).label)

    def _leave(self) -> None:
        """Give the last aim's operands back; whoever asks has let go of the clock that replays them."""
        self._driver.free(self._operands)
        self._operands = []
