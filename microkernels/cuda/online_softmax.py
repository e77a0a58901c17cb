"""CUDA families of online softmax: flash attention, for every kind whose graph has products around a softmax.

A group is a warp with rows of its own: the depth of the products lies along its lanes, the tile of scores and the sums so
far in its part of shared memory. In 16 bits there are kernels on tensor cores, too, where a block has a tile of rows
(``online_tensor.py``). No tensor of rows x keys is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np

from haotuner.codegen.online_softmax import OnlineSoftmax
from haotuner.codegen.online_softmax_parts import record
from haotuner.codegen.online_softmax_schedule import (
    ALONG,
    DEPTH,
    FED,
    ON_UNITS,
    TOGETHER,
    OnlinePlan,
    OnlineSchedule,
    padded,
    schedules,
)
from haotuner.codegen.online_softmax_space import OnlineSpace
from haotuner.codegen.online_softmax_tensor import FED_REGISTERS, PARTS, registers, tensor_schedules, wide_schedules
from haotuner.codegen.space import STRUCTURE, Hole
from haotuner.microkernels.cpu.online_softmax import CpuOnline
from haotuner.microkernels.cuda.dense import sm_number
from haotuner.microkernels.cuda.generated import AHEAD, SHORT, THREADS, CudaGenerated, Cut
from haotuner.microkernels.cuda.generated_price import JOIN_CYCLES, LOAD_CYCLES, Price
from haotuner.microkernels.cuda.generated_program import WARP
from haotuner.microkernels.cuda.launch import Launch
from haotuner.microkernels.cuda.online_softmax_demand import apart, bytes_over, tensor_demand
from haotuner.ops.index import KINDS
from haotuner.ops.kind import OpKind
from haotuner.spec.demand import Demand, DemandQuery
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel
from haotuner.spec.op import Op

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
