"""CPU families of online softmax: one family a kind whose graph has products on both sides of a softmax, by any name.

A micro-kernel is a schedule (``haotuner/codegen/online_softmax_schedule.py``) of the kind's graph with the depth of its
products known. Its program takes whole tensors of any extents elsewhere and no memory but a part of its thread's stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any

from haotuner.codegen.kinds import graph_of, has_graph
from haotuner.codegen.online_softmax import OnlineSoftmax, match_online_softmax
from haotuner.codegen.online_softmax_schedule import (
    ALONG,
    OnlinePlan,
    OnlineSchedule,
    OnlineSpace,
    describe_online_softmax,
    in_parts,
    online_plan,
    schedules,
)
from haotuner.codegen.space import SLICES
from haotuner.errors import UsageError
from haotuner.graph.extents import dimensions
from haotuner.microkernels.cpu.generated import CpuGenerated
from haotuner.ops.formula import reductions
from haotuner.ops.kind import OpKind, Options
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.op import Op

# Kinds that are known to be covered: to ask the rule takes a graph, and that sympy, a third of a second of every process.
COVERED = ("attention",)


class CpuOnline(CpuGenerated):
    """Family ``cpu_online_KIND_fp32``.

    Parameters: vl (lanes of a vector), al (0: rows along the lanes, 1: the depth of the products), rw, bk, ky, wr (rows,
    block, keys and out_rows of a schedule); on GPUs st (stages, al 2 and 3: tensor units) and pt (parts of the keys);
    the extents that must be known, by their axes; oa, ob, …: the op's options.
    """

    frontier = 16

    def __init__(self, kind: OpKind) -> None:
        if not self.covers(kind):
            raise ValueError(f"op kind {kind.name} has no online sums between products")
        self.kind = kind
        self.name = f"cpu_online_{kind.name}_fp32"

    @cached_property
    def known(self) -> tuple[str, ...]:
        """Axes whose extents an op must say: those of the products."""
        sums = match_online_softmax(graph_of(self.kind, _defaults(self.kind)))
        assert sums is not None, "it is covered"
        return tuple(sorted({name for _, extent in (sums.depth, sums.column) for name in dimensions(extent)}))

    @staticmethod
    def covers(kind: OpKind) -> bool:
        """True if the rule finds online softmax in a kind's graph."""
        if kind.name in COVERED or len(kind.inputs) < 2:
            return kind.name in COVERED
        if kind.formula is not None and all(reduction.how != "max" for reduction in reductions(kind.formula)):
            return False
        return has_graph(kind) and match_online_softmax(graph_of(kind, _defaults(kind))) is not None

    def serves(self, op: Op) -> bool:
        """The kind in fp32 with the depth of its products known, whatever else is dynamic, no epilogue."""
        return super().serves(op) and set(self.known) <= {axis for axis, _ in op.static}

    def points(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every schedule that has a plan."""
        for schedule in schedules(self._sums(self._of(op)), device.wave_width):
            yield self.kernel_of(schedule, op)

    def space(self, op: Op, device: Device) -> OnlineSpace:
        """Every schedule of an op's program for the device's vectors."""
        sums = self._sums(self._of(op))
        return OnlineSpace(sums.graph, device.wave_width, sums)

    def staged(self, op: Op, device: Device, workers: int) -> tuple[str, list[MicroKernel]]:
        """The keys, which so many workers may share, and the kernels that do."""
        sums = self._sums(self._of(op))
        along, usual = str(sums.key[1]), [schedule for schedule in schedules(sums, device.wave_width) if schedule.rows == 1]
        if self.backend != "cpu" or along not in op.axes:
            return "", []
        result = in_parts(sums, usual, SLICES * workers)
        return (along, [self.kernel_of(item, op) for item in result]) if result else ("", [])

    def kernel_of(self, schedule: Any, op: Op) -> MicroKernel:
        """The micro-kernel of a schedule of the op's graph."""
        extents = tuple((axis, dict(op.static)[axis]) for axis in self.known)
        more = (("st", schedule.stages, 0), ("pt", schedule.parts, 1))  # left out where there are none
        parts = tuple((name, value) for name, value, none in more if value > none)
        return MicroKernel(self.name, (
            ("vl", schedule.lanes), ("al", ALONG.index(schedule.along)), ("rw", schedule.rows), ("bk", schedule.block),
            ("ky", schedule.keys), ("wr", schedule.out_rows), *parts, *extents, *self._option_params(op.all_options()),
        ))  # fmt: skip

    def _of(self, op: Op) -> tuple[tuple[str, str], ...]:
        return tuple({**op.all_options(), **{axis: str(dict(op.static)[axis]) for axis in self.known}}.items())

    def _sums(self, options: tuple[tuple[str, str], ...]) -> OnlineSoftmax:
        return _sums(self.kind.name, options, self)

    def _plan(self, kernel: MicroKernel) -> Any:
        options = {**self._options(kernel), **{axis: str(kernel[axis]) for axis in self.known}}
        try:
            return online_plan(self._sums(tuple(options.items())), _schedule(kernel))
        except UsageError:
            return None

    def tile(self, kernel: MicroKernel) -> Tile:
        """A tile of rows; steps are tiles of keys."""
        own, sums = self._own(kernel), self._known_plan(kernel).sums
        row, key = str(sums.row[1]), str(sums.key[1])
        spatial = [axis for axis in own.output.axes({}) if own.axes.get(axis, "spatial") == "spatial"]
        return Tile(
            extent={axis: _schedule(kernel).tile_rows if axis == row else 1 for axis in spatial},
            edge={axis: "tail" if axis == row else "masked" for axis in spatial},
            step={axis: kernel["ky"] if axis == key else 1 for axis, role in own.axes.items() if role == "reduction"},
        )

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Accumulators of the first product, and what they are made of again and again: a tile's rows, turned."""
        plan = self._known_plan(kernel)
        return Footprint(registers_per_thread=kernel["rw"] * kernel["bk"] + 2, shared_bytes=plan.operand_bytes)

    def decisions(self, kernel: MicroKernel) -> dict[str, str]:
        """A kernel's schedule in words, by the kind of decision."""
        return describe_online_softmax(self._known_plan(kernel))

    def _known_plan(self, kernel: MicroKernel) -> OnlinePlan:
        plan = self._plan(kernel)
        assert isinstance(plan, OnlinePlan), "a kernel that exists has a plan"
        return plan

    def _run(self, kernel: MicroKernel) -> Tile:
        """A tile of rows, of every other axis one."""
        own, sums = self._own(kernel), self._known_plan(kernel).sums
        rows = str(sums.row[1])
        outer = [axis for axis in own.output.axes({})[:-1] if axis in own.axes]
        extent = {axis: _schedule(kernel).tile_rows if axis == rows else 1 for axis in outer}
        return Tile(extent=extent, edge=dict.fromkeys(outer, "exact"), step={})


def _defaults(kind: OpKind) -> Options:
    return {name: option.default for name, option in kind.options.items()}


def _schedule(kernel: MicroKernel) -> OnlineSchedule:
    inputs = dict(kernel.params)
    return OnlineSchedule(
        lanes=kernel["vl"], along=ALONG[kernel["al"]], rows=kernel["rw"], block=kernel["bk"], keys=kernel["ky"],
        out_rows=kernel["wr"], parts=inputs.get("pt", 1), stages=inputs.get("st", 0),
    )  # fmt: skip


@cache
def _sums(kind: str, options: tuple[tuple[str, str], ...], family: CpuOnline) -> OnlineSoftmax:
    """Graphs are values: one for each kind, options and known extents."""
    result = match_online_softmax(graph_of(family.kind, dict(options)))
    assert result is not None, "the rule finds what it found with other options"
    return result
