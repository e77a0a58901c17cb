"""Plans by cells, from kept kernels: one region, two regions, or the sum in parts, predicted first and then measured.

In every cell the best of each way is known by the surface; at sampled cells the best few are timed once more, in a new
process, and what was measured decides. Between such cells each way is put right by what it was off at those around.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from haotuner.measure.measurer import Measurer
from haotuner.plan.grids import Grid, alone, bounds, pairs
from haotuner.plan.table import CellTable, Considered
from haotuner.search.latency_table import Key, LatencyTable
from haotuner.search.task import Clock, Task
from haotuner.spec.composition import WHOLE, Composition, sum_parts
from haotuner.spec.record import Timed, Trial
from haotuner.spec.shape import Shape

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
    entries = tuple(considered_one[0].composition for considered_one in considered)
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
    compositions = [composition for grid in grids for composition in alone(grid, extent, parts)]
    compositions += list(pairs(grids, extent))
    keys = [_keys(composition, extent, by_name, cache) for composition in compositions]
    us = iter(surface.times([key for row in keys for key in row]).tolist())
    expected = {composition: sum(next(us) for _ in row) for composition, row in zip(compositions, keys, strict=True)}
    return Weighed(extent=extent, expected=expected)


def _keys(composition: Composition, extent: int, grids: Mapping[str, Grid], cache: str) -> list[Key]:
    """Keys whose times add up to a composition's: each has its launch in it, and on an H200 two regions took no less."""
    keys, left = [], extent
    for kernel, tiles in composition.parts:
        count = grids[kernel].tiles(left) if tiles == WHOLE else tiles
        keys.append((kernel, count, sum_parts(composition.share), cache))
        left -= count * grids[kernel].rows
    return keys


def _contests(task: Task, lab: Measurer, cells: Sequence[Weighed], clock: Clock) -> Contest:
    """Times of the best few at sampled cells, in an order that may stop anywhere; a cell of which some lack is left out."""
    axis, result = task.op.dynamic[0], Contest()
    picked = _sampled(cells)
    trials = {
        cell.extent: {
            contender: Trial.of(task.op, contender, Shape.of({axis: cell.extent}), cache=task.cache, repeat=1)
            for contender in _contenders(cell)
        }
        for cell in picked
    }
    if any(lab.known(trial) is None for trials_of in trials.values() for trial in trials_of.values()) and clock.goes_on():
        lab.gather(
            sorted({part.kernel for trials_of in trials.values() for composition in trials_of for part in composition.parts})
        )
        lab.renew()
    for extent, trials_of in trials.items():
        records = lab.measure(trials_of.values(), clock.goes_on)
        times = {
            composition: record.outcome.median_us
            for composition, record in zip(trials_of, records, strict=False)
            if isinstance(record.outcome, Timed)
        }
        if len(records) == len(trials_of) and times:
            result[extent] = times
    return dict(sorted(result.items()))


def _contenders(cell: Weighed) -> list[Composition]:
    """The best few of a cell, and the best of every way that is near."""
    ordered = sorted(cell.expected, key=lambda item: (cell.expected[item], item))
    best = cell.expected[ordered[0]]
    contenders = ordered[:CONTENDERS]
    for way in (ONE, TWO, PARTS):
        first = next((item for item in ordered if way_of(item) == way), None)
        if first is not None and first not in contenders and (way == ONE or cell.expected[first] <= best * WORTH):
            contenders.append(first)
    return contenders


def _sampled(cells: Sequence[Weighed]) -> list[Weighed]:
    """Cells to time: evenly in the logarithm of their extents, in an order that is spread wherever it stops."""
    logs = np.log([cell.extent for cell in cells])
    at = np.abs(logs[:, None] - np.linspace(logs[0], logs[-1], SAMPLES)).argmin(axis=0)
    places = sorted(set(at.tolist()))
    bits = max(len(places) - 1, 0).bit_length()
    order = sorted(range(len(places)), key=lambda index: f"{index:0{bits}b}"[::-1])  # van der Corput, 1935
    return [cells[places[position]] for position in order]


def _corrections(cells: Sequence[Weighed], measured: Contest) -> list[dict[str, float]]:
    """By cell and way: measured over expected, interpolated between the cells where something of the way was timed."""
    logs = np.log([cell.extent for cell in cells])
    result: list[dict[str, float]] = [{} for _ in cells]
    for way in (ONE, TWO, PARTS):
        points = []
        for cell in cells:
            ratios = [
                np.log(us / cell.expected[composition])
                for composition, us in measured.get(cell.extent, {}).items()
                if way_of(composition) == way and composition in cell.expected
            ]
            if ratios:
                points.append((float(np.log(cell.extent)), float(np.median(ratios))))
        right = np.interp(logs, [x for x, _ in points], [y for _, y in points]) if points else np.zeros(len(cells))
        for index, value in enumerate(np.exp(right).tolist()):
            result[index][way] = value
    return result


def _considered(cell: Weighed, times: Mapping[Composition, float], right: Mapping[str, float]) -> tuple[Considered, ...]:
    """The best of each way, the chosen one first: what was timed decides where anything was."""
    best: dict[str, Considered] = {}
    for composition, us in cell.expected.items():
        way = way_of(composition)
        known = composition in times
        if times and not known:
            continue
        result = Considered(
            way=way, composition=composition, us=times[composition] if known else us * right[way], measured=known
        )
        if way not in best or (result.us, result.composition) < (best[way].us, best[way].composition):
            best[way] = result
    limit = min(composition.us for composition in best.values()) * (1 + TIE)
    chosen = next(best[way] for way in (ONE, PARTS, TWO) if way in best and best[way].us <= limit)
    others = _unseen(cell, best, right) | {
        way: composition for way, composition in best.items() if composition is not chosen
    }
    return (chosen, *(others[way] for way in (ONE, PARTS, TWO) if way in others))


def _unseen(cell: Weighed, best: Mapping[str, Considered], right: Mapping[str, float]) -> dict[str, Considered]:
    """The best of ways of which nothing was timed in this cell: by prediction they were too far off to try."""
    result: dict[str, Considered] = {}
    for composition, us in cell.expected.items():
        way = way_of(composition)
        if way not in best and (way not in result or us * right[way] < result[way].us):
            result[way] = Considered(way=way, composition=composition, us=us * right[way], measured=False)
    return result
