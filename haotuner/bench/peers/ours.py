"""Our pack as a contender, loaded and called as a server would, on the host or on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.contender import Call, Operands, Setting, poison
from haotuner.bench.operands import bound, plain_groups, plain_layer
from haotuner.bench.peers.gpu_driver import Driver, GraphClock, Memory
from haotuner.bench.timing import difference_ns
from haotuner.spec.op import Op


class Ours:
    """``op.bind(weight, **constants)(x, out=y, **more)``, or ``op.run(*operands, out=y)`` where nothing is bound."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import haotuner

        if setting.pack is None:
            raise ValueError("no pack was named")
        self.version = haotuner.__version__
        self._pack = haotuner.load(setting.pack, threads=setting.threads)
        self._op: Any = None
        self._served: Any = None
        self._layers: list[Any] = []
        self._calls: list[Call] = []
        self._x: Any = None
        self._y: Any = None

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Bind every copy of what is bound; each weight is packed once."""
        self._layers, self._calls = [], []  # the old weights go before the new ones come
        self._op, self._served = op, self._pack.op(op.name)
        if bound(op):
            self._layers = [self._served.bind(**_stored(copy)) for copy in copies]

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One call a copy, all into the same output."""
        selected, out = bound(self._op), _as_bits(y)
        made: list[Call] = []
        shared: dict[int, NDArray[Any]] = {}  # views of bf16: calls share operands, and so they share views
        for index, operands in enumerate(calls):
            passed = {
                name: shared.setdefault(id(values), _as_bits(values))
                for name, values in operands.items()
                if name not in selected
            }
            named = {name: passed.pop(name) for name in self._op.epilogue_operands if name in passed}
            call = self._layers[index] if selected else self._served.run
            made.append(partial(call, *passed.values(), out=out, **named))
            self._x = next(iter(passed.values()))
        self._calls, self._y = made, y
        return made

    def result(self, index: int) -> NDArray[Any]:
        """Into a poisoned output."""
        poison(self._y)
        self._calls[index]()
        result: NDArray[Any] = self._y
        return result

    def plan(self, shape: Mapping[str, int]) -> str:
        """Label of what is served at this shape, where the runtime says it: it goes into a line of JSON."""
        if plain_layer(self._op):
            return str(self._served.composition(shape["m"]).label)
        return f"cell {self._served.cell(shape)}" if hasattr(self._served, "cell") else ""

    def overhead_ns(self, seconds: float) -> float | None:
        """Cost of the Python call over the bare foreign call, in ns; None where the runtime does not offer the latter.

        Both with no rows: then neither has arithmetic whose noise would drown the difference.
        """
        bare = getattr(self._layers[0], "bare_call", None) if self._layers and plain_layer(self._op) else None
        if bare is None:
            return None
        x, y = self._x[:0], _as_bits(self._y)[:0]
        return difference_ns(partial(self._layers[0], x, out=y), partial(bare, x, y), seconds)


def _stored(operands: Operands) -> Operands:
    return {name: _as_bits(values) for name, values in operands.items()}


def _as_bits(values: NDArray[Any]) -> NDArray[Any]:
    """As a server without a package of numpy's bf16 has them: its bits."""
    return values.view(np.uint16) if values.dtype.name == "bfloat16" else values


class GpuOurs:
    """``op.bind(weight, **constants)(x, out=y, **more, stream=…)``, or ``op.run(*operands, …)`` where nothing is bound.

    What comes with a call lies where the call before left it; calls are timed in graphs.
    """

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
        self._served: Any = None
        self._layers: list[Any] = []
        self._constants: list[Memory] = []
        self._operands: list[Memory] = []  # the last is the output
        self._calls: list[Call] = []

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Upload and bind every copy of what is bound; each is used where it lies."""
        self._leave()
        self._layers = []
        self._driver.free(self._constants)
        self._constants = []
        self._op, self._served = op, self._pack.op(op.name)
        for copy in copies if bound(op) else ():
            constants = self._uploaded(copy)
            self._constants += constants.values()
            tensors = {name: memory.tensor() for name, memory in constants.items()}
            self._layers.append(self._served.bind(tensors.pop("weight"), **tensors))
        for target in self._layers or [self._served]:
            if hasattr(target, "prepare"):
                target.prepare(self._driver.stream)

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One call a copy, all on the same inputs into the same output."""
        self._leave()
        op, selected = self._op, bound(self._op)
        inputs = self._uploaded({name: values for name, values in calls[0].items() if name not in selected})
        output = self._driver.empty(y.shape, op.dtype_of(op.meaning.output))
        self._operands = [*inputs.values(), output]
        tensors, out = {name: memory.tensor() for name, memory in inputs.items()}, output.tensor()
        named = {name: tensors.pop(name) for name in op.epilogue_operands if name in tensors}
        targets = self._layers[: len(calls)] if selected else [self._served.run] * len(calls)
        self._calls = [
            partial(target, *tensors.values(), out=out, stream=self._driver.stream, **named) for target in targets
        ]
        return self._calls

    def result(self, index: int) -> NDArray[Any]:
        """Into a poisoned output, so that an element nobody writes shows."""
        self._driver.poison(self._operands[-1])
        self._calls[index]()
        return self._driver.download(self._operands[-1])

    def plan(self, shape: Mapping[str, int]) -> str:
        """Label of what is served at this shape; which kernel of other ops, ``haotuner explain`` says."""
        layers = plain_layer(self._op) or plain_groups(self._op)
        return str(self._served.composition(shape["m"]).label) if layers else "one launch"

    def clock(self, calls: Sequence[Call]) -> GraphClock:
        """Graphs of the served calls."""
        return GraphClock(self._driver, calls)

    def overhead_ns(self, seconds: float) -> float | None:
        """None: a call is queued, so that its cost to the host is no part of these times."""
        return None

    def _uploaded(self, operands: Operands) -> dict[str, Memory]:
        types = {operand.name: self._op.dtype_of(operand) for operand in self._op.meaning.inputs}
        types |= {name: self._op.extra_dtype(name) for name in self._op.epilogue_operands}
        return {name: self._driver.upload(values, types[name]) for name, values in operands.items()}

    def _leave(self) -> None:
        """Give the last operands back. Calls go first: tensors must not outlive the memory that they were made of.

        Whoever asks has let go of the clock that replays them.
        """
        self._calls = []
        self._driver.free(self._operands)
        self._operands = []
