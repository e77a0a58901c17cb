"""CPU families made from formulas: loops over the output with a vectorised innermost axis, one family a kind of operator.

A program takes its operands as they are stored, with the innermost axis contiguous and any strides elsewhere, and computes
the whole output; the runtime calls it on parts of the operands. Reductions run over the innermost axis, each in several
vector accumulators that are added in a fixed order, so a result does not depend on how the output was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.ops.formula import Apply, Formula, Load, Number, Reduce, parts, reductions
from haotuner.ops.kind import OpKind
from haotuner.words.demand import Asked, Demand, Expectation, Work
from haotuner.words.device import Device
from haotuner.words.family import Layout
from haotuner.words.kernel import Footprint, MicroKernel, Tile
from haotuner.words.law import Laws
from haotuner.words.op import Op
from haotuner.words.traffic import Traffic

FP32_BYTES = 4
ACCUMULATORS = (1, 2, 4, 8)  # vectors: an addition takes 3 to 4 cycles and two start in each, so 8 keep every pipe busy
LEAST = {"sum": 0.0, "max": -3.4028234663852886e38}  # what a reduction begins with; the largest negative float32


class CpuLoops:
    """Family ``cpu_loops_KIND_fp32``; parameters vl (lanes of a vector) and u (vectors an iteration)."""

    backend = "cpu"
    frontier = 1 + len(ACCUMULATORS)  # all

    def __init__(self, kind: OpKind) -> None:
        if kind.formula is None:
            raise ValueError(f"op kind {kind.name} has no formula to make programs from")
        self.kind, self.formula = kind, kind.formula
        self.name = f"cpu_loops_{kind.name}_fp32"

    @staticmethod
    def covers(kind: OpKind) -> bool:
        """Whether programs can be made of a kind: one layout an operand, reductions over the innermost axis only."""
        if kind.formula is None or any(len(operand.layouts) > 1 for operand in kind.operands):
            return False
        inner = inner_axis(kind)
        known = {operand.name: operand.axes({}) for operand in kind.inputs}
        innermost = all(inner not in axes or axes[-1] == inner for axes in (*known.values(), kind.output.axes({})))
        return innermost and all(part.axis == inner for part in parts(kind.formula) if isinstance(part, Reduce))

    def serves(self, op: Op) -> bool:
        """The kind in fp32, whatever is dynamic, no epilogue."""
        return op.kind == self.kind.name and op.dtype == "fp32" and not op.epilogue and bool(op.dynamic)

    def suits(self, device: Device) -> bool:
        """Any CPU: the points are made for the device's own vectors."""
        return device.kind == "cpu"

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Scalar code, and every number of accumulators at the device's vector width."""
        for lanes, vectors in ((1, 1), *((device.wave_width, count) for count in ACCUMULATORS)):
            yield MicroKernel(self.name, (("vl", lanes), ("u", vectors)))

    def tile(self, kernel: MicroKernel) -> Tile:
        """One point of every outer axis; along the innermost one whole iterations and a remainder of single elements."""
        inner, width = inner_axis(self.kind), kernel["vl"] * kernel["u"]
        output = [axis for axis in self.kind.output.axes({}) if self.kind.axes[axis] == "spatial"]
        extent = {axis: width if axis == inner else 1 for axis in output}
        step = {axis: width if axis == inner else 1 for axis, role in self.kind.axes.items() if role == "reduction"}
        return Tile(extent=extent, edge={axis: "tail" if axis == inner else "masked" for axis in output}, step=step)

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """What is asked and no more: remainders are computed element by element."""
        return extent

    def layout(self, kernel: MicroKernel) -> Layout:
        """Operands are read as they are stored."""
        return ()

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Accumulators, one register a load, and one for what is computed."""
        loads = sum(isinstance(part, Load) for part in parts(self.formula))
        touched = kernel["vl"] * kernel["u"] * FP32_BYTES * len(self.kind.operands)
        return Footprint(registers_per_thread=kernel["u"] + loads + 1, shared_bytes=touched)

    def laws(self, op: Op, device: Device) -> Laws:
        """None of its own: remainders make every program fit every extent."""
        return ()

    def demand(self, asked: Asked) -> Demand:
        """Every operand once through all levels; a tile is what runs without a new start, the whole innermost axis."""
        extents: Any = asked.extents  # columns in the place of whole numbers
        read_or_written = (
            DTYPE_BYTES[operand.dtype or "fp32"] * np.prod(operand.shape(extents, {}), axis=0)
            for operand in self.kind.operands
        )
        work = Work.streamed(np.asarray(self.kind.flops(extents), np.float64), np.asarray(sum(read_or_written), np.float64))
        return Demand(work=work, tiles=asked.tiles(self._run, self.footprint, vector=asked.param("vl")))

    def expectation(self, op: Op, device: Device, traffic: Traffic) -> Expectation | None:
        """None: the cost model's."""
        return None

    def _run(self, kernel: MicroKernel) -> Tile:
        """One point of every outer axis."""
        outer = [axis for axis in self.kind.output.axes({}) if axis != inner_axis(self.kind)]
        return Tile(extent=dict.fromkeys(outer, 1), edge=dict.fromkeys(outer, "exact"), step={})

    def fuses(self, step: str) -> bool:
        """None."""
        return False

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM module with a function ``symbol(inputs…, output)`` over whole tensors of any extents."""
        import tvm

        return tvm.IRModule({symbol: _program(self.kind, self.formula, kernel, symbol)})


def inner_axis(kind: OpKind) -> str:
    """The axis that is contiguous in memory: the last one of the first operand."""
    return kind.operands[0].axes({})[-1]


def _program(kind: OpKind, formula: Formula, kernel: MicroKernel, symbol: str) -> Any:
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.script.ir_builder import tirx as T

    lanes, vectors = kernel["vl"], kernel["u"]
    inner, width = inner_axis(kind), kernel["vl"] * kernel["u"]
    outer = [axis for axis in kind.output.axes({}) if axis != inner]
    extent = {axis: tirx.Var(axis, "int64") for axis in kind.axes}

    def int64(value: int) -> Any:
        return tirx.IntImm("int64", value)

    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name(symbol)
        T.func_attr({"global_symbol": symbol, "tirx.noalias": True})  # the runtime refuses aliases
        handles = {operand.name: T.arg(operand.name, T.handle()) for operand in kind.operands}
        buffers = {}
        for operand in kind.operands:
            axes = operand.axes({})
            strides = [tirx.Var(f"{operand.name}_{axis}_stride", "int64") for axis in axes]
            if axes[-1] == inner:
                strides[-1] = int64(1)
            buffers[operand.name] = T.match_buffer(
                handles[operand.name], [extent[axis] for axis in axes], "float32", strides=strides, align=FP32_BYTES
            )

        def loops(axes: list[str], place: Mapping[str, Any]) -> None:
            """The rest of the outer axes, then one point of them."""
            if axes:
                with T.serial(extent[axes[0]]) as index:
                    loops(axes[1:], {**place, axes[0]: index})
                return
            _point(place)

        def _point(place: Mapping[str, Any]) -> None:
            known: dict[Reduce, Any] = {}
            for reduction in reductions(formula):
                known[reduction] = reduced(reduction, place, known)
            output = buffers[kind.output.name]
            own = kind.output.axes({})
            if inner not in own:
                T.buffer_store(output, lower(formula, place, int64(0), 1, known), [place[axis] for axis in own])
                return

            def write(at: Any, size: int) -> None:
                column = tirx.Ramp(at, int64(1), size) if size > 1 else at
                T.buffer_store(output, lower(formula, place, at, size, known), [*(place[a] for a in own[:-1]), column])

            along(write)

        def along(body: Callable[[Any, int], None]) -> None:
            """``body(first, lanes)`` over the inner axis: whole vectors, then single elements."""
            count = extent[inner]
            whole = tirx.floordiv(count, int64(width))
            with T.serial(whole) as step:
                for vector in range(vectors):
                    body(step * width + vector * lanes, lanes)
            with T.serial(count - whole * width) as left:
                body(whole * width + left, 1)

        def reduced(reduction: Reduce, place: Mapping[str, Any], known: Mapping[Reduce, Any]) -> Any:
            """A buffer of one element with the reduction's value."""
            least = tirx.FloatImm("float32", LEAST[reduction.how])
            total = T.sblock_alloc_buffer((1,), "float32", scope="global")
            T.buffer_store(total, least, [0])
            count = extent[inner]
            whole = tirx.floordiv(count, int64(width))
            if lanes > 1:
                sums = T.sblock_alloc_buffer((vectors,), f"float32x{lanes}", scope="global")
                spread = T.sblock_alloc_buffer((lanes,), "float32", scope="global")
                for vector in range(vectors):
                    T.buffer_store(sums, tirx.Broadcast(least, lanes), [vector])
                with T.serial(whole) as step:
                    for vector in range(vectors):
                        value = lower(reduction.of, place, step * width + vector * lanes, lanes, known)
                        T.buffer_store(sums, joined(reduction.how, sums[vector], value), [vector])
                value = sums[0]
                for vector in range(1, vectors):
                    value = joined(reduction.how, value, sums[vector])
                T.buffer_store(spread, value, [tirx.Ramp(int64(0), int64(1), lanes)])
                for lane in range(lanes):
                    T.buffer_store(total, joined(reduction.how, total[0], spread[lane]), [0])
            else:
                with T.serial(whole * width) as step:
                    value = lower(reduction.of, place, step, 1, known)
                    T.buffer_store(total, joined(reduction.how, total[0], value), [0])
            with T.serial(count - whole * width) as left:
                value = lower(reduction.of, place, whole * width + left, 1, known)
                T.buffer_store(total, joined(reduction.how, total[0], value), [0])
            return total

        def joined(how: str, one: Any, other: Any) -> Any:
            return one + other if how == "sum" else tirx.max(one, other)

        def lower(part: Formula, place: Mapping[str, Any], at: Any, size: int, known: Mapping[Reduce, Any]) -> Any:
            """A part of the formula at ``size`` elements of the inner axis from ``at`` on."""
            if isinstance(part, Number):
                return spread_over(tirx.FloatImm("float32", part.value), size)
            if isinstance(part, Reduce):
                return spread_over(known[part][0], size)
            if isinstance(part, Load):
                own = next(operand for operand in kind.inputs if operand.name == part.operand).axes({})
                if inner not in own:
                    return spread_over(buffers[part.operand][tuple(place[axis] for axis in own)], size)
                column = tirx.Ramp(at, int64(1), size) if size > 1 else at
                return buffers[part.operand][(*(place[axis] for axis in own[:-1]), column)]
            values = [lower(argument, place, at, size, known) for argument in part.arguments]
            return _apply(tirx, part, values)

        def spread_over(value: Any, size: int) -> Any:
            return tirx.Broadcast(value, size) if size > 1 else value

        loops(outer, {})
    return builder.get()


def _apply(tirx: Any, part: Apply, values: list[Any]) -> Any:
    binary = {"add": "__add__", "sub": "__sub__", "mul": "__mul__", "div": "__truediv__"}
    if part.function in binary:
        return getattr(values[0], binary[part.function])(values[1])
    return getattr(tirx, part.function)(*values)
