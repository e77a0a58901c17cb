"""CPU families of generated programs: one family a kind of operator that says by steps what it computes.

A micro-kernel is a schedule (``haotuner/codegen/schedule.py``) of the kind's graph. Its program takes whole tensors of any
extents, with the innermost axis contiguous and any strides elsewhere; the runtime calls it on parts of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from string import ascii_lowercase
from typing import Any

import numpy as np

from haotuner.codegen.cache_read import COLUMNS
from haotuner.codegen.cache_read import ROWS as ROW_BIT
from haotuner.codegen.in_place import in_place
from haotuner.codegen.kinds import graph_of, has_graph
from haotuner.codegen.multi_stage import StagePlan
from haotuner.codegen.rfactor import joined
from haotuner.codegen.schedule import (
    FOLDS,
    Plan,
    Schedule,
    describe,
    keepable,
    planned,
    shareable,
    stageable,
    tileable,
    turnable,
)
from haotuner.codegen.space import SLICES, Space
from haotuner.errors import UsageError
from haotuner.graph.graph import Graph
from haotuner.microkernels.cpu.generated_demand import Levels, count, counts_of
from haotuner.ops.kind import OpKind, Options
from haotuner.spec.constraint import Laws
from haotuner.spec.demand import Demand, DemandQuery, Expectation, Work
from haotuner.spec.device import Device
from haotuner.spec.family import Layout
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic

FP32_BYTES = 4
# Vectors an iteration: an addition takes 3 to 4 cycles and two start in each, so 8 keep every pipe busy.
UNROLLS = (1, 2, 4, 8)
ROWS = (1, 4)  # that an iteration writes
TILED = ((2, 4), (4, 4), (4, 2), (2, 8))  # vectors and rows of a block of registers, where operands are used again
STAGED = (2, 4)  # vectors an iteration of rows that are shared in stages
TILES = ((4, 1, 0), (16, 1, 256), (16, 4, 256))  # blocks of rows and of vectors in a tile, terms at a time; 0: all

COPIED = ((4, 1, 0), (16, 1, 0))  # the same of tiles that read copies
TURNED = ((4, 1, 0), (4, 4, 0), (16, 4, 0), (1, 16, 0))  # squares in a tile, along the axis of loads and that of stores


class CpuGenerated:
    """Family ``cpu_generated_KIND_fp32``.

    Parameters: vl (lanes of a vector), u (vectors an iteration), ax (the output's axis along the lanes, from 1 on; 0: none),
    kp (the tensor that is kept in the output's rows, from 1 on; 0: none); oa, ob, …: the op's options, in the kind's order.
    Only where they differ from the first choice: fu (vectors an iteration of each fold, powers of two as digits behind a 1;
    first choice: as u), rw (rows an iteration writes; 1), sc (1: the end of an axis is scalar code, not masked); tr, tv, tt
    (blocks of rows and of vectors in a tile, terms that come at a time; none: no tiles), cr (operands of tiles that are
    copied, as bits; 0). On GPUs
    pk (neighbours that a thread takes at a time; 1), hd (1: a row's first iteration stays in registers).
    pt (parts of a folded axis that workers share; 1): on CPUs of rows in stages alone, other folds are cut by the runtime.
    """

    backend = "cpu"
    frontier = 20  # of the points: behind them by what their programs do none was near the best (docs/decisions/180)

    def __init__(self, kind: OpKind) -> None:
        if not has_graph(kind):
            raise ValueError(f"op kind {kind.name} has neither a formula nor a graph to make programs from")
        self.kind = kind
        self.name = f"cpu_generated_{kind.name}_fp32"

    @staticmethod
    def covers(kind: OpKind) -> bool:
        """True if programs can be made of a kind."""
        return has_graph(kind)

    def serves(self, op: Op) -> bool:
        """The kind in fp32, whatever is dynamic, no epilogue."""
        return op.kind == self.kind.name and op.dtype == "fp32" and not op.epilogue and bool(op.dynamic)

    def suits(self, device: Device) -> bool:
        """Any CPU: the points are made for the device's own vectors."""
        return device.kind == "cpu"

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every axis along the lanes, every number of vectors, with and without a kept tensor; scalar code last.

        Along the innermost axis also reductions with another number of vectors than the output, and several rows at a time;
        what else a schedule may decide is left to a search of ``space``.
        """
        options = self._option_params(op.all_options())
        graph = self._graph(op.all_options())
        rank, folds = graph.types[graph.outputs[0]].rank, any(node.primitive == "reduce" for node in graph.nodes)
        selected = range(len(keepable(graph)) + 1)
        rows = ROWS if rank > 1 else ROWS[:1]
        space = self.space(op, device)
        factored = any(
            rank - 1 in axes and sketch.nodes("factor") for sketch, axes in zip(space.sketches, space.axes, strict=True)
        )
        # Long rows want more accumulators than vectors of the output; short ones fewer, and several rows at a time.
        own = [(u, f, 1) for u in UNROLLS for f in UNROLLS if factored and f > u]
        own += [(u, f, r) for r in rows[1:] for u in UNROLLS for f in UNROLLS if (f <= u if factored else f == u)]
        for axis in (rank, *([0] if folds else []), *range(1, rank)):
            for keep in selected:
                for u, f, r in own if axis == rank else []:
                    kept_tensor = keepable(graph)[keep - 1 : keep] if keep else ()
                    many = (f,) * sum(node.primitive in FOLDS for node in graph.nodes)
                    kernel = self.kernel_of(
                        Schedule(
                            lane_axis=axis - 1, lanes=device.wave_width, unroll=u, folds=many, rows=r, cached=kept_tensor
                        ),
                        op,
                    )
                    if self._plan(kernel) is not None:
                        yield kernel
                for vectors in UNROLLS if axis in (0, rank) else UNROLLS[:2]:
                    kernel = self._kernel(device.wave_width, vectors, axis, keep, options)
                    if self._plan(kernel) is not None:
                        yield kernel
        for schedule in _tiled(space):
            yield self.kernel_of(schedule, op)
        yield from (self.kernel_of(schedule, op) for schedule in _transposing(space))
        yield self._kernel(1, 1, rank, 0, options)

    def space(self, op: Op, device: Device) -> Space:
        """Every schedule of an op's program for the device's vectors."""
        return Space(self._graph(op.all_options()), device.wave_width)

    def staged(self, op: Op, device: Device, workers: int) -> tuple[str, list[MicroKernel]]:
        """The axis of few long rows that so many workers may share in stages, and the kernels that do; no axis: "", []."""
        graph = self._graph(op.all_options())
        axis = graph.types[graph.outputs[0]].rank - 1 if self.backend == "cpu" else -1  # devices race theirs among all
        along = str(graph.types[graph.outputs[0]].shape[axis]) if axis >= 0 else ""
        if along not in op.axes or shareable(graph, axis) or not stageable(graph, axis):
            return "", []
        item = Schedule(lane_axis=axis, lanes=device.wave_width, unroll=2, parts=SLICES * workers)
        return along, [self.kernel_of(replace(item, unroll=vectors), op) for vectors in STAGED]

    def kernel_of(self, schedule: Schedule, op: Op) -> MicroKernel:
        """The micro-kernel of a schedule of the op's graph."""
        options = op.all_options()
        graph = self._graph(options)
        if schedule.parts > 1 and self.backend == "cpu":  # stages decide on vectors alone
            schedule = replace(schedule, folds=(), rows=1, masked=True)
        selected = keepable(graph).index(schedule.cached[0]) + 1 if schedule.cached else 0
        more: list[tuple[str, int]] = []
        if any(fold != schedule.unroll for fold in schedule.folds):
            more.append(("fu", int("1" + "".join(str(fold.bit_length() - 1) for fold in schedule.folds))))
        if schedule.rows > 1:
            more.append(("rw", schedule.rows))
        if not schedule.masked:
            more.append(("sc", 1))
        if schedule.tiles:
            more += zip(("tr", "tv", "tt"), schedule.tiles, strict=True)
        if schedule.cache_read:
            more.append(("cr", schedule.cache_read))
        if schedule.packed > 1:
            more.append(("pk", schedule.packed))
        if schedule.peeled:
            more.append(("hd", 1))
        if schedule.parts > 1 and (self.backend != "cpu" or not shareable(graph, schedule.lane_axis)):
            more.append(("pt", schedule.parts))  # on CPUs the runtime cuts a fold that is the output
        return self._kernel(
            schedule.lanes, schedule.unroll, schedule.lane_axis + 1, selected, (*more, *self._option_params(options))
        )

    def _kernel(self, lanes: int, vectors: int, axis: int, keep: int, options: tuple[tuple[str, int], ...]) -> MicroKernel:
        return MicroKernel(self.name, (("vl", lanes), ("u", vectors), ("ax", axis), ("kp", keep), *options))

    def _option_params(self, options: Options) -> tuple[tuple[str, int], ...]:
        """Options as numbers: the place among the choices, or the numbers themselves."""
        result: list[tuple[str, int]] = []
        for letter, (name, option) in zip(ascii_lowercase, self.kind.options.items(), strict=False):
            value = options[name]
            numbers = [option.choices.index(value)] if option.choices else [int(part) for part in value.split(".")]
            result += [(f"o{letter}{ascii_lowercase[index] * (index > 0)}", number) for index, number in enumerate(numbers)]
        return tuple(result)

    def _options(self, kernel: MicroKernel) -> dict[str, str]:
        inputs, result = dict(kernel.params), {}
        for letter, (name, option) in zip(ascii_lowercase, self.kind.options.items(), strict=False):
            keys = [f"o{letter}{last}" for last in ("", *ascii_lowercase[1:]) if f"o{letter}{last}" in inputs]
            result[name] = option.choices[inputs[keys[0]]] if option.choices else ".".join(str(inputs[key]) for key in keys)
        return result

    def _own(self, kernel: MicroKernel) -> OpKind:
        """The kind with the kernel's options."""
        return self.kind.variant(self._options(kernel)) if self.kind.variant is not None else self.kind

    def _graph(self, options: Options) -> Graph:
        return _graph(self.kind.name, tuple(options.items()), self)

    def _plan(self, kernel: MicroKernel) -> Plan | None:
        """The plan of a kernel; None where the graph cannot be run so."""
        graph = self._graph(self._options(kernel))
        selected = keepable(graph)[kernel["kp"] - 1 : kernel["kp"]] if kernel["kp"] else ()
        inputs = dict(kernel.params)
        schedule = Schedule(
            lane_axis=kernel["ax"] - 1,
            lanes=kernel["vl"],
            unroll=kernel["u"],
            cached=tuple(selected),
            folds=tuple(1 << int(digit) for digit in str(inputs.get("fu", 1))[1:]),
            rows=inputs.get("rw", 1),
            masked=not inputs.get("sc", 0),
            packed=inputs.get("pk", 1),
            peeled=bool(inputs.get("hd", 0)),
            parts=inputs.get("pt", 1),
            tiles=tuple(inputs[name] for name in ("tr", "tv", "tt")) if "tr" in inputs else (),
            cache_read=inputs.get("cr", 0),
        )
        try:
            return planned(graph, schedule)
        except UsageError:
            return None

    def lanes(self, kernel: MicroKernel) -> int:
        """Lanes of a vector; programs with as many have the same bits of a function."""
        return kernel["vl"]

    def turns(self, kernel: MicroKernel) -> bool:
        """True if a kernel transposes squares in registers."""
        plan = self._plan(kernel)
        return isinstance(plan, Plan) and plan.turns

    def tile(self, kernel: MicroKernel) -> Tile:
        """One point of every axis; along the lanes whole iterations and a remainder."""
        kind, width = self._own(kernel), kernel["vl"] * kernel["u"]
        output = kind.output.axes({})
        along = output[kernel["ax"] - 1] if kernel["ax"] else None
        spatial = [axis for axis in output if kind.axes.get(axis, "spatial") == "spatial"]
        extent = {axis: width if axis == along else 1 for axis in spatial}
        step = {
            axis: width if axis == along or along is None else 1 for axis, role in kind.axes.items() if role == "reduction"
        }
        return Tile(extent=extent, edge={axis: "tail" if axis == along else "masked" for axis in spatial}, step=step)

    def computed(self, kernel: MicroKernel, axis: str, extent: int) -> int:
        """Extent as asked and no more: remainders are masked or computed element by element."""
        return extent

    def layout(self, kernel: MicroKernel) -> Layout:
        """Operands are read as they are stored."""
        return ()

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """An iteration's vectors of every operand, and as many accumulators."""
        operands = len(self._own(kernel).operands)
        touched = kernel["vl"] * kernel["u"] * FP32_BYTES * operands
        return Footprint(registers_per_thread=kernel["u"] + operands, shared_bytes=touched)

    def laws(self, op: Op, device: Device) -> Laws:
        """None of its own: remainders make every program fit every extent."""
        return ()

    def demand(self, requested: DemandQuery) -> Demand:
        """Instructions and bytes counted from each program; a tile is what runs without a new start."""
        kind = self._own(requested.kernels[0])
        options = self._options(requested.kernels[0])
        extents: Any = kind.complete(requested.extents, options)  # columns in the place of whole numbers
        counted, moved = counts_of(requested, self._plan, extents)
        work = Work(flops={"simd": np.asarray(kind.flops(extents), np.float64)}, mid_bytes=counted.l1_bytes, **moved)
        tiles = requested.tiles(self._run, self.footprint, vector=requested.param("vl"))
        return Demand(work=work, tiles=tiles, counted=counted)

    def joins(self, kernel: MicroKernel) -> dict[str, str]:
        """Folded axes along which threads may share a call, and how their results are joined."""
        return joined(self._graph(self._options(kernel)))

    def in_place(self, kernel: MicroKernel) -> tuple[str, ...]:
        """Inputs that the output may be, too: the program has read an element when it writes there."""
        plan = self._plan(kernel)
        return in_place(plan) if isinstance(plan, Plan) else ()

    def stages(self, kernel: MicroKernel) -> StagePlan | None:
        """Stages of a kernel whose rows threads share so; None if it has none."""
        plan = self._plan(kernel)
        return StagePlan.of(plan) if plan is not None and self.backend == "cpu" else None

    def decisions(self, kernel: MicroKernel) -> dict[str, str]:
        """A kernel's schedule in words, by the kind of decision."""
        plan = self._plan(kernel)
        assert plan is not None, "a kernel that exists has a plan"
        result = self.in_place(kernel)
        return describe(plan) | ({"in place": f"the output may be {' or '.join(result)} itself"} if result else {})

    def bytes_by_level(
        self, kernel: MicroKernel, extents: Mapping[str, int], device: Device, parts: int = 1
    ) -> dict[str, int]:
        """Bytes that a call moves over each level's edge, nearest first: on one thread, or its fold in so many parts."""
        plan = self._plan(kernel)
        assert plan is not None, "a kernel that exists has a plan"
        if parts > 1 and isinstance(plan, Plan):
            plan = planned(plan.graph, replace(plan.schedule, parts=parts))
        sizes = self._own(kernel).complete(extents, self._options(kernel))
        result = count(plan, {name: int(sizes[name]) for name in plan.graph.dimensions}, Levels.of(device))
        return {"registers": result.registers, "L1": result.l1, "L2": result.l2, "L3": result.l3, "least": result.least}

    def expectation(self, op: Op, device: Device, traffic: Traffic) -> Expectation | None:
        """None: the cost model's."""
        return None

    def _run(self, kernel: MicroKernel) -> Tile:
        """One point of every axis of the output but the last."""
        kind = self._own(kernel)
        outer = [axis for axis in kind.output.axes({})[:-1] if axis in kind.axes] or [kind.operands[0].axes({})[0]]
        return Tile(extent=dict.fromkeys(outer, 1), edge=dict.fromkeys(outer, "exact"), step={})

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """TVM module with a function ``symbol(inputs…, output)`` over whole tensors of any extents."""
        import tvm

        from haotuner.microkernels.cpu.generated_function import program

        plan = self._plan(kernel)
        if plan is None:
            raise UsageError(f"micro-kernel {kernel.name}: the operator cannot be run with this schedule")
        return tvm.IRModule({symbol: program(plan, symbol)})


def _tiled(space: Space) -> Iterator[Schedule]:
    """Some tiles of two levels, of folds whose operands are used again: with copies where they are of a known size."""
    graph = space.graph
    rank = graph.types[graph.outputs[0]].rank
    if not any(sketch.tiled for sketch in space.sketches):
        return
    fold_count = sum(node.primitive in FOLDS for node in graph.nodes)
    for axis in reversed(range(rank)):
        if not tileable(graph, axis):
            continue
        for unroll, rows in TILED:
            item = Schedule(lane_axis=axis, lanes=space.lanes, unroll=unroll, rows=rows, folds=(unroll,) * fold_count)
            if axis == rank - 1:
                yield from (replace(item, tiles=tiles) for tiles in TILES)
            for tiles in COPIED:
                for copies in (COLUMNS, COLUMNS | ROW_BIT):
                    schedule = replace(item, tiles=tiles, cache_read=copies)
                    if _has_plan(graph, schedule):
                        yield schedule


def _has_plan(graph: Graph, schedule: Schedule) -> bool:
    try:
        planned(graph, schedule)
    except UsageError:
        return False
    return True


def _transposing(space: Space) -> Iterator[Schedule]:
    """Some tiles of squares turned in registers, where tensors are read across the innermost axis."""
    axis = space.graph.types[space.graph.outputs[0]].rank - 1
    if turnable(space.graph, axis):
        item = Schedule(lane_axis=axis, lanes=space.lanes, unroll=1)
        yield from (replace(item, tiles=tiles) for tiles in TURNED)


@cache
def _graph(kind: str, options: tuple[tuple[str, str], ...], family: CpuGenerated) -> Graph:
    """Graphs are values: one for each kind and options."""
    own: Mapping[str, str] = dict(options)
    return graph_of(family.kind, own)


def in_place_of(family: object, kernel: MicroKernel) -> tuple[str, ...]:
    """Inputs that the output of a kernel may be, too; none of families that have no generated programs."""
    return family.in_place(kernel) if isinstance(family, CpuGenerated) else ()


def stages_of(family: object, kernel: MicroKernel) -> StagePlan | None:
    """Stages in which a kernel is run; None of families that have no generated programs."""
    return family.stages(kernel) if isinstance(family, CpuGenerated) else None


def joins_of(family: object, op: Op) -> dict[str, str]:
    """Joins of every kernel of an op, by axis; empty of families that have no generated programs."""
    if type(family) is not CpuGenerated:
        return {}
    return joined(family._graph(op.all_options()))
