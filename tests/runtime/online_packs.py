"""Ops of online sums for packs that nobody tuned: one program for few rows, one for many."""

from __future__ import annotations

from haotuner.backends.cpu.pack_op import PackedSliced, SlicedEntry, SlicedKernel, SlicedPlan
from haotuner.codegen.online_softmax_schedule import DEPTH, ROWS, OnlineSchedule
from haotuner.microkernels.cpu.online_softmax import CpuOnline
from haotuner.ops.attention import ATTENTION
from haotuner.spec.op import Op

SCHEDULES = (
    OnlineSchedule(lanes=4, along=DEPTH, rows=1, block=2, keys=8, out_rows=1),
    OnlineSchedule(lanes=4, along=ROWS, rows=2, block=3, keys=8, out_rows=4),
)


def online_op(spec: str) -> PackedSliced:
    """A cell for few and one for many queries."""
    op, family = Op.parse(spec), CpuOnline(ATTENTION)
    micro_kernels = [family.kernel_of(schedule, op) for schedule in SCHEDULES]
    kernels = [SlicedKernel(name=k.name, tile=dict(family.tile(k).extent), kernel=k) for k in micro_kernels]
    entries = [SlicedEntry(kernel=0, axis="b"), SlicedEntry(kernel=1, axis=op.parallel[-1])]
    plans = [SlicedPlan(threads=count, grid={"t": (3, 40)}, entries=entries) for count in (1, 2)]
    return PackedSliced.of(op, dict.fromkeys(op.dynamic, (1, 40)), kernels, plans)
