"""Emitters of online softmax, by what runs along the lanes."""

from __future__ import annotations

from haotuner.codegen.builder import Builder
from haotuner.codegen.online_softmax_depth import DepthLanes
from haotuner.codegen.online_softmax_parts import emit_parts
from haotuner.codegen.online_softmax_rows import RowLanes
from haotuner.codegen.online_softmax_schedule import ROWS, OnlinePlan


def emit_online(plan: OnlinePlan, machine: Builder) -> None:
    """Say the program of a plan to a machine."""
    if plan.schedule.parts > 1:
        emit_parts(plan, machine)
        return
    (RowLanes if plan.schedule.along == ROWS else DepthLanes)(plan, machine).run()
