"""A machine that runs a program at once with numpy, and counts the bytes that its loads and stores move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from haotuner.codegen.emit import AnyPlan, emit
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, evaluate
from haotuner.graph.types import numpy_dtype
from haotuner.ops.formula import COMPARISONS, FUNCTIONS


@dataclass(slots=True)
class Cell:
    """A variable of the program."""

    value: Any

    def get(self) -> Any:
        """Its value."""
        return self.value

    def set(self, value: Any) -> None:
        """Give it another value."""
        self.value = value


@dataclass(slots=True)
class Interpreter:
    """Arrays of the tensors in memory, and the bytes moved so far, by tensor. An element outside is an IndexError."""

    arrays: Mapping[str, Any]
    sizes: Mapping[str, int]
    loaded: dict[str, int] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)
    predicates: bool = True

    def number(self, value: float, dtype: str) -> Any:
        """A constant."""
        return np.asarray(value, numpy_dtype(dtype))[()]

    def size(self, extent: Extent) -> Any:
        """An extent's size."""
        return np.int64(evaluate(extent, self.sizes))

    def loop(self, count: Any, body: Callable[[Any], None]) -> None:
        """Run the body once for each number from 0 on."""
        for i in range(int(count)):
            body(np.int64(i))

    def ramp(self, base: Any, lanes: int, pitch: int = 1) -> Any:
        """The numbers from the base on."""
        return base + np.arange(lanes) * pitch

    def mask(self, base: Any, extent: Any, lanes: int, pitch: int = 1) -> Any:
        """The lanes before the extent."""
        return base + np.arange(lanes) * pitch < extent

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
        """Elements; those that the mask leaves out are not touched and read as 0."""
        if 0 in symbolic:
            return np.zeros(lanes if lanes > 1 else (), self.arrays[tensor].dtype)[()]
        if not indices:
            self.loaded[tensor] = self.loaded.get(tensor, 0) + self.arrays[tensor].dtype.itemsize
            return self.arrays[tensor][()]
        array, places = self.arrays[tensor], self._places(indices, steps, lanes)
        if not any(_wide(position) for position in places):
            self.loaded[tensor] = self.loaded.get(tensor, 0) + array.dtype.itemsize
            return array[self._inside(tensor, places)]
        count = lanes if mask is None else int(np.count_nonzero(mask))
        self.loaded[tensor] = self.loaded.get(tensor, 0) + count * array.dtype.itemsize
        if count == lanes:
            return array[self._inside(tensor, places)]
        result = np.zeros(lanes, array.dtype)
        if count:
            result[mask] = array[
                self._inside(tensor, [position[mask] if _wide(position) else position for position in places])
            ]
        return result

    def store(self, tensor: str, indices: Sequence[Any], steps: Sequence[int], value: Any, lanes: int, mask: Any) -> None:
        """Write the lanes that exist."""
        array, places = self.arrays[tensor], self._places(indices, steps, lanes)
        wide = any(_wide(position) for position in places)
        count = (lanes if wide else 1) if mask is None else int(np.count_nonzero(mask))
        self.stored[tensor] = self.stored.get(tensor, 0) + count * array.dtype.itemsize
        if not count:
            return
        if not wide:  # lanes that are written to one place: the last stays
            array[self._inside(tensor, places)] = value if not _wide(value) else value[mask][-1]
        elif count == lanes:
            array[self._inside(tensor, places)] = value
        else:
            where = self._inside(tensor, [position[mask] if _wide(position) else position for position in places])
            array[where] = value[mask] if _wide(value) else value

    def _places(self, indices: Sequence[Any], steps: Sequence[int] | None, lanes: int) -> list[Any]:
        if steps is None or lanes == 1 or not any(steps):
            return list(indices)
        return [index + np.arange(lanes) * step if step else index for index, step in zip(indices, steps, strict=True)]

    def _inside(self, tensor: str, places: Sequence[Any]) -> tuple[Any, ...]:
        """Places as given. IndexError if one is outside."""
        for axis, (extent, size) in enumerate(zip(places, self.arrays[tensor].shape, strict=True)):
            if (extent.min() < 0 or extent.max() >= size) if _wide(extent) else not 0 <= extent < size:
                raise IndexError(f"{tensor}: index {extent} of axis {axis}, which has {size} elements")
        return tuple(places)

    def scratch(self, name: str, count: int, dtype: str) -> None:
        """An array more."""
        self.arrays = {**self.arrays, name: np.full(count, np.nan, numpy_dtype(dtype))}

    def transposed(self, vectors: Sequence[Any], dtype: str) -> Sequence[Any]:
        """A square turned over its diagonal."""
        return list(np.stack([np.broadcast_to(vector, len(vectors)) for vector in vectors]).T)

    def fma(self, value: Any, other: Any, more: Any, dtype: str, lanes: int) -> Any:
        """Rounded twice: numpy has no other."""
        return self.apply("add", [self.apply("mul", [value, other], dtype, lanes), more], dtype, lanes)

    def apply(self, function: str, arguments: Sequence[Any], dtype: str, lanes: int) -> Any:
        """An element-wise function, as numpy computes it in the arguments' own types."""
        if function == "cast":
            with np.errstate(all="ignore"):
                return np.asarray(arguments[0]).astype(numpy_dtype(dtype))[()]
        if function == "div" and np.asarray(arguments[0]).dtype.kind in "iu":
            raise UsageError("a division of whole numbers has no program")
        result = np.asarray(FUNCTIONS[function](*arguments))
        if result.dtype != numpy_dtype(dtype) and function not in COMPARISONS:
            with np.errstate(all="ignore"):
                result = result.astype(numpy_dtype(dtype))
        return result[()]

    def cell(self, dtype: str, lanes: int, start: Any) -> Cell:
        """A variable with its first value."""
        return Cell(np.broadcast_to(start, (lanes,)).copy() if lanes > 1 else start)

    def neutral(self, how: str, dtype: str) -> Any:
        """What changes nothing."""
        kind = numpy_dtype(dtype)
        if how in ("sum", "prod"):
            return kind.type(how == "prod")
        if kind.kind == "f":
            return kind.type(-np.inf if how == "max" else np.inf)
        return np.iinfo(kind).min if how == "max" else np.iinfo(kind).max

    def join(self, how: str, value: Any, other: Any, dtype: str, lanes: int) -> Any:
        """Two partial results."""
        if how == "any_max":
            return np.fmax(value, other)  # loses NaN, as the name lets it
        function = {"sum": "add", "prod": "mul"}.get(how, how)
        return self.apply(function, [value, other], dtype, lanes)

    def horizontal(self, how: str, value: Any, dtype: str, lanes: int) -> Any:
        """All lanes of a vector, in their order."""
        if lanes == 1:
            return value
        result = value[0]
        for lane in range(1, lanes):
            result = self.join(how, result, value[lane], dtype, 1)
        return result


def _wide(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0


def run(plan: AnyPlan, inputs: Mapping[str, Any], over: Sequence[str] = ()) -> tuple[Any, Interpreter]:
    """The output of a plan's program for these inputs, and the machine that counted; ``over``: inputs that it lies on."""
    outs, machine = run_all(plan, inputs, over)
    return outs[plan.output], machine


def run_all(plan: AnyPlan, inputs: Mapping[str, Any], over: Sequence[str] = ()) -> tuple[dict[str, Any], Interpreter]:
    """Every output of a plan by its name, and the machine; ``over``: of the program's own."""
    graph = plan.graph
    sizes, outs = graph.sizes(inputs), dict[str, Any]()
    for name in graph.outputs:
        t = graph.types[name]
        empty = np.full([evaluate(extent, sizes) for extent in t.shape], np.nan if t.dtype.startswith("fp") else 0)
        outs[name] = empty.astype(numpy_dtype(t.dtype))
    out = outs[plan.output]
    arrays = {name: np.asarray(inputs[name]) for name in graph.inputs}
    for name in over:
        out[...] = arrays[name]
        arrays[name] = out
    machine = Interpreter({**arrays, **outs}, sizes)
    emit(plan, machine)
    return outs, machine
