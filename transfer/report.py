"""Report: means over seeds with bootstrap intervals, as plain dictionaries that JSON can hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.transfer.judging import KEYS
from haotuner.transfer.modes import GUIDED, MODES
from haotuner.transfer.search import LONGEST_WALK, REACH, Point, Run

RESAMPLES = 1000  # bootstrap draws: the ends of a 90 % interval move by under a tenth of its width
INTERVAL = (5.0, 95.0)  # percentiles
CURVE_AT = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # measurements at which curves are told
_SHARES = ("picked", "notes")
_SLOWEST = 1e-3  # share of the best that stands for a task of which nothing was measured yet


def report_of(runs: Sequence[Run]) -> dict[str, Any]:
    """Report of one family on one target from the runs of all seeds.

    ``modes`` (the six, and *guided* as ``search.run`` has it), ``chosen``, ``baselines`` and ``measurements_to`` are means
    over seeds; ``intervals`` repeats modes and chosen with the ends of 90 % bootstrap intervals; ``regret`` is 1 - best
    found / best after n measurements, ``latency`` the time of the best found over that of the best.
    """
    modes = [mode for mode in (*MODES, GUIDED) if any(mode in run.modes for run in runs)]
    counts = {mode: sorted({count for run in runs for count in run.modes.get(mode, {})}) for mode in modes}
    of_mode = {m: {str(c): [r.modes[m][c] for r in runs if c in r.modes.get(m, {})] for c in counts[m]} for m in modes}
    of_chosen = {str(count): [run.chosen[count] for run in runs] for count in sorted(runs[0].chosen)}
    walked = [name for name in (*modes, "chosen") if all(name in run.measurements for run in runs)]
    return {
        "modes": {mode: {count: _mean(points) for count, points in by.items()} for mode, by in of_mode.items()},
        "measurements_to": {
            name: {f"{share:.2f}": float(np.mean([run.measurements[name][share] for run in runs])) for share in REACH}
            for name in walked
        },
        "measurements_limit": LONGEST_WALK,
        "chosen": {count: {**_verdict(runs, int(count)), **_mean(points)} for count, points in of_chosen.items()},
        "baselines": {
            name: _mean([run.baselines[name] for run in runs if name in run.baselines])
            for name in sorted({name for run in runs for name in run.baselines})
        },
        "intervals": {
            "modes": {mode: {count: _interval(points) for count, points in by.items()} for mode, by in of_mode.items()},
            "chosen": {count: _interval(points) for count, points in of_chosen.items()},
        },
        "regret": {
            name: {str(n): float(np.mean([1.0 - run.curves[name][n - 1] for run in runs])) for n in CURVE_AT}
            for name in walked
        },
        "latency": {
            name: {str(n): float(np.mean([1.0 / max(run.curves[name][n - 1], _SLOWEST) for run in runs])) for n in CURVE_AT}
            for name in walked
        },
        "seeds": len(runs),
    }


def joined(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One report from those of several families: numbers averaged, the mode chosen most often, whatever one family has.

    A share (of seeds that picked a mode, or had a note) is 0 in a family that lacks it.
    """
    return {str(key): _join(str(key), [report[key] for report in reports if key in report]) for key in _keys(reports)}


def _join(name: str, values: Sequence[Any]) -> Any:
    if name in _SHARES:
        return {key: float(np.mean([shares.get(key, 0.0) for shares in values])) for key in _keys(values)}
    if isinstance(values[0], Mapping):
        return joined(values)
    if isinstance(values[0], list):
        return [_join(name, list(parts)) for parts in zip(*values, strict=True)]
    if isinstance(values[0], str):
        return Counter(values).most_common(1)[0][0]
    if all(value == values[0] for value in values):
        return values[0]  # the number of seeds stays a whole one
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else None


def _keys(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for report in reports for key in report))


def _verdict(runs: Sequence[Run], count: int) -> dict[str, Any]:
    verdicts = [run.verdicts[count] for run in runs]
    gauges = [verdict.gauge for verdict in verdicts if verdict.gauge is not None]
    picked = Counter(verdict.mode for verdict in verdicts)
    notes = Counter(verdict.note for verdict in verdicts if verdict.note)
    return {
        "mode": picked.most_common(1)[0][0],
        "gauge": float(np.mean(gauges)) if gauges else None,
        "picked": {mode: times / len(runs) for mode, times in sorted(picked.items())},
        "notes": {note: times / len(runs) for note, times in sorted(notes.items())},
    }


def _mean(points: Sequence[Point]) -> Point:
    return _each(points, lambda values: float(np.mean(values)))


def _each(points: Sequence[Point], of: Callable[[Sequence[float]], Any]) -> dict[str, Any]:
    return {key: of([point[key] for point in points]) for key in KEYS}


def _interval(points: Sequence[Point]) -> dict[str, list[float]]:
    """Ends of the bootstrap interval of each mean over seeds (Efron 1979, percentile method)."""
    draws = np.random.default_rng(0).integers(0, len(points), (RESAMPLES, len(points)))
    return _each(points, lambda values: [float(e) for e in np.percentile(np.asarray(values)[draws].mean(axis=1), INTERVAL)])
