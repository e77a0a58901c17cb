"""CUDA families of generated programs: one family a kind of operator that says by steps what it computes.

A micro-kernel is a schedule of the kind's graph, as on CPUs, whose vectors are groups of threads: part of a warp for short
rows, a warp, or a block for long ones. A call is one launch, two where blocks share a fold (``generated_text.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from haotuner.codegen.schedule import FOLDS, Plan, Schedule, levels_of_folds, merges, planned, shareable, tileable
from haotuner.codegen.space import Space
from haotuner.errors import UsageError
from haotuner.graph.graph import Graph
from haotuner.microkernels.cpu.generated import FP32_BYTES, CpuGenerated
from haotuner.microkernels.cpu.generated_demand import counts_of
from haotuner.microkernels.cpu.online_softmax import CpuOnline
from haotuner.microkernels.cuda.dense import sm_number
from haotuner.microkernels.cuda.generated_kernel import kernel_text
from haotuner.microkernels.cuda.generated_price import (
    JOIN_CYCLES,
    L1_SHARE,
    LOAD_CYCLES,
    STREAM_BYTES,
    Passes,
    Price,
    columns_of,
    held_price,
    map_price,
    terms_of,
)
from haotuner.microkernels.cuda.generated_program import WARP
from haotuner.microkernels.cuda.generated_text import Parts
from haotuner.microkernels.cuda.launch import Launch
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.ops.kind import OpKind
from haotuner.spec.demand import Demand, DemandQuery, Work
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel
from haotuner.spec.op import Op

GROUPS = (4, 8, WARP, 128, 512)  # threads of a group where rows are folded: very short, short, usual and long ones
UNROLLS = (1, 2, 4, 8)
HELD = {4: (4, 8), 8: (1, 2, 4, 8), WARP: (1, 2, 4, 8, 16), 128: (2, 4, 8, 16), 512: (2, 4, 8, 16)}  # vectors, in registers
PARTS = (1, 8, 32, 128)  # of a folded axis, a block's each
PARTIAL_FLOATS = 1 << 20  # results of all parts: HT_GENERATED_PARTIAL of runtime/native/cuda/generated.h
TILES = ((1, 1, 0), (4, 1, 0))  # blocks of rows that a group takes in turn, where operands are used again
WIDEST = 16  # bytes that a thread moves at once
SHORT = ("fp16", "bf16")
ISSUED = 20.0  # instructions of a term that a lane folds by itself
SCHEDULERS = 4  # of a multiprocessor: each starts an instruction of one warp a cycle
JOIN_LAUNCH_CYCLES = 3000.0  # of a second launch behind the first, in a graph
APART_CYCLES = 32.0  # of a multiprocessor, for a warp's load of 32 rows: one a line (42 measured on an H200, 4096 x 4096)
AHEAD = 4.0  # loads of a lane's own terms that are under way at a time
OVERLAP = 3.0  # exponent of the norm of what a unit does and what L2 gives it
ELEMENT_CYCLES = 12.0  # of a vector's element in a pass: instructions of all warps of a scheduler take turns
# Of a multiprocessor of which a profile says less.
THREADS_HELD, REGISTERS_HELD, BLOCKS_HELD, L1_BYTES = 2048, 65536, 32, 128 << 10
THREADS = 256  # of a block at most, unless a group is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Cut of a program by the host: ``ht_cuda_generated_kernel`` of runtime/native/cuda/generated.h."""

    lanes: int
    vectors: int
    lane_axis: int
    merges: bool
    parts: int = 1
    dimension: int = 0
    step: int = 1
    stages: int = 0
    record: int = 0
    rows: int = 1
    shared: int = 0

    def floats(self, shape: Sequence[int]) -> int:
        """Of a workspace for all parts of an output of this shape, at most."""
        rows = prod(extent for axis, extent in enumerate(shape) if axis != self.lane_axis)
        return min(self.parts * (rows * self.record if self.record else prod(shape)), PARTIAL_FLOATS)

    def initializer(self) -> str:
        """In C."""
        return f"{{{', '.join(str(int(getattr(self, name))) for name in self.__slots__)}}}"


class CudaGenerated(CpuGenerated):
    """Family ``cuda_generated_KIND_DTYPE``; parameters as of the CPU's family, ``vl``: threads of a group.

    Numbers are computed in fp32, whatever memory keeps them as.
    """

    backend = "cuda"
    frontier = 24
    grouped = batched = False

    def __init__(self, kind: OpKind, dtype: str = "fp32") -> None:
        super().__init__(kind)
        self.dtype = dtype
        self.name = f"cuda_generated_{kind.name}_{dtype}"

    def serves(self, op: Op) -> bool:
        """The kind in its type, whatever is dynamic, no epilogue."""
        return op.kind == self.kind.name and op.dtype == self.dtype and not op.epilogue and bool(op.dynamic)

    @staticmethod
    def covers(kind: OpKind) -> bool:
        """True if programs can be made of a kind: not of one whose products want tiles."""
        return CpuGenerated.covers(kind) and not CpuOnline.covers(kind)

    def suits(self, device: Device) -> bool:
        """Any GPU that code is built for."""
        return device.kind != "cpu" and sm_number(device.arch) >= 0

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every axis along a warp's lanes; along the innermost one groups of all sizes where rows are folded.

        What a row's first iteration loads stays in registers there; elsewhere with and without neighbours as one access.
        Where operands are used again also blocks of rows and vectors in a thread's registers.
        """
        graph = self._graph(op.all_options())
        folds = sum(node.primitive in FOLDS for node in graph.nodes)
        for schedule in self._schedules(graph, folds, self.space(op, device)):
            own = replace(schedule, folds=(schedule.unroll,) * folds)
            shared = own.lanes >= WARP and not own.tiles and shareable(graph, own.lane_axis)
            staged = own.lanes > WARP and own.peeled and not shared and bool(levels_of_folds(planned(graph, own)))
            for parts in PARTS if shared or staged else PARTS[:1]:
                kernel = self.kernel_of(replace(own, parts=parts), op)
                if self.text(kernel, "f") is not None:
                    yield kernel

    def space(self, op: Op, device: Device) -> Space:
        """Space for blocks that share folds, without sums that wait in memory: a thread keeps them in registers."""
        return replace(super().space(op, device), scratch=False, parts=PARTS, turns=False, copies=False)

    def _schedules(self, graph: Graph, folds: int, space: Space) -> Iterator[Schedule]:
        rank = graph.types[graph.outputs[0]].rank
        groups = GROUPS if _folds_rows(graph) else GROUPS[1:3]
        near = WIDEST // DTYPE_BYTES[self.dtype]
        last = Schedule(lane_axis=rank - 1, lanes=WARP, unroll=1)
        one_row = merges(planned(graph, last))  # all else is the same with worse accesses
        for axis in (rank, *([0] if folds else []), *(() if one_row else range(1, rank))):
            shared = any(  # a fold's terms are shared by lanes; else each lane folds its own
                axis - 1 in axes and sketch.nodes("factor") for sketch, axes in zip(space.sketches, space.axes, strict=True)
            )
            if shared and axis in (0, rank):
                for lanes in groups:
                    for unroll in HELD[lanes]:
                        yield replace(
                            last, lane_axis=axis - 1, lanes=lanes, unroll=unroll, packed=min(unroll, near), peeled=True
                        )
                continue
            for unroll in UNROLLS if axis in (0, rank) else UNROLLS[:2]:
                yield replace(last, lane_axis=axis - 1, unroll=unroll)
                if unroll > 1 and axis == rank:
                    yield replace(last, unroll=unroll, packed=min(unroll, near))
            if axis == rank and 2 * near not in UNROLLS:  # two accesses of 16 bytes
                yield replace(last, unroll=2 * near, packed=near)
        if any(sketch.tiled for sketch in space.sketches) and tileable(graph, rank - 1):
            for unroll, rows, tiles in product(UNROLLS[:3], (2, 4, 8), TILES):
                yield replace(last, unroll=unroll, rows=rows, tiles=tiles)

    def text(self, kernel: MicroKernel, symbol: str) -> str | None:
        """CUDA C++ of a kernel; None where there is none."""
        return _text(self, kernel, symbol)

    def products(self, kernel: MicroKernel) -> tuple[tuple[int, str], ...]:
        """Columns and type of the products of a warpgroup (``device_calls.py``) that its text calls."""
        return ()

    def plan(self, kernel: MicroKernel) -> Any:
        """The plan of a kernel of ``points``."""
        plan = self._plan(kernel)
        assert plan is not None, "a kernel that exists has a plan"
        return plan

    def cut(self, kernel: MicroKernel) -> Cut:
        """Cut of its launches."""
        plan = self.plan(kernel)
        schedule = plan.schedule
        cut = Parts.of(plan) if schedule.parts > 1 else None
        levels = levels_of_folds(plan) if cut is not None and not cut.how else ()
        return Cut(
            lanes=schedule.lanes, vectors=schedule.unroll, lane_axis=schedule.lane_axis,
            merges=merges(plan) and schedule.lanes >= WARP, parts=schedule.parts,
            dimension=cut.dimension_index if cut else 0, step=cut.step if cut else 1,
            stages=len(levels) + 1 if levels else 0, record=sum(map(len, levels)),
        )  # fmt: skip

    def launch(self, kernel: MicroKernel) -> Launch:
        """Launch as known before a call: threads of a block at most."""
        return Launch(tile_m=1, tile_n=1, threads=self.footprint(kernel).threads, shared_bytes=0, vector=1, splits=False)

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """A block's threads, and values that each keeps at a time."""
        arguments, lanes, vectors = dict(kernel.params), kernel["vl"], kernel["u"]
        inputs = len(self._own(kernel).inputs)
        if arguments.get("hd"):  # 48 to 166 of twelve kernels on sm_90a: what two iterations load, and addresses
            registers = 26.0 + 5.0 * inputs + vectors * (1.5 + 1.2 * inputs + 2.0 * (arguments["ax"] > 0))
        else:
            registers = 28.0 + vectors * (arguments.get("rw", 1) if "tr" in arguments else 0.5) * inputs
        return Footprint(
            registers_per_thread=min(int(registers), 255),
            shared_bytes=0,
            threads=lanes if lanes > WARP else THREADS,
        )

    def demand(self, requested: DemandQuery) -> Demand:
        """Bytes counted from each program; a tile is what one block computes."""
        kind = self._own(requested.kernels[0])
        options = self._options(requested.kernels[0])
        extents: Any = kind.complete(requested.extents, options)
        counted, moved = counts_of(requested, self._whole, extents)
        share = DTYPE_BYTES[self.dtype] / FP32_BYTES  # of what is counted
        over = {name: column * share for name, column in moved.items()}
        tiles = requested.tiles(self._run, self.footprint, vector=np.ones(len(requested.kernel_at)))
        device, lanes = requested.device, requested.param("vl")
        units, parts = float(max(1, device.compute_units)), self._parts(requested, extents)
        busy = np.maximum(self._groups(requested, extents) * lanes, 1.0)  # threads that have something to do, of a part
        threads = _threads(busy, lanes, parts, units)
        waves = np.ceil(threads / device.wave_width)
        blocks = np.ceil(busy / threads) * parts
        room = np.minimum(device.threads_per_unit or THREADS_HELD, REGISTERS_HELD / tiles.registers)
        stored = np.clip(room // threads, 1.0, device.blocks_per_unit or BLOCKS_HELD)  # blocks of a multiprocessor at a time
        price = self._priced(requested, extents, np.minimum(stored, np.ceil(blocks / units)) * threads / lanes)
        issued = price.instructions * np.ceil(threads / WARP) / SCHEDULERS * np.ceil(blocks / units)  # of a unit, in turn
        behind = np.take(
            [max(1, self.cut(kernel).stages - 1) for kernel in requested.kernels], requested.kernel_at
        )  # launches
        joined = np.where(
            parts > 1,
            behind * (JOIN_LAUNCH_CYCLES + parts * LOAD_CYCLES / AHEAD),
            JOIN_CYCLES * (requested.param("pt", 1.0) > 1),
        )
        at_work = np.clip(blocks, 1.0, units)
        beyond = counted.l1_bytes * share + price.again
        over["far_bytes"] = over["far_bytes"] + np.where(over["far_bytes"] > 0, price.again, 0.0)
        streamed = beyond / STREAM_BYTES if price.streams else 0.0
        cycles = (price.waits * np.ceil(blocks / (stored * units)) + issued + joined) * at_work
        cycles = (cycles**OVERLAP + streamed**OVERLAP) ** (1.0 / OVERLAP)
        work = Work(flops={"simd": np.asarray(kind.flops(extents), np.float64)}, mid_bytes=beyond, **over)
        description = replace(counted, cycles=cycles, l1_bytes=beyond, l2_bytes=counted.l2_bytes * share)
        return Demand(work=work, tiles=replace(tiles, count=blocks, threads=threads, waves=waves), counted=description)

    def _whole(self, kernel: MicroKernel) -> Any:
        """A plan that moves the same bytes: they do not hang on how threads share a row, nor on its parts."""
        plan = self._plan(kernel)
        return _alike(self, kernel) if isinstance(plan, Plan) and not plan.schedule.tiles else plan

    def _priced(self, requested: DemandQuery, extents: Any, beside: Any) -> Price:
        """Of each group; ``beside``: groups that a multiprocessor runs at a time.

        Where each lane folds its own, terms come some at a time.
        """
        graph = self._graph(self._options(requested.kernels[0]))
        folds = [node for node in graph.nodes if node.primitive in FOLDS]
        passes = columns_of([_passes(self, kernel) for kernel in requested.kernels], requested.kernel_at)
        lanes, vectors, packed = requested.param("vl"), requested.param("u"), requested.param("pk", 1.0)
        if not folds:
            return map_price(passes, self._along(requested, extents), lanes, vectors, packed)
        terms = terms_of(folds, graph, extents, len(requested.kernel_at))
        folded = terms / self._parts(requested, extents)
        row_bytes = folded * DTYPE_BYTES[self.dtype]
        fits = (beside * row_bytes <= L1_SHARE * (requested.device.l1_bytes or L1_BYTES)) | (folded <= lanes * vectors)
        shared = held_price(passes, folded, lanes, vectors, packed, fits)
        behind = np.maximum(terms - lanes * vectors, 0.0) * np.maximum(passes["count"] - 1.0, 0.0)
        again = np.where(fits, 0.0, behind * self._groups(requested, extents) * DTYPE_BYTES[self.dtype])
        issue = ELEMENT_CYCLES * vectors * (1.0 + 1.0 / packed) / 2.0  # of an iteration
        waits = len(folds) * folded * (LOAD_CYCLES / AHEAD + issue) + LOAD_CYCLES
        issued = ISSUED * (len(folds) + 1) * folded
        blocks = (
            requested.param("tr", 0.0) > 0
        )  # of registers: rows and vectors are loaded, their products are one step each
        loaded, summed = vectors + requested.param("rw", 1.0), vectors * requested.param("rw", 1.0)
        waits = np.where(blocks, folded * (LOAD_CYCLES / AHEAD + 2.0 * loaded + summed) + LOAD_CYCLES, waits)
        issued = np.where(blocks, folded * (2.0 * loaded + summed), issued)
        issued = issued + self._apart(requested) * APART_CYCLES * SCHEDULERS * folded * vectors
        stored = requested.param("hd", 0.0) > 0
        return Price(
            np.where(stored, shared.waits, waits),
            np.where(stored, shared.instructions, issued),
            np.where(stored, again, 0.0),
        )

    def _apart(self, requested: DemandQuery) -> Any:
        """1 for kernels whose lanes each walk a row of their own: neighbours in memory are not neighbours of a warp."""
        kind = self._own(requested.kernels[0])
        last, output = kind.inputs[0].axes({})[-1], kind.output.axes({})
        result = [float(kernel["ax"] > 0 and output[kernel["ax"] - 1] != last) for kernel in requested.kernels]
        return np.take(result, requested.kernel_at)

    def _parts(self, requested: DemandQuery, extents: Any) -> Any:
        """Parts of a fold that blocks share, as the runtime cuts them."""
        result = np.ones(len(requested.kernel_at))
        threads = requested.device.compute_units * (requested.device.threads_per_unit or THREADS_HELD)
        spare = threads // np.maximum(self._groups(requested, extents) * requested.param("vl"), 1.0)
        axes = self._own(requested.kernels[0]).output.axes({})
        outputs = prod((extents[axis] for axis in axes), start=result)
        for index, kernel in enumerate(requested.kernels):
            cut = self.cut(kernel)
            if cut.parts > 1:
                across = np.broadcast_to(extents[axes[cut.lane_axis]], result.shape) if cut.record else 1.0
                left = outputs / np.maximum(across, 1.0) * max(cut.record, 1)
                room = np.maximum(PARTIAL_FLOATS // np.maximum(left, 1.0), 1.0)
                axis = self.plan(kernel).graph.dimensions[cut.dimension]
                tiles = np.ceil(np.broadcast_to(extents[axis], result.shape) / cut.step)
                most = np.minimum(np.minimum(room, np.maximum(spare, 1.0)), cut.parts)
                result = np.where(requested.kernel_at == index, np.clip(tiles, 1.0, most), result)
        return result

    def _along(self, requested: DemandQuery, extents: Any) -> Any:
        """Elements of a row that lanes take: of all rows where no tensor has gaps."""
        axes = self._own(requested.kernels[0]).output.axes({})
        result = np.ones(len(requested.kernel_at))
        every = prod((extents[axis] for axis in axes), start=result)
        for index, kernel in enumerate(requested.kernels):
            own = every if self.cut(kernel).merges else extents[axes[kernel["ax"] - 1]] if kernel["ax"] else result
            result = np.where(requested.kernel_at == index, own, result)
        return result

    def _groups(self, requested: DemandQuery, extents: Any) -> Any:
        """Groups of threads that have something of their own to do: one a point of the axes that are not along the lanes.

        Where lanes share no fold, one for each iteration along them, too.
        """
        output = self._own(requested.kernels[0]).output.axes({})
        result, along = np.ones(len(requested.kernel_at)), self._along(requested, extents)
        whole = prod((extents[axis] for axis in output), start=result)
        for index, kernel in enumerate(requested.kernels):
            inputs = dict(kernel.params)
            pieces = 1.0 if inputs.get("hd") else np.ceil(along / (kernel["vl"] * kernel["u"]))
            points = whole / np.maximum(along, 1) / (inputs.get("rw", 1) if "tr" in inputs else 1)
            result = np.where(requested.kernel_at == index, points * pieces, result)
        return result

    def decisions(self, kernel: MicroKernel) -> dict[str, str]:
        """A kernel's schedule in words, by the kind of decision."""
        result = super().decisions(kernel)
        return result | {"computation": result["computation"].replace("workers fold", "blocks fold")}

    def joins(self, kernel: MicroKernel) -> dict[str, str]:
        """None that threads of the host share."""
        return {}

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """UsageError: its program is text, not TVM's."""
        raise UsageError(f"micro-kernel {kernel.name} is CUDA C++ that haotuner writes itself; it has no module of TVM")


def _folds_rows(graph: Graph) -> bool:
    """True if some fold has more terms than a window: an extent that comes with a call, or a long one."""
    for node in graph.nodes:
        if node.primitive in FOLDS:
            shape = graph.types[node.inputs[0]].shape
            axes = node.attributes.get("axes", range(len(shape)))
            if any(not isinstance(shape[axis], int) or int(shape[axis]) > WARP for axis in axes):
                return True
    return False


def _threads(busy: Any, lanes: Any, parts: Any, units: float) -> Any:
    """Of a block, as the runtime cuts them: fewer where few groups are to be spread over the multiprocessors."""
    threads = np.where(lanes > WARP, lanes, float(THREADS))
    least = np.where(lanes > WARP, lanes, float(WARP))
    while (more := (threads > least) & (np.ceil(busy / threads) * parts < units)).any():
        threads = np.where(more, threads / 2.0, threads)
    return threads


@cache
def _passes(family: CudaGenerated, kernel: MicroKernel) -> Passes:
    return Passes.of(family.plan(kernel))


@cache
def _alike(family: CudaGenerated, kernel: MicroKernel) -> Plan:
    plan = family.plan(kernel)
    return planned(
        plan.graph, Schedule(lane_axis=plan.schedule.lane_axis, lanes=WARP, unroll=1, cached=plan.schedule.cached)
    )


@cache
def _text(family: CudaGenerated, kernel: MicroKernel, symbol: str) -> str | None:
    plan = family._plan(kernel)
    try:
        return None if plan is None else kernel_text(symbol, plan, THREADS, family.dtype)
    except UsageError:
        return None
