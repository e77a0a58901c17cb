"""A witness of the bytes that programs move: the counting machine, with all places of all iterations noted down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from haotuner.codegen.emit import emit
from haotuner.codegen.schedule import Plan
from haotuner.graph.extents import evaluate
from haotuner.graph.types import numpy_dtype
from tests.codegen.interpreter import Interpreter

Touch = tuple[str, tuple[int, ...], bool, int, bool]  # tensor, indices, store?, bytes, alone in its instruction?


@dataclass
class Run:
    """One run of a loop: what each of its iterations did, in order."""

    iterations: list[list[Run | Touch]] = field(default_factory=list)


class Witness(Interpreter):
    """Notes what a program touches, loop by loop."""

    def __init__(self, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        super().__init__(arrays, sizes)
        self.top: Run = Run([[]])
        self.here = self.top.iterations[0]

    def loop(self, count: Any, body: Callable[[Any], None]) -> None:
        outer, own = self.here, Run()
        if int(count):
            outer.append(own)
        for i in range(int(count)):
            self.here = []
            own.iterations.append(self.here)
            body(np.int64(i))
        self.here = outer

    def load(
        self,
        tensor: str,
        indices: Sequence[Any],
        steps: Sequence[int] | None,
        lanes: int,
        mask: Any,
        symbolic: Sequence[Any] = (),
    ) -> Any:
        self._touch(tensor, self._places(indices, steps, lanes), steps, mask, store=False)
        return super().load(tensor, indices, steps, lanes, mask, symbolic)

    def store(self, tensor: str, indices: Sequence[Any], steps: Sequence[int], value: Any, lanes: int, mask: Any) -> None:
        self._touch(tensor, self._places(indices, steps, lanes), steps, mask, store=True)
        super().store(tensor, indices, steps, value, lanes, mask)

    def _touch(self, tensor: str, places: Sequence[Any], steps: Sequence[int] | None, mask: Any, *, store: bool) -> None:
        wide = np.broadcast_arrays(*places) if places else []
        count = wide[0].size if places else 1
        flat = [index_array.reshape(-1) for index_array in wide]
        alone = count == 1 or steps is None or steps[-1] != 1 or any(steps[:-1])
        for lane in range(count):
            if count == 1 or mask is None or mask[lane]:
                indices = tuple(int(index_array[lane]) for index_array in flat)
                self.here.append((tensor, indices, store, self.arrays[tensor].dtype.itemsize, alone))


def witness(plan: Plan, inputs: Mapping[str, Any]) -> Run:
    """What a plan's program touches with these inputs."""
    graph, sizes = plan.graph, plan.graph.sizes(inputs)
    t = graph.types[plan.output]
    out = np.zeros([evaluate(extent, sizes) for extent in t.shape], numpy_dtype(t.dtype))
    machine = Witness({**{name: np.asarray(inputs[name]) for name in graph.inputs}, plan.output: out}, sizes)
    emit(plan, machine)
    return machine.top


def touches(parts: Sequence[Run | Touch]) -> list[Touch]:
    """Everything that some parts touch, in order."""
    touched: list[Touch] = []
    for part in parts:
        touched += [touch for own in part.iterations for touch in touches(own)] if isinstance(part, Run) else [part]
    return touched


def footprint(parts: Sequence[Run | Touch], line: int) -> int:
    """Bytes brought and written back if nothing that was touched is ever given up."""
    brought, stored, total = set(), set(), 0
    for tensor, indices, store, size, _ in touches(parts):
        key = (tensor, *indices[:-1], indices[-1] // line) if indices else (tensor,)
        if store and key not in stored:
            stored.add(key)
            total += size * line
        if not store and key not in stored and key not in brought:
            brought.add(key)
            total += size * line
    return total


def moved(runs: Sequence[Run], capacity: int, line: int) -> int:
    """Bytes moved by all runs of one loop: once a run where its iterations fit, else part by part."""
    every = [iteration for run in runs for iteration in run.iterations]
    if max((footprint(iteration, line) for iteration in every), default=0) <= capacity:
        return sum(footprint([run], line) for run in runs)
    total = sum(
        size * (line if alone else 1)
        for iteration in every
        for _, _, _, size, alone in (part for part in iteration if not isinstance(part, Run))
    )
    longest = max((len([p for p in iteration if isinstance(p, Run)]) for iteration in every), default=0)
    for index in range(longest):
        inner = [[p for p in iteration if isinstance(p, Run)] for iteration in every]
        total += moved([own[index] for own in inner if index < len(own)], capacity, line)
    return total
