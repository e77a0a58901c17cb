"""CUDA families of generated programs: one family a kind of operator that says by steps what it computes.

A micro-kernel is a schedule of the kind's graph, as on CPUs, whose vectors are groups of threads: part of a warp for short
rows, a warp, or a block for long ones. A call is one launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.generate.schedule import FOLDS, Plan, Schedule, keepable, merges
from haotuner.graph.graph import Graph
from haotuner.microkernels.cpu.generated import FP32_BYTES, CpuGenerated
from haotuner.microkernels.cpu.generated_demand import counts_of
from haotuner.microkernels.cpu.online import CpuOnline
from haotuner.microkernels.cuda.dense import sm_number
from haotuner.microkernels.cuda.generated_program import WARP, kernel_text
from haotuner.microkernels.cuda.launch import Launch
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.ops.index import KINDS
from haotuner.ops.kind import OpKind
from haotuner.words.demand import Asked, Demand, Work
from haotuner.words.device import Device
from haotuner.words.kernel import Footprint, MicroKernel
from haotuner.words.op import Op

GROUPS = (8, WARP, 128, 512)  # threads of a group where rows are folded: short, usual and long ones
UNROLLS = (1, 2, 4, 8)
SHORT = ("fp16", "bf16")
LOAD_CYCLES = 500.0  # from asking to the value, between L2 and memory
THREADS_HELD = 2048  # of a multiprocessor whose profile does not say
THREADS = 256  # of a block at most, unless a group is one


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How the host cuts a program: ``ht_cuda_generated_kernel`` of runtime/native/cuda/generated.h."""

    lanes: int
    vectors: int
    lane_axis: int
    merges: bool

    def initializer(self) -> str:
        """In C."""
        return f"{{{self.lanes}, {self.vectors}, {self.lane_axis}, {int(self.merges)}}}"


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
        """Whether programs can be made of a kind: not of one whose products want tiles."""
        return CpuGenerated.covers(kind) and not CpuOnline.covers(kind)

    def suits(self, device: Device) -> bool:
        """Any GPU that code is built for."""
        return device.kind != "cpu" and sm_number(device.arch) >= 0

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every axis along a warp's lanes; along the innermost one groups of all sizes where rows are folded."""
        graph = self._graph(op.all_options())
        rank = graph.types[graph.outputs[0]].rank
        folds = sum(node.primitive in FOLDS for node in graph.nodes)
        groups = GROUPS if _folds_rows(graph) else GROUPS[:2]
        space = self.space(op, device)
        for axis in (rank, *([0] if folds else []), *range(1, rank)):
            shared = any(  # a fold's terms are shared by lanes; else each lane folds its own
                axis - 1 in axes and one.nodes("factor") for one, axes in zip(space.sketches, space.axes, strict=True)
            )
            for lanes in groups if shared and axis in (0, rank) else (WARP,):
                for kept in ((), *((tensor,) for tensor in keepable(graph))):
                    for unroll in UNROLLS if axis in (0, rank) else UNROLLS[:2]:
                        kernel = self.kernel_of(
                            Schedule(lane_axis=axis - 1, lanes=lanes, unroll=unroll, folds=(unroll,) * folds, kept=kept), op
                        )
                        if self.text(kernel, "f") is not None:
                            yield kernel

    def text(self, kernel: MicroKernel, symbol: str) -> str | None:
        """CUDA C++ of a kernel; None where there is none."""
        return _text(self, kernel, symbol)

    def plan(self, kernel: MicroKernel) -> Plan:
        """The plan of a kernel of ``points``."""
        plan = self._plan(kernel)
        assert plan is not None, "a kernel that exists has a plan"
        return plan

    def cut(self, kernel: MicroKernel) -> Cut:
        """How its launches are cut."""
        plan = self.plan(kernel)
        schedule = plan.schedule
        return Cut(
            lanes=schedule.lanes, vectors=schedule.unroll, lane_axis=schedule.lane_axis,
            merges=merges(plan) and schedule.lanes >= WARP,
        )  # fmt: skip

    def launch(self, kernel: MicroKernel) -> Launch:
        """What is known before a call: threads of a block at most."""
        return Launch(tile_m=1, tile_n=1, threads=self.footprint(kernel).threads, shared_bytes=0, vector=1, splits=False)

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """A block's threads, and values that each keeps at a time."""
        operands, lanes = len(self._own(kernel).operands), kernel["vl"]
        return Footprint(
            registers_per_thread=min(32 + 2 * kernel["u"] * operands, 255),
            shared_bytes=0,
            threads=lanes if lanes > WARP else THREADS,
        )

    def demand(self, asked: Asked) -> Demand:
        """Bytes counted from each program; a tile is what one block computes."""
        kind = self._own(asked.kernels[0])
        options = self._options(asked.kernels[0])
        extents: Any = kind.complete(asked.extents, options)
        counted, moved = counts_of(asked, self._plan, extents)
        share = DTYPE_BYTES[self.dtype] / FP32_BYTES  # of what is counted
        over = {name: column * share for name, column in moved.items()}
        work = Work(flops={"simd": np.asarray(kind.flops(extents), np.float64)}, mid_bytes=counted.l1_bytes * share, **over)
        tiles = asked.tiles(self._run, self.footprint, vector=np.ones(len(asked.kernel_at)))
        busy = np.maximum(self._groups(asked, extents) * asked.param("vl"), 1.0)  # threads that have something to do
        threads = np.minimum(tiles.threads, busy)
        waves = np.ceil(threads / asked.device.wave_width)
        blocks = np.ceil(busy / threads)
        device = asked.device
        held = max(1, device.compute_units) * np.maximum(
            (device.threads_per_unit or THREADS_HELD) // np.maximum(threads, 1.0), 1.0
        )
        cycles = self._waited(asked, extents) * np.ceil(blocks / held) * np.clip(blocks, 1.0, max(1, device.compute_units))
        told = replace(counted, cycles=cycles, l1_bytes=counted.l1_bytes * share, l2_bytes=counted.l2_bytes * share)
        return Demand(work=work, tiles=replace(tiles, count=blocks, threads=threads, waves=waves), counted=told)

    def _waited(self, asked: Asked, extents: Any) -> Any:
        """Cycles that a group waits for its loads: once an iteration along the lanes, in each pass of a row."""
        graph = self._graph(self._options(asked.kernels[0]))
        folds = sum(node.primitive in FOLDS for node in graph.nodes)
        kind = self._own(asked.kernels[0])
        folded = np.ones(len(asked.kernel_at))
        for axis in kind.operands[0].axes({})[-1:]:
            folded = folded * extents[axis]
        steps = np.ceil(folded / (asked.param("vl") * asked.param("u"))) if folds else 1.0
        return LOAD_CYCLES * (folds + 1) * steps * np.ones(len(asked.kernel_at))

    def _groups(self, asked: Asked, extents: Any) -> Any:
        """Groups of threads that have something of their own to do: one a point of the axes that are not along the lanes.

        Where nothing is folded, one for each iteration along them, too.
        """
        folds = any(node.primitive in FOLDS for node in self._graph(self._options(asked.kernels[0])).nodes)
        output = self._own(asked.kernels[0]).output.axes({})
        whole, found = np.ones(len(asked.kernel_at)), np.ones(len(asked.kernel_at))
        for axis in output:
            whole = whole * extents[axis]
        for place, kernel in enumerate(asked.kernels):
            along = whole * 0 + (extents[output[kernel["ax"] - 1]] if kernel["ax"] else 1)
            pieces = 1.0 if folds else np.ceil(along / (kernel["vl"] * kernel["u"]))
            found = np.where(asked.kernel_at == place, whole / np.maximum(along, 1) * pieces, found)
        return found

    def joins(self, kernel: MicroKernel) -> dict[str, str]:
        """None: a call is one launch."""
        return {}

    def schedule(self, kernel: MicroKernel, symbol: str) -> Any:
        """UsageError: its program is text, not TVM's."""
        raise UsageError(f"micro-kernel {kernel.name} is CUDA C++ that haotuner writes itself; it has no module of TVM")


def _folds_rows(graph: Graph) -> bool:
    """Whether some fold has more terms than a window: an extent that comes with a call, or a long one."""
    for node in graph.nodes:
        if node.primitive in FOLDS:
            shape = graph.types[node.inputs[0]].shape
            axes = node.attributes.get("axes", range(len(shape)))
            if any(not isinstance(shape[axis], int) or int(shape[axis]) > GROUPS[1] for axis in axes):
                return True
    return False


@cache
def short_family(name: str) -> CudaGenerated | None:
    """The family of a name that says a type of 16 bits; None of every other."""
    kind, _, dtype = name.removeprefix("cuda_generated_").rpartition("_")
    if not name.startswith("cuda_generated_") or dtype not in SHORT or kind not in KINDS:
        return None
    return CudaGenerated(KINDS[kind], dtype) if CudaGenerated.covers(KINDS[kind]) else None


@cache
def _text(family: CudaGenerated, kernel: MicroKernel, symbol: str) -> str | None:
    plan = family._plan(kernel)
    try:
        return None if plan is None else kernel_text(symbol, plan, THREADS, family.dtype)
    except UsageError:
        return None
