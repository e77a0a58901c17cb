"""CUDA families of online softmax: flash attention, for every kind whose graph has products around a softmax.

A group is a warp with rows of its own: the depth of the products lies along its lanes, the tile of scores and the sums so
far in its part of shared memory. In 16 bits there are kernels on tensor cores, too, where a block has a tile of rows
(``online_tensor.py``). No tensor of rows x keys is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from haotuner.codegen.online_softmax import OnlineSoftmax
from haotuner.codegen.online_softmax_emit import record
from haotuner.codegen.online_softmax_schedule import (
    ALONG,
    DEPTH,
    FED,
    GROUP_ROWS,
    ON_UNITS,
    PIECE,
    TENSOR,
    TOGETHER,
    WIDE,
    OnlinePlan,
    OnlineSchedule,
    OnlineSpace,
    padded,
    schedules,
)
from haotuner.codegen.online_softmax_tensor import (
    FED_REGISTERS,
    HELD,
    PARTS,
    factor,
    registers,
    tensor_schedules,
    tiles_seen,
    wide_schedules,
)
from haotuner.codegen.space import STRUCTURE, Hole
from haotuner.graph.extents import evaluate
from haotuner.microkernels.cpu.generated_demand import Levels
from haotuner.microkernels.cpu.online_softmax import CpuOnline
from haotuner.microkernels.cuda.dense import sm_number
from haotuner.microkernels.cuda.dense_mma import HOPPER_SHARE
from haotuner.microkernels.cuda.dense_wgmma import SUSTAINED
from haotuner.microkernels.cuda.generated import (
    AHEAD,
    JOIN_LAUNCH_CYCLES,
    PARTIAL_FLOATS,
    REGISTERS_HELD,
    SCHEDULERS,
    SHORT,
    THREADS,
    THREADS_HELD,
    CudaGenerated,
    Cut,
)
from haotuner.microkernels.cuda.generated_price import JOIN_CYCLES, LOAD_CYCLES, Price
from haotuner.microkernels.cuda.generated_program import WARP
from haotuner.microkernels.cuda.launch import Launch
from haotuner.ops.index import KINDS
from haotuner.ops.kind import OpKind
from haotuner.spec.demand import Column, Counted, Demand, DemandQuery, Tiles, Work
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel
from haotuner.spec.occupancy import RESERVED_BYTES
from haotuner.spec.op import Op

BYTES = 2  # of an element
TENSOR_FMAS = 512.0  # of a multiprocessor in a cycle, where its profile does not say: sm_86 and sm_89 in fp16
POWERS = 16.0  # exponentials of a multiprocessor in a cycle (CUDA guide, arithmetic instructions)
ISSUED = 128.0  # threads whose instruction starts in a cycle: four warps
SHARED = 128.0  # bytes of shared memory in a cycle
EACH_SCORE, ANY_SCORE = 5.0, 12.0  # instructions of a score from product to operand; of one that is more than a product
EACH_COPY = 12.0  # of 16 bytes that are brought, counted in the compiled loop
DEPENDENT = 3.0  # cycles of a warp from an instruction to the next that needs it
WAIT_CYCLES = 750.0  # of a block for each tile of keys: its barrier, the first products, lanes that exchange maxima
EACH = {TENSOR: EACH_SCORE, WIDE: 3.0, FED: 4.6}
# Of a block: its first tiles come from the L2 or from memory, rows are written.
START_CYCLES = {TENSOR: 2400.0, WIDE: 5600.0, FED: 7600.0}
# Of a group's own way through a tile of keys, where nothing is beside it: waits; of exponentials and of products how much.
ALONE = {WIDE: (230.0, 1.15, 0.5), FED: (600.0, 0.9, 0.0)}
JOIN_PART = 125.0  # of a second launch behind the first, for each part that it reads
LEFT_BYTES = 3.0  # of parts' records that a multiprocessor writes and reads again in a cycle
SHARED_HELD = 100 << 10  # of a multiprocessor whose profile does not say


class OnlineSoftmaxResources(Protocol):
    """Resources of the family's kernels."""

    def plan(self, kernel: MicroKernel) -> Any:
        """A kernel's plan."""
        ...

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Registers, shared memory and threads of one block."""
        ...

    def cut(self, kernel: MicroKernel) -> Cut:
        """Cut of a program by the host."""
        ...


def tensor_demand(requested: DemandQuery, family: OnlineSoftmaxResources) -> Demand:
    """Work of the tensor cores, and cycles of the multiprocessor that has the most blocks."""
    device, rows = requested.device, len(requested.kernel_at)
    units = max(1, device.compute_units)
    names = ("blocks", "steps", "parts", "cycles", "least", "moved", "flops", "near")
    columns: dict[str, Column] = {name: np.zeros(rows) for name in names}
    for row, at in enumerate(requested.kernel_at.tolist()):
        kernel = requested.kernels[at]
        plan: OnlinePlan = family.plan(kernel)
        sizes = {name: int(requested.extents[name][row]) for name in plan.graph.dimensions}
        for name, value in _row(plan, sizes, device, family.footprint(kernel), family.cut(kernel)).items():
            columns[name][row] = value
    blocks, parts = columns["blocks"], columns["parts"]
    threads = requested.each(lambda kernel: family.footprint(kernel).threads)
    shared = requested.each(lambda kernel: family.footprint(kernel).shared_bytes)
    joined = np.where(parts > 1, JOIN_LAUNCH_CYCLES + JOIN_PART * parts, 0.0)
    busy = np.clip(blocks * parts, 1.0, units)
    stored = columns["least"] <= Levels.of(device).l3
    far = columns["least"] if requested.cold else np.where(stored, 0.0, columns["least"])
    return Demand(
        work=Work(
            flops={"simd": np.zeros(rows), "tensor": columns["flops"]}, least_bytes=columns["least"], far_bytes=far,
            mid_bytes=columns["moved"], near_bytes=columns["near"],
        ),
        tiles=Tiles(
            count=blocks * parts, threads=threads, waves=np.ceil(threads / device.wave_width), vector=np.ones(rows),
            registers=requested.each(lambda kernel: family.footprint(kernel).registers_per_thread), shared_bytes=shared,
            l1_set_bytes=shared, l2_set_bytes=shared,
        ),
        counted=Counted(cycles=(columns["cycles"] + joined) * busy, l1_bytes=columns["moved"], l2_bytes=np.zeros(rows)),
    )  # fmt: skip


def bytes_over(
    kernel: MicroKernel, extents: Mapping[str, int], device: Device, family: OnlineSoftmaxResources
) -> dict[str, int]:
    """Bytes of a call over each level's edge, as of other programs: those of registers are shared memory's."""
    plan: OnlinePlan = family.plan(kernel)
    sizes = {name: int(extents[name]) for name in plan.graph.dimensions}
    row = {name: int(value) for name, value in
           _row(plan, sizes, device, family.footprint(kernel), family.cut(kernel)).items()}  # fmt: skip
    least = row["least"]
    return {"registers": row["near"], "L1": row["moved"], "L2": least, "L3": least, "least": least}


def _row(plan: OnlinePlan, sizes: Mapping[str, int], device: Device, footprint: Footprint, cut: Cut) -> dict[str, float]:
    """Of one kernel at one shape."""
    s, sums, units = plan.schedule, plan.sums, max(1, device.compute_units)
    depth, columns = (padded(evaluate(extent, sizes), PIECE) for extent in (sums.depth[1], sums.column[1]))
    count, keys = (evaluate(extent, sizes) for extent in (sums.row[1], sums.key[1]))
    outer = prod(evaluate(extent, sizes) for _, extent in sums.outer)
    seen = tiles_seen(sums, s, sizes)
    blocks, steps = max(1, outer * len(seen)), outer * float(seen.sum())
    parts = _parts(cut, blocks, outer * count, int(seen.max(initial=0)), device)
    once = _step(plan, count, depth, columns, device)
    room = (
        (device.threads_per_unit or THREADS_HELD) // footprint.threads,
        (device.registers_per_unit or REGISTERS_HELD) // (footprint.threads * footprint.registers_per_thread),
        (device.l1_bytes or SHARED_HELD) // (footprint.shared_bytes + RESERVED_BYTES),
    )
    resident, mine = max(1, min(room)), -(-blocks * parts // units)
    rounds, rest = divmod(mine, resident)
    each = steps / blocks / parts
    first = (
        START_CYCLES[s.along] + DEPENDENT * EACH_COPY * (s.rows * depth + s.keys * (depth + columns)) / 8 / footprint.threads
    )
    cycles = rounds * (each * _together(once, resident) + first)
    cycles += (each * _together(once, rest) + first) if rest else 0.0
    tile = s.keys * (depth + columns) * BYTES
    own = outer * count * (depth + columns) * BYTES
    left = 4 * BYTES * outer * count * cut.record * parts if parts > 1 else 0  # written and read again, in floats
    cycles += left / (LEFT_BYTES * units)
    return {
        "blocks": blocks, "steps": steps, "parts": parts, "cycles": cycles,
        "least": own + outer * keys * (depth + columns) * BYTES, "moved": steps * tile + own + left,
        "flops": 2.0 * steps * s.rows * s.keys * (depth + columns),
        "near": steps * tile * (s.rows // GROUP_ROWS if s.along in TOGETHER else s.warps),
    }  # fmt: skip


def _parts(cut: Cut, blocks: int, rows: int, tiles: int, device: Device) -> int:
    """Parts of the keys, as ``ht_cuda_generated_parts`` of runtime/native/cuda/generated.c cuts them."""
    if cut.parts < 2 or rows == 0:
        return 1
    spare = device.compute_units * (device.threads_per_unit or THREADS_HELD) // (blocks * cut.lanes)
    return max(1, int(min(cut.parts, tiles, PARTIAL_FLOATS // (rows * cut.record), spare)))


def _step(plan: OnlinePlan, count: int, depth: int, columns: int, device: Device) -> tuple[float, float]:
    """Cycles of a multiprocessor for one tile of keys of one block: where many overlap, and of one alone.

    Warps without a row compute nothing, but for those that multiply together.
    """
    s = plan.schedule
    warps = s.warps if s.along in TOGETHER else -(-min(max(count, 1), s.rows) // s.out_rows)
    rows, brought = warps * s.out_rows, s.keys * (depth + columns)
    scores = rows * s.keys
    fmas = (device.tensor_tflops or 0.0) * 1e6 / (2.0 * max(1, device.compute_units) * (device.clock_mhz or 1500.0))
    share = SUSTAINED if s.along in TOGETHER else HOPPER_SHARE if device.arch in ("sm_90", "sm_90a") else 1.0
    tensor = rows * brought / ((fmas or TENSOR_FMAS) * share)
    powers = scores / POWERS
    each = EACH[s.along] + (ANY_SCORE if factor(plan.sums) is None else 0.0)
    issued = (scores * each + rows * columns + brought / 8 * EACH_COPY) / ISSUED
    if s.along in TOGETHER:
        groups = -(-rows // GROUP_ROWS)
        shared = ((groups + 1) * brought + rows * depth) * BYTES / SHARED
        wait, serial, products = ALONE[s.along]
        alone = products * tensor + serial * (powers + issued) / groups + wait
        return float(np.sqrt(tensor**2 + powers**2 + issued**2 + shared**2)), alone
    again = 0 if s.out_rows // PIECE * depth <= HELD else rows * depth  # the rows' operand, read for every tile of keys
    shared = ((warps + 1) * brought + again) * BYTES / SHARED
    alone = (tensor + powers + issued) * SCHEDULERS / min(warps, SCHEDULERS) + WAIT_CYCLES
    alone += DEPENDENT * EACH_COPY * brought / 8 / (s.warps * WARP)  # a thread copies before it multiplies
    return float(np.sqrt(tensor**2 + powers**2 + issued**2 + shared**2)), alone


def _together(once: tuple[float, float], resident: int) -> float:
    """Cycles of a tile of keys for each of so many blocks that share a multiprocessor."""
    return float(np.hypot(once[0] * resident, once[1]))


def apart(
    requested: DemandQuery,
    of: Callable[[MicroKernel], bool],
    function: Callable[[DemandQuery], Demand],
    other: Callable[[DemandQuery], Demand],
) -> Demand:
    """The demand of rows by two functions: ``function`` of the kernels that ``of`` tells, ``other`` of the rest."""
    first = np.array([of(kernel) for kernel in requested.kernels], bool)[requested.kernel_at]
    if first.all() or not first.any():
        return function(requested) if first.all() else other(requested)
    result: Demand = _joined(function(_some(requested, first)), other(_some(requested, ~first)), first)
    return result


def _some(requested: DemandQuery, rows: NDArray[np.bool_]) -> DemandQuery:
    used, at = np.unique(requested.kernel_at[rows], return_inverse=True)
    params = {name: column[rows] for name, column in requested.params.items()}
    return replace(
        requested,
        params={name: column for name, column in params.items() if not np.isnan(column).all()},
        extents={name: column[rows] for name, column in requested.extents.items()},
        kernels=[requested.kernels[position] for position in used.tolist()],
        kernel_at=at,
    )


def _joined(value: Any, other: Any, rows: NDArray[np.bool_]) -> Any:
    if value is None:
        return None
    if is_dataclass(value):
        parts = {
            field.name: _joined(getattr(value, field.name), getattr(other, field.name), rows) for field in fields(value)
        }
        return replace(value, **parts)  # type: ignore[type-var]
    if isinstance(value, Mapping):
        return {name: _joined(value.get(name, 0.0), other.get(name, 0.0), rows) for name in dict.fromkeys((*value, *other))}
    result = np.empty(len(rows))
    result[rows], result[~rows] = value, other
    return result


SHARED_BYTES = (48 << 10) * WARP // THREADS  # of a warp: what a block has without asking for more
TENSOR_SM = 80  # the first with bf16, cp.async and products of 16 terms
WIDE_ARCHS = ("sm_90", "sm_90a")  # of wgmma: later ones have other instructions
LEAST_SHARED = 99 << 10  # of a block on devices since then
STEPS = 5.0  # exchanges until a warp's lanes are joined
# Along the depth, fitted to 128 times of an H200: cycles of a warp for 32 elements of a key and its value, which come and
# are turned into floats; instructions of a row for each of these, and for a key.
EACH_VECTOR, EACH_ROW = 100.0, 28.0


class CudaOnline(CpuOnline, CudaGenerated):
    """Family ``cuda_generated_KIND_DTYPE``; parameters as of the CPU's family, ``vl``: threads of a warp."""

    frontier = 20

    def __init__(self, kind: OpKind, dtype: str = "fp32") -> None:
        super().__init__(kind)
        self.dtype = dtype
        self.name = f"cuda_generated_{kind.name}_{dtype}"

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every schedule along the depth or on tensor cores whose memory fits a block's."""
        for schedule in self._schedules_for(self._sums(self._of(op)), device):
            kernel = self.kernel_of(schedule, op)
            if self.text(kernel, "f") is not None:
                yield kernel

    def space(self, op: Op, device: Device) -> OnlineSpace:
        """Schedules as a space that policies search."""
        sums = self._sums(self._of(op))
        return _DeviceSpace(sums.graph, WARP, sums, tuple(self._schedules_for(sums, device)))

    def _schedules_for(self, sums: OnlineSoftmax, device: Device) -> Iterator[OnlineSchedule]:
        yield from _along_depth(sums)
        if self.dtype in SHORT and sm_number(device.arch) >= TENSOR_SM:
            room = device.shared_per_block_bytes or LEAST_SHARED
            wide = wide_schedules(sums) if device.arch in WIDE_ARCHS else ()
            for schedule in (*tensor_schedules(sums), *wide):
                if OnlinePlan(sums=sums, schedule=schedule).scratch_bytes <= room:
                    yield schedule

    def cut(self, kernel: MicroKernel) -> Cut:
        """A row's columns are one piece: a warp at most for each row, a block for each tile of rows on tensor cores."""
        plan = self._known_plan(kernel)
        columns, rank = plan.sums.column[1], plan.graph.types[plan.output].rank
        assert isinstance(columns, int), "the rule asks for known extents"
        cut = Cut(lanes=WARP, vectors=padded(columns, WARP) // WARP, lane_axis=rank - 1, merges=False)
        if plan.schedule.along in ON_UNITS:
            threads = plan.schedule.threads
            vectors = -(-columns // threads)
            cut = replace(cut, lanes=threads, vectors=vectors, rows=plan.schedule.rows, shared=plan.scratch_bytes)
        if plan.schedule.parts == 1:
            return cut
        key = plan.graph.dimensions.index(str(plan.sums.key[1]))
        return replace(cut, parts=plan.schedule.parts, dimension=key, step=plan.schedule.keys, record=record(plan))

    def products(self, kernel: MicroKernel) -> tuple[tuple[int, str], ...]:
        """Of keys and of columns, where four warps multiply together."""
        plan = self._known_plan(kernel)
        columns = plan.sums.column[1]
        assert isinstance(columns, int), "the rule asks for known extents"
        return ((plan.schedule.keys, self.dtype), (columns, self.dtype)) if plan.schedule.along in TOGETHER else ()

    def launch(self, kernel: MicroKernel) -> Launch:
        """Launch with a block's shared memory, where it is asked for at a launch."""
        return replace(super().launch(kernel), shared_bytes=self.cut(kernel).shared)

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Accumulators of both products, and every warp's part of shared memory."""
        plan = self._known_plan(kernel)
        if plan.schedule.along in ON_UNITS:
            cut = self.cut(kernel)
            fed = plan.schedule.along == FED  # its registers are shared out when it has started
            own = FED_REGISTERS[plan.schedule.rows][0] if fed else registers(plan)
            return Footprint(registers_per_thread=own, shared_bytes=cut.shared, threads=cut.lanes)
        vectors = self.cut(kernel).vectors
        values = kernel["rw"] * (kernel["bk"] + 2 * vectors) + 2 * vectors
        shared = plan.scratch_bytes * THREADS // WARP
        return Footprint(registers_per_thread=min(40 + values, 255), shared_bytes=shared, threads=THREADS)

    def decisions(self, kernel: MicroKernel) -> dict[str, str]:
        """A kernel's schedule in words, by the kind of decision."""
        return {
            kind: decision.replace("of the stack", "of shared memory, a warp").replace("threads share", "warps share")
            for kind, decision in super().decisions(kernel).items()
        }

    def bytes_by_level(
        self, kernel: MicroKernel, extents: Mapping[str, int], device: Device, parts: int = 1
    ) -> dict[str, int]:
        """Bytes over each level's edge; of tensor cores in the operands' own type."""
        if self._known_plan(kernel).schedule.along in ON_UNITS:
            return bytes_over(kernel, self._own(kernel).complete(extents, self._options(kernel)), device, self)
        return super().bytes_by_level(kernel, extents, device, parts)

    def demand(self, requested: DemandQuery) -> Demand:
        """Counted where lanes are along the depth; of tensor cores by what their units and schedulers are asked."""
        return apart(requested, lambda kernel: self._known_plan(kernel).schedule.along in ON_UNITS,
                     lambda some: tensor_demand(some, self), super().demand)  # fmt: skip

    def _groups(self, requested: DemandQuery, extents: Any) -> Any:
        """Warps that have rows."""
        points = prod(extents[axis] for axis in self._own(requested.kernels[0]).output.axes({})[:-1])
        return np.ceil(points / requested.param("rw"))

    def _priced(self, requested: DemandQuery, extents: Any, beside: Any) -> Price:
        """Cycles that a warp waits for loads and for joined lanes, and instructions of its threads: both grow with keys."""
        plan = self._known_plan(requested.kernels[0])
        keys, vectors = (
            extents[str(plan.sums.key[1])] / self._parts(requested, extents),
            float(self.cut(requested.kernels[0]).vectors),
        )
        rows, block = requested.param("rw"), requested.param("bk")
        waited = keys * ((STEPS * JOIN_CYCLES + LOAD_CYCLES / AHEAD) / block + EACH_VECTOR * vectors) + LOAD_CYCLES
        issued = keys * rows * EACH_ROW * (vectors + 1.0)
        return Price(waited, issued, streams=False)


@cache
def short_family(name: str) -> CudaGenerated | None:
    """The family of a name that says a type of 16 bits; None of every other."""
    kind, _, dtype = name.removeprefix("cuda_generated_").rpartition("_")
    if not name.startswith("cuda_generated_") or dtype not in SHORT or kind not in KINDS:
        return None
    if CpuOnline.covers(KINDS[kind]):
        return CudaOnline(KINDS[kind], dtype)
    return CudaGenerated(KINDS[kind], dtype) if CudaGenerated.covers(KINDS[kind]) else None


@dataclass(frozen=True)
class _DeviceSpace(OnlineSpace):
    """The schedules that a device has."""

    own: tuple[OnlineSchedule, ...]

    @cached_property
    def _every(self) -> frozenset[OnlineSchedule]:
        return frozenset(self.own)

    @cached_property
    def holes(self) -> tuple[Hole, ...]:
        """Free choices, and the stages of tensor cores where there are any."""
        along, *others = super().holes
        if all(item.along == DEPTH for item in self.own):
            return along, *others
        stages = tuple(sorted({item.stages for item in self.own}))
        own = sorted({ALONG.index(item.along) for item in self.own} | set(along.choices))
        return replace(along, choices=tuple(own)), Hole("stages", STRUCTURE, stages), *others


def _along_depth(sums: Any) -> Iterator[OnlineSchedule]:
    for schedule in schedules(sums, WARP):
        if schedule.along == DEPTH and OnlinePlan(sums=sums, schedule=schedule).scratch_bytes <= SHARED_BYTES:
            for parts in PARTS if str(sums.key[1]) in sums.graph.dimensions else PARTS[:1]:
                yield replace(schedule, parts=parts)
