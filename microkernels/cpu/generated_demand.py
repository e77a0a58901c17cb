"""Demand of generated programs on a CPU: their instructions and bytes, counted from the plan at each shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from haotuner.codegen.cycles import Core, counted, cycles, estimated, of_one_point
from haotuner.codegen.emit import AnyPlan
from haotuner.codegen.memory_traffic import Level, MemoryTraffic
from haotuner.codegen.online_softmax_schedule import OnlinePlan
from haotuner.codegen.op_counter import Loop, count_ops, register_bytes
from haotuner.codegen.schedule import Plan, merged_sizes, planned
from haotuner.hw_profiles.typical import typical
from haotuner.spec.demand import Counted, DemandQuery
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel

LINE = 16  # elements of four bytes in a cache line
FREE = 0.75  # of a cache, for one program's data
KNOWN = 4096  # counts that are remembered

PlanOf = Callable[[MicroKernel], AnyPlan | None]


@dataclass(frozen=True, slots=True)
class Levels:
    """Bytes that a device's caches hold for one program, nearest first; ``vector``: bytes of its vectors."""

    vector: int
    l1: int
    l2: int
    l3: int

    @staticmethod
    def of(device: Device) -> Levels:
        """Those of one core."""
        usual = typical(device)
        l1, l2 = device.l1_bytes or usual.l1_bytes, device.l2_bytes or usual.l2_bytes
        l3 = device.l3_bytes or l2
        return Levels(vector=4 * device.wave_width, l1=int(l1 * FREE), l2=int(l2 * FREE), l3=int(max(l3, l2) * FREE))


@dataclass(frozen=True, slots=True)
class Count:
    """Counts of one call: cycles, and bytes over each level's edge, counted as if nothing was there before."""

    cycles: float
    registers: int
    least: int
    l1: int
    l2: int
    l3: int


def count(plan: AnyPlan, sizes: Mapping[str, int], levels: Levels) -> Count:
    """The count of a plan's program at these sizes of its dimensions."""
    known = merged_sizes(plan, sizes) if isinstance(plan, Plan) else sizes
    return _count(_Known(plan), tuple(sorted(known.items())), levels)


def _estimate(plan: OnlinePlan, sizes: Mapping[str, int], levels: Levels) -> Count:
    point = _point(_Known(plan), tuple(sorted(of_one_point(plan, sizes).items())), levels.vector)
    result, registers, moved = estimated(plan, sizes, (levels.l1, levels.l2, levels.l3), point)
    return Count(result, registers, *moved)


@dataclass(frozen=True, eq=False)
class _Known:
    """A plan as a key: two plans are the same where graph and schedule are."""

    plan: AnyPlan

    def __hash__(self) -> int:
        return hash((id(self.plan.graph), self.plan.schedule))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Known) and self.plan.graph is other.plan.graph and self.plan.schedule == other.plan.schedule
        )


@lru_cache(maxsize=KNOWN)
def _point(known: _Known, sizes: tuple[tuple[str, int], ...], vector: int) -> tuple[float, int]:
    assert isinstance(known.plan, OnlinePlan)
    return counted(known.plan, dict(sizes), vector)


@lru_cache(maxsize=KNOWN)
def _count(known: _Known, sizes: tuple[tuple[str, int], ...], levels: Levels) -> Count:
    top = count_ops(known.plan, dict(sizes))
    loaded, stored = register_bytes(top)
    plain = known
    if isinstance(known.plan, Plan) and not known.plan.schedule.tiles:
        plain = _Known(planned(known.plan.graph, replace(known.plan.schedule, unroll=1, folds=(), masked=True)))
    least, l1, l2, l3 = _bytes(top, levels) if plain == known else _moved(plain, sizes, levels)
    return Count(cycles(top, Core(levels.vector)), sum(loaded.values()) + sum(stored.values()), least, l1, l2, l3)


@lru_cache(maxsize=KNOWN)
def _moved(known: _Known, sizes: tuple[tuple[str, int], ...], levels: Levels) -> tuple[int, int, int, int]:
    """Least bytes and those over each level; how many vectors an iteration has does not matter to them."""
    return _bytes(count_ops(known.plan, dict(sizes)), levels)


def _bytes(top: Loop, levels: Levels) -> tuple[int, int, int, int]:
    moved = MemoryTraffic(top, every=1)
    l1, l2, l3 = (moved.bytes(Level(size, LINE)) for size in (levels.l1, levels.l2, levels.l3))
    return moved.least(), l1, l2, l3


def counts_of(
    requested: DemandQuery, plan_of: PlanOf, dimensions: Mapping[str, np.ndarray]
) -> tuple[Counted, dict[str, np.ndarray]]:
    """Columns of what is counted, and those of ``Work``: least, far and near bytes."""
    levels = Levels.of(requested.device)
    plans = [plan_of(kernel) for kernel in requested.kernels]
    rows = []
    for row, at in enumerate(requested.kernel_at.tolist()):
        plan = plans[at]
        assert plan is not None, "only points that have a plan are asked for"
        sizes = {name: int(dimensions[name][row]) for name in plan.graph.dimensions}
        rows.append(_estimate(plan, sizes, levels) if isinstance(plan, OnlinePlan) else count(plan, sizes, levels))
    columns = {name: np.array([getattr(row, name) for row in rows], np.float64) for name in Count.__slots__}
    warm = {  # what is there before a call that finds its operands where they were left
        name: np.where(columns["least"] <= getattr(levels, name), 0.0, columns[name]) for name in ("l1", "l2", "l3")
    }
    over = {name: columns[name] for name in warm} if requested.cold else warm
    counted = Counted(cycles=columns["cycles"], l1_bytes=over["l1"], l2_bytes=over["l2"])
    return counted, {"least_bytes": columns["least"], "far_bytes": over["l3"], "near_bytes": columns["registers"]}
