"""A machine that counts a program without running it: what each loop repeats, loads, stores and computes, at given sizes.

A loop's body is said once. An index is an array over the loops around it, so every place that a load or a store touches is
known exactly, however it is computed; a value that depends on data is not known, nor is an index made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.codegen.emit import AnyPlan, emit
from haotuner.codegen.expressions import INDEX
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, evaluate
from haotuner.graph.types import TensorType, numpy_dtype
from haotuner.ops.formula import FUNCTIONS

DEEPEST = 16  # loops around a place; the last dimension of every array are the lanes
MOST_PLACES = 1 << 18  # of one index; a larger array is taken for not known
PLAIN = {"add": np.add, "sub": np.subtract, "mul": np.multiply}  # of indices: nothing overflows, so nothing warns
Places = NDArray[Any]


class _Unknown:
    """A value that depends on data."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = _Unknown()


@dataclass(slots=True)
class Access:
    """A load or a store: the places it touches. ``indices``: None where a place depends on data."""

    tensor: str
    indices: tuple[Places | None, ...]
    extents: tuple[int, ...]  # of the tensor
    lanes: int  # elements that one instruction moves
    even: bool  # whether they are neighbours
    mask: Places | None
    store: bool
    bytes: int  # of an element


@dataclass(slots=True)
class Work:
    """Instructions of one kind in a body: ``count`` of a function on so many lanes."""

    function: str
    lanes: int
    dtype: str
    waited: bool = False  # whether what comes next needs the result


@dataclass(slots=True)
class Loop:
    """A body and how often it is repeated; the program itself is repeated once, at depth -1."""

    depth: int
    count: int
    body: list[Loop | Access | Work] = field(default_factory=list)
    joins: list[str] = field(default_factory=list)  # folds whose accumulator outlives the body, which waits for each

    def loops(self) -> list[Loop]:
        """The loops directly inside."""
        return [part for part in self.body if isinstance(part, Loop)]


@dataclass(slots=True)
class CounterCell:
    """A variable of the program and the depth of the loop that it was made in."""

    value: Any
    depth: int
    tally: OpCounter
    index: bool = False  # whether it is one that was never changed

    def get(self) -> Any:
        """Its value: of an index that was never changed the one it was made with; else it is data."""
        return self.value if self.index else UNKNOWN

    def set(self, value: Any) -> None:
        """Another value: if made from its own in a loop that it outlives, each round waits for the one before."""
        self.index = False
        here, joined = self.tally.here, self.tally.joined
        if here.depth > self.depth and joined is not None:
            here.joins.append(joined.function)
            joined.waited = False


class OpCounter:
    """Counter of the module. ``top`` is the program's body once it was emitted."""

    predicates = True

    def __init__(self, sizes: Mapping[str, int], types: Mapping[str, TensorType]) -> None:
        self.sizes, self.types = sizes, types
        self._sized: dict[Extent, np.int64] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.top = self.here = Loop(-1, 1)
        self.joined: Work | None = None

    def number(self, value: float, dtype: str) -> Any:
        """A constant."""
        return np.int64(value) if dtype == INDEX else UNKNOWN

    def size(self, extent: Extent) -> Any:
        """An extent's size."""
        if extent not in self._sized:
            self._sized[extent] = np.int64(evaluate(extent, self.sizes))
        return self._sized[extent]

    def loop(self, count: Any, body: Callable[[Any], None]) -> None:
        """The body, once, with all values of its variable; as often as on the average where loops around decide."""
        if isinstance(count, np.ndarray):
            count = -(-int(np.sum(np.maximum(count, 0))) // count.size)
        if int(count) <= 0:
            return
        outer, depth = self.here, self.here.depth + 1
        if depth >= DEEPEST - 1:
            raise UsageError(f"a program of more than {DEEPEST - 1} loops inside each other cannot be counted")
        self.here = Loop(depth, int(count))
        outer.body.append(self.here)
        along = [-1 if at == depth else 1 for at in range(DEEPEST)]
        body(np.arange(int(count)).reshape(along) if int(count) <= MOST_PLACES else UNKNOWN)
        self.here = outer

    def ramp(self, base: Any, lanes: int, pitch: int = 1) -> Any:
        """The numbers from the base on."""
        return self._bounded(np.add, base, np.arange(lanes) * pitch)

    def mask(self, base: Any, extent: Any, lanes: int, pitch: int = 1) -> Any:
        """The lanes before the extent."""
        self.here.body.append(Work("mask", lanes, "int32"))
        return np.ones(lanes, bool) if base is UNKNOWN else np.asarray(base + np.arange(lanes) * pitch < extent)

    def together(self, first: Any, bases: Sequence[Any], pitch: int, limit: Any) -> Sequence[Any]:
        """As they are."""
        return bases

    def load(
        self,
        tensor: str,
        indices: Sequence[Any],
        steps: Sequence[int] | None,
        lanes: int,
        mask: Any,
        symbolic: Sequence[Any] = (),
    ) -> Any:
        """Note the places."""
        self._note(tensor, indices, steps, lanes, mask, store=False)
        return UNKNOWN

    def store(self, tensor: str, indices: Sequence[Any], steps: Sequence[int], value: Any, lanes: int, mask: Any) -> None:
        """Note the places."""
        self._note(tensor, indices, steps, lanes, mask, store=True)

    def _note(
        self, tensor: str, indices: Sequence[Any], steps: Sequence[int] | None, lanes: int, mask: Any, *, store: bool
    ) -> None:
        wide = lanes > 1 and bool(indices) and (steps is None or any(steps))
        offsets: list[Any] = list(indices)
        if wide and steps is not None:
            along = np.arange(lanes)
            offsets = [self._bounded(np.add, index, along * step) if step else index
                      for index, step in zip(indices, steps, strict=True)]  # fmt: skip
        self.here.body.append(
            Access(
                tensor=tensor,
                indices=tuple(None if index is UNKNOWN else _spread(index) for index in offsets),
                extents=self._shape(tensor),
                lanes=lanes if wide else 1,
                even=not wide or (steps is not None and steps[-1] == 1 and not any(steps[:-1])),
                mask=None if mask is None or mask is UNKNOWN or not wide else _spread(mask),
                store=store,
                bytes=numpy_dtype(self.types[tensor].dtype).itemsize,
            )
        )

    def _shape(self, tensor: str) -> tuple[int, ...]:
        if tensor not in self._shapes:
            self._shapes[tensor] = tuple(int(self.size(extent)) for extent in self.types[tensor].shape)
        return self._shapes[tensor]

    def scratch(self, name: str, count: int, dtype: str) -> None:
        """A tensor more."""
        self.types = {**self.types, name: TensorType((count,), dtype)}

    def transposed(self, vectors: Sequence[Any], dtype: str) -> Sequence[Any]:
        """A shuffle of each vector for every halving of the lanes."""
        self.here.body += [Work("turn", len(vectors), dtype)] * (len(vectors) * (len(vectors).bit_length() - 1))
        return [UNKNOWN] * len(vectors)

    def fma(self, value: Any, other: Any, more: Any, dtype: str, lanes: int) -> Any:
        """One instruction; the variable that takes it in waits for its own value."""
        self.joined = Work("add", lanes, dtype, waited=True)
        self.here.body.append(self.joined)
        return UNKNOWN

    def apply(self, function: str, arguments: Sequence[Any], dtype: str, lanes: int) -> Any:
        """An element-wise function: of indices its values, of data that it is computed."""
        if dtype != INDEX or lanes > 1:
            self.here.body.append(Work(function, lanes, dtype))
        if function == "cast" and dtype == INDEX:
            return arguments[0]  # of an index; of data it is data
        known = dtype in (INDEX, "bool") and not any(argument is UNKNOWN for argument in arguments)
        if known and function in FUNCTIONS:  # of masks, too
            return self._bounded(PLAIN.get(function) or FUNCTIONS[function], *arguments)
        return UNKNOWN

    def _bounded(self, function: Any, *arguments: Any) -> Any:
        shapes = []
        for argument in arguments:
            if argument is UNKNOWN:
                return UNKNOWN
            if isinstance(argument, np.ndarray):
                shapes.append(argument.shape)
        if len(shapes) > 1 and prod(np.broadcast_shapes(*shapes)) > MOST_PLACES:
            return UNKNOWN
        return function(*arguments)

    def cell(self, dtype: str, lanes: int, start: Any) -> CounterCell:
        """A variable."""
        return CounterCell(start, self.here.depth, self, index=dtype == INDEX)

    def neutral(self, how: str, dtype: str) -> Any:
        """Neutral element: not known here."""
        return UNKNOWN

    def join(self, how: str, value: Any, other: Any, dtype: str, lanes: int) -> Any:
        """Two partial results; the variable that takes them in waits for its own value."""
        self.joined = Work({"sum": "add", "prod": "mul"}.get(how, how), lanes, dtype, waited=True)
        self.here.body.append(self.joined)
        return UNKNOWN

    def horizontal(self, how: str, value: Any, dtype: str, lanes: int) -> Any:
        """All lanes of a vector: a join and a move for each halving."""
        while lanes > 1:
            lanes //= 2
            self.here.body.append(Work("shuffle", lanes, dtype, waited=True))
            self.join(how, value, value, dtype, lanes)
        return UNKNOWN


def _spread(value: Any) -> Places:
    result = np.asarray(value)
    return result.reshape((1,) * (DEEPEST - result.ndim) + result.shape)


def count_ops(plan: AnyPlan, sizes: Mapping[str, int]) -> Loop:
    """Loops of a plan's program and what they do at these sizes of its dimensions."""
    graph = plan.graph
    machine = OpCounter(sizes, graph.types)
    emit(plan, machine)
    return machine.top


def register_bytes(top: Loop) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes that all loads and all stores move between registers and memory, by tensor."""
    loaded: dict[str, int] = {}
    stored: dict[str, int] = {}

    _add_bytes(top, (), loaded, stored)
    return loaded, stored


def _add_bytes(loop: Loop, counts: tuple[int, ...], loaded: dict[str, int], stored: dict[str, int]) -> None:
    for part in loop.body:
        if isinstance(part, Loop):
            _add_bytes(part, (*counts, part.count), loaded, stored)
        elif isinstance(part, Access):
            result = stored if part.store else loaded
            result[part.tensor] = result.get(part.tensor, 0) + touched(part, counts) * part.bytes


def touched(access: Access, counts: Sequence[int]) -> int:
    """Elements that an access moves, each as often as it is moved; ``counts``: of the loops around it, outer ones first."""
    if access.mask is None:
        return int(np.prod(counts, dtype=np.int64)) * access.lanes
    free = [count for index, count in enumerate(counts) if access.mask.shape[index] == 1]
    return int(np.sum(access.mask)) * int(np.prod(free, dtype=np.int64))
