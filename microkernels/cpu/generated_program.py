"""Builder of a program in TVM, register transposes included; the function around it is ``generated_function.py``'s.

Register transpose: a square of vectors turned over its diagonal by shuffles of two vectors each.

Within 128 bits lanes are woven (``unpcklps``, ``unpcklpd``), then pieces of 128 bits are sorted into even and odd ones: each
is one instruction of AVX and AVX-512 that wants no register of indices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from haotuner.codegen.emit import AnyPlan
from haotuner.codegen.vector_functions import FORMULAS
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent
from haotuner.graph.types import NUMPY_NAMES
from haotuner.microkernels.cpu.lane_program import vector_function
from haotuner.microkernels.cpu.vector_math import VectorMath
from haotuner.ops.formula import COMPARISONS

PIECE = 4  # lanes in 128 bits


def transposed_square(vectors: Sequence[Any], shuffle: Callable[[Any, Any, Sequence[int]], Any]) -> list[Any]:
    """Vector ``i`` of the result has lane ``i`` of each. ``shuffle``: lanes of two vectors, one behind the other, by place.

    As many vectors as each has lanes, a power of two.
    """
    left = list(vectors)
    stages, order = _network(len(left))
    for stage in stages:
        for item, other, low, high in stage:
            left[item], left[other] = shuffle(left[item], left[other], low), shuffle(left[item], left[other], high)
    return [left[position] for position in order]


Step = tuple[int, int, tuple[int, ...], tuple[int, ...]]


@cache
def _network(lanes: int) -> tuple[tuple[tuple[Step, ...], ...], tuple[int, ...]]:
    """Stages of pairs with what both become, and where each column is found in the end."""
    piece, stages, distance = min(PIECE, lanes), [], 1
    square = np.arange(lanes * lanes).reshape(lanes, lanes)
    while distance < lanes:
        low, high = _woven(lanes, piece, distance) if distance < piece else _sorted(lanes, piece)
        pairs = tuple((index, index + distance, low, high) for index in range(lanes) if not index & distance)
        for item, other, *_ in pairs:
            both = np.concatenate([square[item], square[other]])
            square[item], square[other] = both[list(low)], both[list(high)]
        stages.append(pairs)
        distance *= 2
    columns = {int(row[0]) % lanes: index for index, row in enumerate(square)}
    return tuple(stages), tuple(columns[column] for column in range(lanes))


def _woven(lanes: int, piece: int, width: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of every piece the first halves (the last ones) of both, ``width`` lanes of each in turn."""
    places = np.arange(lanes).reshape(-1, 2, piece // 2 // width, width)
    both = np.stack([places, places + lanes], axis=3)  # piece, half, group, which of the two, lane
    low, high = both[:, 0].reshape(-1), both[:, 1].reshape(-1)
    return tuple(low.tolist()), tuple(high.tolist())


def _sorted(lanes: int, piece: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Even and odd pieces of both."""
    places = np.arange(2 * lanes).reshape(-1, 2, piece)
    return tuple(places[:, 0].reshape(-1).tolist()), tuple(places[:, 1].reshape(-1).tolist())


BINARY = {"add": "__add__", "sub": "__sub__", "mul": "__mul__", "div": "__truediv__"}
VECTOR_MATH = ("exp", "tanh", "erf", "sigmoid")
# Of doubles; what LLVM has an instruction for, or TVM a rule that is exact, is left to them.
LIBRARY = tuple(function for function in FORMULAS if function not in ("log", "sin", "cos"))
TVM_NAMES = {**NUMPY_NAMES, "bool": "bool"}


class Buffer(NamedTuple):
    """A tensor in memory; ``flat``: the same as one axis, with the strides that lead there."""

    whole: Any
    flat: Any
    strides: list[Any]


class TirCell:
    """A variable of the program: one element of local memory, which the compiler keeps in a register."""

    def __init__(self, builder: Any, dtype: str, lanes: int) -> None:
        self.T = builder
        self.buffer = builder.sblock_alloc_buffer((1,), _typed(dtype, lanes), scope="global")

    def get(self) -> Any:
        """Its value."""
        return self.buffer[0]

    def set(self, value: Any) -> None:
        """Give it another value."""
        self.T.buffer_store(self.buffer, value, [0])


class Tir:
    """Builder of TVM expressions; a loop's body is emitted once."""

    predicates = True

    def __init__(self, plan: AnyPlan, buffers: dict[str, Buffer], dimensions: dict[str, Any]) -> None:
        from tvm import tirx
        from tvm.script.ir_builder import tirx as T

        self.plan, self.buffers, self.dimensions = plan, buffers, dimensions
        self.tirx, self.T = tirx, T
        self._scratch: dict[str, str] = {}

    def number(self, value: float, dtype: str) -> Any:
        """A constant."""
        if dtype == "bool":
            return self.tirx.IntImm("bool", int(value))
        name = TVM_NAMES[dtype]
        return self.tirx.FloatImm(name, float(value)) if dtype in ("fp32", "fp64") else self.tirx.IntImm(name, int(value))

    def scratch(self, name: str, count: int, dtype: str) -> None:
        """An array on the stack: TVM would ask a runtime for one of this size."""
        self.buffers = {**self.buffers, name: stack_array(name, count, TVM_NAMES[dtype])}
        self._scratch[name] = dtype

    def brought(self, name: str, buffer: Buffer, dtype: str) -> None:
        """An array that the caller brings."""
        self.buffers = {**self.buffers, name: buffer}
        self._scratch[name] = dtype

    def transposed(self, vectors: Sequence[Any], dtype: str) -> Sequence[Any]:
        """A square turned by shuffles."""
        lanes = len(vectors)

        def shuffle(value: Any, other: Any, places: Sequence[int]) -> Any:
            made = self.tirx.Shuffle([value, other], [self.tirx.IntImm("int32", position) for position in places])
            return self._once(made, lanes)

        return transposed_square(vectors, shuffle)

    def fma(self, value: Any, other: Any, more: Any, dtype: str, lanes: int) -> Any:
        """One instruction where the CPU has it."""
        inputs = [self._wide(value, lanes) for value in (value, other, more)]
        return self.tirx.call_llvm_pure_intrin(_typed(dtype, lanes), "llvm.fmuladd", *inputs)

    def size(self, extent: Extent) -> Any:
        """An extent's size, in terms of the tensors' dimensions."""
        return lowered_extent(extent, self.dimensions)

    def loop(self, count: Any, body: Callable[[Any], None]) -> None:
        """A serial loop from 0 on."""
        with self.T.serial(count) as i:
            body(i)

    def ramp(self, base: Any, lanes: int, pitch: int = 1) -> Any:
        """The numbers from the base on."""
        return self.tirx.Ramp(base, self.number(pitch, "int64"), lanes) if lanes > 1 else base

    def together(self, first: Any, bases: Sequence[Any], pitch: int, limit: Any) -> Sequence[Any]:
        """As they are: the compiler orders loads itself."""
        return bases

    def mask(self, base: Any, extent: Any, lanes: int, pitch: int = 1) -> Any:
        """The lanes before the extent, compared in 32 bits."""
        left = self.cell("int32", 1, self.tirx.Cast("int32", extent - base)).get()
        ramp = self.tirx.Ramp(self.tirx.IntImm("int32", 0), self.tirx.IntImm("int32", pitch), lanes)
        return ramp < self.tirx.Broadcast(left, lanes)

    def load(
        self,
        tensor: str,
        indices: Sequence[Any],
        steps: Sequence[int] | None,
        lanes: int,
        mask: Any,
        symbolic: Sequence[Any] = (),
    ) -> Any:
        """Elements of a tensor."""
        buffer = self.buffers[tensor]
        places, wide = self._indices(buffer, indices, steps, lanes)
        if wide and mask is not None:
            result = self.tirx.op.masked_load(_typed(self._dtype(tensor), lanes), buffer.whole, *places, mask)
        else:
            result = (buffer.flat if len(places) < len(indices) or not indices else buffer.whole)[tuple(places)]
        for size in symbolic:
            nothing = self._wide(self.number(0, self._dtype(tensor)), lanes if wide else 1)
            result = self.tirx.if_then_else(size > 0, result, nothing)
        return result

    def store(self, tensor: str, indices: Sequence[Any], steps: Sequence[int], value: Any, lanes: int, mask: Any) -> None:
        """Write the lanes that exist."""
        buffer = self.buffers[tensor]
        places, wide = self._indices(buffer, indices, steps, lanes)
        if wide:
            value = self._wide(value, lanes)
        if wide and mask is not None:
            self.T.evaluate(self.tirx.op.masked_store(buffer.whole, value, *places, mask))
        else:
            target = buffer.flat if len(places) < len(indices) or not indices else buffer.whole
            self.T.buffer_store(target, value, places)

    def _indices(
        self, buffer: Buffer, indices: Sequence[Any], steps: Sequence[int] | None, lanes: int
    ) -> tuple[list[Any], bool]:
        """Indices for TVM, which takes a vector in the last one only: where others are vectors, one flat index."""
        if not indices:
            return [self.number(0, "int64")], False
        if steps is None:
            if all(_lanes(index) == 1 for index in indices):
                return list(indices), False
            flat = self._wide(self.number(0, "int64"), lanes)
            for index, stride in zip(indices, buffer.strides, strict=True):
                flat = flat + self._wide(index, lanes) * self._wide(stride, lanes)
            return [flat] if len(indices) > 1 else [self._wide(indices[0], lanes)], True
        if lanes == 1 or not any(steps):
            return list(indices), False
        if not any(steps[:-1]):
            return [*indices[:-1], self.tirx.Ramp(indices[-1], self.number(steps[-1], "int64"), lanes)], True
        start, step = self.number(0, "int64"), self.number(0, "int64")
        for position, growth, stride in zip(indices, steps, buffer.strides, strict=True):
            start, step = start + position * stride, step + self.number(growth, "int64") * stride
        return [self.tirx.Ramp(start, step, lanes)], True

    def apply(self, function: str, arguments: Sequence[Any], dtype: str, lanes: int) -> Any:
        """An element-wise function."""
        inputs = [self._wide(argument, lanes) for argument in arguments]
        if function == "cast":
            return self._cast(inputs[0], dtype, lanes)
        if function in VECTOR_MATH and dtype == "fp32":
            return getattr(VectorMath(lanes, lambda value: self._once(value, lanes)), function)(*inputs)
        if function in FORMULAS and dtype == "fp32":
            return vector_function(function, inputs, lanes, lambda value: self._once(value, lanes))
        if function in LIBRARY and dtype == "fp64":
            return self._library(function, inputs, lanes)
        made = getattr(self, f"_{function}", None)
        if made is not None:
            return made(inputs, dtype, lanes)
        if function in BINARY:
            return getattr(inputs[0], BINARY[function])(inputs[1])
        if function in COMPARISONS:
            return self._compared(function, inputs)
        if function in ("sqrt", "floor", "ceil", "abs", "sin", "cos", "exp", "log", "tanh", "erf", "sigmoid"):
            return getattr(self.tirx, function)(*inputs)
        raise UsageError(f"no program for the function {function!r} of {dtype}")

    def _library(self, function: str, inputs: Sequence[Any], lanes: int) -> Any:
        """A function of doubles by the C library, lane by lane."""
        tirx = self.tirx
        if function == "mod":
            rest = self._once(self._library("fmod", inputs, lanes), lanes)
            zero, less = (self._wide(tirx.FloatImm("float64", item), lanes) for item in (0.0, -0.0))
            negative, moved = inputs[1] < zero, rest + inputs[1]
            result = tirx.Select(negative, tirx.Select(rest > zero, moved, rest), tirx.Select(rest < zero, moved, rest))
            return tirx.Select(tirx.EQ(rest, zero), tirx.Select(negative, less, zero), result)
        if lanes == 1:
            return tirx.call_pure_extern("float64", function, *inputs)
        index = [tirx.IntImm("int32", lane) for lane in range(lanes)]
        results = [
            tirx.call_pure_extern("float64", function, *(tirx.Shuffle([item], [lane]) for item in inputs)) for lane in index
        ]
        return tirx.Shuffle(results, index)

    def _compared(self, function: str, inputs: list[Any]) -> Any:
        tirx = self.tirx
        if function == "isinf":
            return tirx.EQ(tirx.abs(inputs[0]), self._wide(tirx.FloatImm("float32", float("inf")), _lanes(inputs[0])))
        return {
            "equal": lambda: tirx.EQ(inputs[0], inputs[1]), "less": lambda: inputs[0] < inputs[1],
            "less_equal": lambda: inputs[0] <= inputs[1], "greater": lambda: inputs[0] > inputs[1],
            "greater_equal": lambda: inputs[0] >= inputs[1], "and": lambda: tirx.And(*inputs),
            "or": lambda: tirx.Or(*inputs), "not": lambda: tirx.Not(inputs[0]), "isnan": lambda: tirx.isnan(inputs[0]),
            "xor": lambda: tirx.Or(tirx.And(inputs[0], tirx.Not(inputs[1])), tirx.And(tirx.Not(inputs[0]), inputs[1])),
        }[function]()  # fmt: skip

    def _select(self, inputs: list[Any], dtype: str, lanes: int) -> Any:
        return self.tirx.Select(*inputs)

    def _floordiv(self, inputs: list[Any], dtype: str, lanes: int) -> Any:
        return self.tirx.floordiv(*inputs)

    def _mod(self, inputs: list[Any], dtype: str, lanes: int) -> Any:
        return self.tirx.floormod(*inputs)

    def _neg(self, inputs: list[Any], dtype: str, lanes: int) -> Any:
        return self._wide(self.number(-1, dtype), lanes) * inputs[0]

    def _max(self, inputs: list[Any], dtype: str, lanes: int) -> Any:
        return self._extreme(inputs, dtype, lanes, greater=True)

    def _any_max(self, inputs: list[Any], dtype: str, lanes: int) -> Any:
        """The larger of two, in one instruction; of a NaN either."""
        return self.tirx.Select(inputs[0] > inputs[1], inputs[0], inputs[1])

    def _min(self, inputs: list[Any], dtype: str, lanes: int) -> Any:
        return self._extreme(inputs, dtype, lanes, greater=False)

    def _extreme(self, inputs: list[Any], dtype: str, lanes: int, *, greater: bool) -> Any:
        """The larger (smaller) of two; a NaN in either is the result, as in numpy."""
        if not dtype.startswith("fp"):
            return (self.tirx.max if greater else self.tirx.min)(*inputs)
        first, other = (self._once(value, lanes) for value in inputs)
        ahead = self._once(
            self.tirx.Select(first > other if greater else first < other, first, other), lanes
        )  # other if one is NaN
        return self.tirx.Select(self.tirx.isnan(first), first, ahead)

    def _rsqrt(self, inputs: list[Any], dtype: str, lanes: int) -> Any:
        return self._wide(self.number(1, dtype), lanes) / self.tirx.sqrt(inputs[0])

    def _reciprocal(self, inputs: list[Any], dtype: str, lanes: int) -> Any:
        return self._wide(self.number(1, dtype), lanes) / inputs[0]

    def _round(self, inputs: list[Any], dtype: str, lanes: int) -> Any:
        """To the nearest, ties to even."""
        return self.tirx.nearbyint(inputs[0])

    def _sign(self, inputs: list[Any], dtype: str, lanes: int) -> Any:
        """-1, 0 or 1; NaN stays."""
        x = self._once(inputs[0], lanes)
        item, less, zero = (self._wide(self.number(value, dtype), lanes) for value in (1, -1, 0))
        return self.tirx.Select(x > zero, item, self.tirx.Select(x < zero, less, x))

    def _pow(self, inputs: list[Any], dtype: str, lanes: int) -> Any:
        return self.tirx.power(*inputs)

    def _cast(self, value: Any, dtype: str, lanes: int) -> Any:
        return self.tirx.Cast(_typed(dtype, lanes), value)

    def cell(self, dtype: str, lanes: int, start: Any) -> TirCell:
        """A variable with its first value."""
        result = TirCell(self.T, dtype, lanes)
        result.set(self._wide(start, lanes))
        return result

    def neutral(self, how: str, dtype: str) -> Any:
        """Neutral element of a reduction."""
        if how in ("sum", "prod"):
            return self.number(how == "prod", dtype)
        if dtype.startswith("fp"):
            return self.number(float("-inf") if how == "max" else float("inf"), dtype)
        find = self.tirx.min_value if how == "max" else self.tirx.max_value
        return find(TVM_NAMES[dtype])

    def join(self, how: str, value: Any, other: Any, dtype: str, lanes: int) -> Any:
        """Two partial results."""
        return self.apply({"sum": "add", "prod": "mul"}.get(how, how), [value, other], dtype, lanes)

    def horizontal(self, how: str, value: Any, dtype: str, lanes: int) -> Any:
        """All lanes of a vector: halves are joined until one is left."""
        while lanes > 1:
            spread = self.T.sblock_alloc_buffer((lanes,), TVM_NAMES[dtype], scope="global")
            self.T.buffer_store(spread, value, [self._span(0, lanes)])
            lanes //= 2
            value = self.join(how, spread[self._span(0, lanes)], spread[self._span(lanes, lanes)], dtype, lanes)
        return value

    def _span(self, first: int, lanes: int) -> Any:
        start = self.number(first, "int64")
        return self.tirx.Ramp(start, self.number(1, "int64"), lanes) if lanes > 1 else start

    def _once(self, value: Any, lanes: int) -> Any:
        """The value in a variable, so that it is computed once; constants as they are."""
        if type(value).__name__ in ("FloatImm", "IntImm", "BufferLoad", "Broadcast", "Var"):
            return value
        cell = self.T.sblock_alloc_buffer((1,), str(value.ty), scope="global")
        self.T.buffer_store(cell, value, [0])
        return cell[0]

    def _wide(self, value: Any, lanes: int) -> Any:
        return self.tirx.Broadcast(value, lanes) if lanes > 1 and _lanes(value) == 1 else value

    def _dtype(self, tensor: str) -> str:
        return self._scratch.get(tensor) or self.plan.graph.types[tensor].dtype


def stack_array(name: str, count: int, dtype: str) -> Buffer:
    """An array of a known number of four-byte elements in the function's own frame."""
    import tvm
    from tvm import tirx
    from tvm.ir import PointerType, PrimType
    from tvm.script.ir_builder import tirx as T

    where = PointerType(PrimType(dtype), "global")
    data = tirx.Var(name.replace(" ", "_"), where)
    words = T.tvm_stack_alloca("shape", -(-count // 2))  # of eight bytes each
    T.bind(tvm.ir.Call(words.op, list(words.args), ret_ty=where), var=data)
    made = T.decl_buffer((tirx.IntImm("int64", count),), dtype, data=data, align=4)
    return Buffer(made, made, [tirx.IntImm("int64", 1)])


def _typed(dtype: str, lanes: int) -> str:
    return TVM_NAMES[dtype] if lanes == 1 else f"{TVM_NAMES[dtype]}x{lanes}"


def _lanes(value: Any) -> int:
    text = str(value.ty)
    return int(text.rpartition("x")[2]) if "x" in text and text.rpartition("x")[2].isdigit() else 1


def lowered_extent(extent: Extent, dimensions: dict[str, Any]) -> Any:
    """An extent as a TVM expression of the dimensions' variables."""
    from tvm import tirx

    if isinstance(extent, int):
        return tirx.IntImm("int64", extent)
    from haotuner.graph.extents import lowered

    return lowered(extent, dimensions, number=lambda value: tirx.IntImm("int64", value),
                   floordiv=tirx.floordiv, mod=tirx.floormod, maximum=tirx.max, minimum=tirx.min)  # fmt: skip
