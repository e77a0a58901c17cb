"""Online softmax whose keys are cut: each part leaves its maximum, sum and weighted values, and a join rescales them.

Few queries against many keys (decoding) have few rows to share; blocks share the keys instead. A part is a run of tiles of
keys; what it leaves is the state that the whole program would have there (Dao et al., 2023, Flash-Decoding).
"""

from __future__ import annotations

from math import prod

from haotuner.codegen.builder import Builder, Value
from haotuner.codegen.online_softmax_depth import DepthLanes
from haotuner.codegen.online_softmax_schedule import OnlinePlan, padded
from haotuner.codegen.online_softmax_tiles import FP32, Part
from haotuner.codegen.split_reduction import PARTIAL
from haotuner.codegen.values import Frame


def record(plan: OnlinePlan) -> int:
    """Numbers that a part leaves of a row: weighted values in whole vectors, the maximum, the sum."""
    columns = plan.sums.column[1]
    assert isinstance(columns, int), "the rule asks for known extents"
    return padded(columns, plan.schedule.lanes) + 2


def emit_parts(plan: OnlinePlan, machine: Builder) -> None:
    """Say all parts and their join to a machine that knows all sizes."""
    count, item = plan.schedule.parts, machine.number(1, "int64")
    rows = prod(int(machine.size(extent)) for _, extent in (*plan.sums.outer, plan.sums.row))
    machine.scratch(PARTIAL, max(1, count * rows * record(plan)), FP32)
    whole = machine.number(count, "int64")
    for index in range(count):
        emit_part(plan, machine, Part(machine.number(index, "int64"), whole, item, machine.number(0, "int64")))
    emit_join(plan, machine, whole)


def emit_part(plan: OnlinePlan, machine: Builder, part: Part) -> None:
    """Say one part."""
    DepthLanes(plan, machine, part).run()


def emit_join(plan: OnlinePlan, machine: Builder, parts: Value) -> None:
    """Say how so many parts are joined, in their order."""
    _Join(plan, machine, Part(machine.number(0, "int64"), parts, parts, parts)).run()


class _Join(DepthLanes):
    """Rows of the output from what the parts left."""

    def run(self) -> None:
        """All rows, one by one."""
        self._outer(0, Frame())

    def _outer(self, index: int, frame: Frame) -> None:
        axes = (*self.sums.outer, self.sums.row)
        if index == len(axes):
            self._row(frame)
            return
        variable, extent = axes[index]
        self.machine.loop(self.machine.size(extent), lambda i: self._outer(index + 1, frame.inner(**{variable.name: i})))

    def _row(self, frame: Frame) -> None:
        machine, lanes = self.machine, self.lanes
        assert self.part is not None
        row = frame.variables[self.sums.row[0].name]

        def left(part: Value, column: int, width: int) -> Value:
            return self._near(PARTIAL, self._index("add", self._record(frame, row, part), column), width)

        top = machine.cell(FP32, 1, self._least())
        machine.loop(self.part.count, lambda p: top.set(machine.join("max", top.get(), left(p, self.width, 1), FP32, 1)))
        moved = machine.cell(FP32, 1, self._moved(top.get(), 1)).get()
        total = machine.cell(FP32, 1, machine.number(0, FP32))
        sums = [machine.cell(FP32, lanes, machine.number(0, FP32)) for _ in range(self.width // lanes)]

        def joined(p: Value) -> None:
            apart = self._float("sub", [left(p, self.width, 1), moved], 1)
            scale = machine.cell(FP32, 1, self._float("exp", [apart], 1)).get()
            total.set(machine.fma(left(p, self.width + 1, 1), scale, total.get(), FP32, 1))
            for v, cell in enumerate(sums):
                cell.set(machine.fma(left(p, v * lanes, lanes), scale, cell.get(), FP32, lanes))

        machine.loop(self.part.count, joined)
        whole = self._total(total.get())
        for v, cell in enumerate(sums):
            self._write(frame, row, v, whole, cell.get())
