"""From kept kernels to a plan by cells: one region, two regions, or the sum in parts, predicted first and then measured.

In every cell the best of each way is known by the surface; at sampled cells the best few are timed once more, in a new
process, and what was measured decides. Between such cells each way is put right by what it was off at those around.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from haotuner.measure.measurer import Measurer
from haotuner.plan.cells import CellTable, Considered
from haotuner.plan.grids import Grid, alone, bounds, pairs
from haotuner.search.clock import Clock
from haotuner.search.latency_table import Key, LatencyTable
from haotuner.search.task import Task
from haotuner.words.composition import WHOLE, Composition, sum_parts
from haotuner.words.record import Timed, Trial
from haotuner.words.shape import Shape

ONE, TWO, PARTS = "one region", "two regions", "sum in parts"
SAMPLES = 96  # cells whose compositions are timed, as far as the time goes
CONTENDERS = 4  # of a cell, the best first
WORTH = 1.1  # the best of another way contends, too, where it is expected within so many times the best
TIE = 0.015  # a smaller gain is noise: fewer launches win
TABLE_LIMIT = 1 << 16  # rows; beyond, the last cell goes on

Contest = dict[int, dict[Composition, float]]  # extent -> composition -> us


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """Every composition of one cell that is worth a look, with what it is expected to take there."""

    extent: int
    expected: Mapping[Composition, float]


def table(
    task: Task, lab: Measurer, grids: Sequence[Grid], surface: LatencyTable, parts: Sequence[int], clock: Clock
) -> CellTable:
    """The plan: what is kept in every cell, and what else was weighed there."""
    axis = task.op.dynamic[0]
    extents = [shape[axis] for shape in task.traffic.shapes()]
    ends = bounds(grids, min(extents), min(max(extents), TABLE_LIMIT))
    cells = [weighed(end, grids, surface, parts, task.cache) for end in ends]
    measured = _contests(task, lab, cells, clock)
    right = _corrections(cells, measured)
    considered = tuple(_considered(cell, measured.get(cell.extent, {}), right[at]) for at, cell in enumerate(cells))
    entries = tuple(found[0].composition for found in considered)
    lost = [
        times[entry] / min(times.values()) - 1
        for cell, entry in zip(cells, entries, strict=True)
        if (times := measured.get(cell.extent, {})) and entry in times
    ]
    return CellTable(
        threads=1,
        bounds={axis: ends},
        entries=entries,
        measured={Shape.of({axis: extent}): times for extent, times in measured.items()},
        regret_mean=float(np.mean(lost)) if lost else 0.0,
        regret_max=float(np.max(lost)) if lost else 0.0,
        considered=considered,
    )


def way_of(composition: Composition) -> str:
    """In which way a composition is made."""
    return TWO if len(composition.parts) > 1 else PARTS if sum_parts(composition.share) > 1 else ONE


def weighed(extent: int, grids: Sequence[Grid], surface: LatencyTable, parts: Sequence[int], cache: str) -> Weighed:
    """Compositions of an extent with what they are expected to take."""
    by_name = {grid.kernel: grid for grid in grids}
    found = [one for grid in grids for one in alone(grid, extent, parts)]
    found += list(pairs(grids, extent))
    keys = [_keys(one, extent, by_name, cache) for one in found]
    us = iter(surface.times([key for row in keys for key in row]).tolist())
    expected = {one: sum(next(us) for _ in row) for one, row in zip(found, keys, strict=True)}
    return Weighed(extent=extent, expected=expected)


def _keys(composition: Composition, extent: int, grids: Mapping[str, Grid], cache: str) -> list[Key]:
    """What a composition takes is the sum of these: each has its launch in it, and on an H200 two regions took no less."""
    keys, left = [], extent
    for kernel, tiles in composition.parts:
        count = grids[kernel].tiles(left) if tiles == WHOLE else tiles
        keys.append((kernel, count, sum_parts(composition.share), cache))
        left -= count * grids[kernel].rows
    return keys


def _contests(task: Task, lab: Measurer, cells: Sequence[Weighed], clock: Clock) -> Contest:
    """Times of the best few at sampled cells, in an order that may stop anywhere; a cell of which some lack is left out."""
    axis, found = task.op.dynamic[0], Contest()
    picked = _sampled(cells)
    trials = {
        cell.extent: {
            one: Trial.of(task.op.name, one, Shape.of({axis: cell.extent}), cache=task.cache, repeat=1)
            for one in _contenders(cell)
        }
        for cell in picked
    }
    if any(lab.known(trial) is None for asked in trials.values() for trial in asked.values()) and clock.goes_on():
        lab.gather(sorted({part.kernel for asked in trials.values() for one in asked for part in one.parts}))
        lab.renew()
    for extent, asked in trials.items():
        records = lab.measure(asked.values(), clock.goes_on)
        times = {
            one: record.outcome.median_us
            for one, record in zip(asked, records, strict=False)
            if isinstance(record.outcome, Timed)
        }
        if len(records) == len(asked) and times:
            found[extent] = times
    return dict(sorted(found.items()))


def _contenders(cell: Weighed) -> list[Composition]:
    """The best few of a cell, and the best of every way that is near."""
    ordered = sorted(cell.expected, key=lambda one: (cell.expected[one], one))
    best = cell.expected[ordered[0]]
    kept = ordered[:CONTENDERS]
    for way in (ONE, TWO, PARTS):
        first = next((one for one in ordered if way_of(one) == way), None)
        if first is not None and first not in kept and (way == ONE or cell.expected[first] <= best * WORTH):
            kept.append(first)
    return kept


def _sampled(cells: Sequence[Weighed]) -> list[Weighed]:
    """Cells to time: evenly in the logarithm of their extents, in an order that is spread wherever it stops."""
    logs = np.log([cell.extent for cell in cells])
    at = np.abs(logs[:, None] - np.linspace(logs[0], logs[-1], SAMPLES)).argmin(axis=0)
    places = sorted(set(at.tolist()))
    bits = max(len(places) - 1, 0).bit_length()
    order = sorted(range(len(places)), key=lambda place: f"{place:0{bits}b}"[::-1])  # van der Corput, 1935
    return [cells[places[place]] for place in order]


def _corrections(cells: Sequence[Weighed], measured: Contest) -> list[dict[str, float]]:
    """By cell and way: measured over expected, interpolated between the cells where something of the way was timed."""
    logs = np.log([cell.extent for cell in cells])
    found: list[dict[str, float]] = [{} for _ in cells]
    for way in (ONE, TWO, PARTS):
        points = []
        for cell in cells:
            ratios = [
                np.log(us / cell.expected[one])
                for one, us in measured.get(cell.extent, {}).items()
                if way_of(one) == way and one in cell.expected
            ]
            if ratios:
                points.append((float(np.log(cell.extent)), float(np.median(ratios))))
        right = np.interp(logs, [x for x, _ in points], [y for _, y in points]) if points else np.zeros(len(cells))
        for place, value in enumerate(np.exp(right).tolist()):
            found[place][way] = value
    return found


def _considered(cell: Weighed, times: Mapping[Composition, float], right: Mapping[str, float]) -> tuple[Considered, ...]:
    """The best of each way, the chosen one first: what was timed decides where anything was."""
    best: dict[str, Considered] = {}
    for one, us in cell.expected.items():
        way = way_of(one)
        known = one in times
        if times and not known:
            continue
        found = Considered(way=way, composition=one, us=times[one] if known else us * right[way], measured=known)
        if way not in best or (found.us, found.composition) < (best[way].us, best[way].composition):
            best[way] = found
    limit = min(one.us for one in best.values()) * (1 + TIE)
    chosen = next(best[way] for way in (ONE, PARTS, TWO) if way in best and best[way].us <= limit)
    others = _unseen(cell, best, right) | {way: one for way, one in best.items() if one is not chosen}
    return (chosen, *(others[way] for way in (ONE, PARTS, TWO) if way in others))


def _unseen(cell: Weighed, best: Mapping[str, Considered], right: Mapping[str, float]) -> dict[str, Considered]:
    """The best of ways of which nothing was timed in this cell: by prediction they were too far off to try."""
    found: dict[str, Considered] = {}
    for one, us in cell.expected.items():
        way = way_of(one)
        if way not in best and (way not in found or us * right[way] < found[way].us):
            found[way] = Considered(way=way, composition=one, us=us * right[way], measured=False)
    return found
