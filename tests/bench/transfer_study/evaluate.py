"""Evaluate: how well each mode ranks a target's kernels, over many seeds: the report of ``haotuner transfer evaluate``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from haotuner.errors import UsageError
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.experts import SHARES, Shares
from haotuner.transfer.reading import DeviceTables
from tests.bench.shipped_trees import fit_start
from tests.bench.transfer_study.calibrate import CANDIDATES, KEYS, Calibration, calibrated
from tests.bench.transfer_study.modes import MODES
from tests.bench.transfer_study.simulate import LONGEST_WALK, REACH, Point, SimulatedRun, simulate
from tests.bench.transfer_study.splits import architecture, half_of_kernels, rows_within, table_of
from tests.bench.transfer_study.started_mode import GUIDED, STARTED
from tests.bench.transfer_study.workers import answers_of

SPLITS = ("device", "architecture", "device-and-configs")
RESAMPLES = 1000  # bootstrap draws: the ends of a 90 % interval move by under a tenth of its width
CONFIDENCE = 0.9
CURVE_AT = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # measurements at which curves are told
_SHARES = ("picked", "notes")
_SLOWEST = 1e-3  # share of the best that stands for a task of which nothing was measured yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What to evaluate."""

    target: str
    counts: tuple[int, ...] = (0, 16, 32, 64, 128)
    split: str = "device"
    seeds: int = 20
    families: tuple[str, ...] = ()  # empty: all that the target and at least one other device measured
    shares: Shares | None = None  # how far opinions are believed; None: chosen on the sources, each left out in turn

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise UsageError(f"unknown split {self.split!r}; known: {', '.join(SPLITS)}")
        if self.seeds < 1:
            raise UsageError(f"--seeds {self.seeds}: at least one is needed")
        if not self.counts or min(self.counts) < 0:
            raise UsageError("--samples must name at least one count from 0 up, such as 0,16,32")


def evaluate(
    read: DeviceTables, requested: Evaluation, tell: Callable[[str], None] = lambda _: None, processes: int = 1
) -> dict[str, Any]:
    """The report: keys of the contract, and per family the same, with intervals over seeds and the choices of modes.

    ``processes``: how many work on folds and seeds at the same time; the figures are the same.

    Raises:
        UsageError: no family that both the target and another device measured.
    """
    families = requested.families or read.families()
    reports: dict[str, dict[str, Any]] = {}
    for family in families:
        tables = read.of(family)
        ids = [table.device.id for table in tables]
        if requested.target not in ids or len(ids) < 2:
            tell(f"{family}: measured on {', '.join(ids) or 'no device'}; transfer needs {requested.target} and another")
            continue
        reports[family] = evaluate_family(read, family, requested, tell, processes)
    if not reports:
        result = sorted({table.device.id for table in read.tables})
        raise UsageError(
            f"transfer to {requested.target} needs records of it and of another device for the same family; "
            f"the store has {', '.join(result)}{read.why_not(requested.target)}; import more with: haotuner records import "
            f"FILE --db URL"
        )
    return {"target": requested.target, "split": requested.split, **joined(list(reports.values())), "families": reports}


def evaluate_family(
    read: DeviceTables,
    family: str,
    requested: Evaluation,
    tell: Callable[[str], None] = lambda _: None,
    processes: int = 1,
) -> dict[str, Any]:
    """The report of one family with the settings chosen; the question's own families are not looked at."""
    table_of(read, family, requested.target)  # before folds take their time
    result = (
        Calibration(shares=requested.shares, means=(), folds={})
        if requested.shares
        else calibrated(read, requested.target, requested.split, processes=processes)
    )
    jobs = {
        f"{family} on {requested.target}: seed {seed + 1} of {requested.seeds}": (
            family,
            replace(requested, shares=result.shares),
            seed,
        )
        for seed in range(requested.seeds)
    }
    answers = answers_of(_run_of_seed, read, jobs, processes=processes, tell=tell)
    return report_of([answers[key]["found"] for key in jobs]) | {"settings": settings_document(result)}


def _run_of_seed(read: DeviceTables, job: tuple[str, Evaluation, int]) -> SimulatedRun:
    family, requested, seed = job
    return runs_of(read, family, requested, seeds=(seed,))[0]


def settings_document(calibration: Calibration) -> dict[str, Any]:
    """What was chosen and on what, as values that JSON can hold."""
    return {
        "chosen": _named(calibration.shares),
        "means": {_named(shares): mean for shares, mean in zip(CANDIDATES, calibration.means, strict=False)},
        "folds": dict(calibration.folds),
    }


def _named(shares: Shares) -> str:
    return f"halving {shares.halving:g}, analysis {shares.analysis:g}"


def runs_of(
    read: DeviceTables,
    family: str,
    requested: Evaluation,
    *,
    seeds: Sequence[int] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[SimulatedRun]:
    """One run a seed, of the question's seeds or of some of them; without ``shares`` in the question by the default ones."""
    target, sources = without_relatives(*table_of(read, family, requested.target), requested.split)
    required = range(requested.seeds) if seeds is None else seeds
    shares = requested.shares or SHARES
    lacking = why_unscorable(target, sources, requested.split, required)
    if lacking:
        raise UsageError(f"{family} on {requested.target}: {lacking}")
    whole = requested.split != "device-and-configs"
    # shipped models are fitted once, so nothing of a start depends on the seed but the halves
    start = fit_start(sources, target.device) if whole else None
    runs: list[SimulatedRun] = []
    for seed in required:
        if whole:
            runs.append(simulate(target, sources, requested.counts, seed, start, shares))
        else:
            scored, shown = _halves(target, sources, seed)
            runs.append(simulate(scored, shown, requested.counts, seed, fit_start(shown, target.device), shares))
        tell(f"{family} on {requested.target}: seed {seed + 1} of {requested.seeds}")
    return runs


def without_relatives(
    target: DeviceTable, sources: Sequence[DeviceTable], split: str
) -> tuple[DeviceTable, list[DeviceTable]]:
    """The target and the sources that a split lets it learn from: none of its own architecture if that is left out."""
    if split != "architecture":
        return target, list(sources)
    own = architecture(target.device)
    return target, [table for table in sources if architecture(table.device) != own]


def why_unscorable(target: DeviceTable, sources: Sequence[DeviceTable], split: str, seeds: Sequence[int]) -> str:
    """What a target lacks to be scored under a split, and what to do; empty if nothing."""
    if not target.groups():
        return "no task has two measured kernels to rank; import or measure more"
    if not sources:
        return f"no device of another architecture than {architecture(target.device)} measured this; import more"
    for seed in seeds if split == "device-and-configs" else ():
        seen = half_of_kernels([target, *sources], seed)
        scored = np.bincount(target.tasks[rows_within(target, seen, inside=False)], minlength=1).max() > 1
        shown = any(len(rows_within(table, seen, inside=True)) for table in sources)
        if not scored or not shown:
            whose = "the target's half has no task of two kernels" if shown else "the sources measured none of their half"
            rows = ", ".join(str(len(table)) for table in sources)
            return (
                f"too few records to be cut into halves of kernels: with seed {seed} {whose}, of {len(target)} rows of the "
                f"target and {rows} of sources; import more, or use --split device"
            )
    return ""


def _halves(target: DeviceTable, tables: Sequence[DeviceTable], seed: int) -> tuple[DeviceTable, list[DeviceTable]]:
    """The target's rows that are scored, and those of other configurations that the sources may show."""
    seen = half_of_kernels([target, *tables], seed)
    shown = [table.take(rows_within(table, seen, inside=True)) for table in tables]
    return target.take(rows_within(target, seen, inside=False)), [table for table in shown if len(table)]


def report_of(runs: Sequence[SimulatedRun]) -> dict[str, Any]:
    """Report of one family on one target from the runs of all seeds.

    ``modes`` (the six, *started* and *guided*), ``chosen``, ``baselines`` and ``measurements_to`` are means
    over seeds; ``intervals`` repeats modes and chosen with the ends of 90 % bootstrap intervals; ``regret`` is 1 - best
    found / best after n measurements, ``latency`` the time of the best found over that of the best.
    """
    modes = [mode for mode in (*MODES, STARTED, GUIDED) if any(mode in run.modes for run in runs)]
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
        "chosen": {count: {**_choice(runs, int(count)), **_mean(points)} for count, points in of_chosen.items()},
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


def _choice(runs: Sequence[SimulatedRun], count: int) -> dict[str, Any]:
    choices = [run.choices[count] for run in runs]
    accuracies = [choice.accuracy for choice in choices if choice.accuracy is not None]
    picked = Counter(choice.mode for choice in choices)
    notes = Counter(choice.note for choice in choices if choice.note)
    return {
        "mode": picked.most_common(1)[0][0],
        "gauge": float(np.mean(accuracies)) if accuracies else None,
        "picked": {mode: times / len(runs) for mode, times in sorted(picked.items())},
        "notes": {note: times / len(runs) for note, times in sorted(notes.items())},
    }


def _mean(points: Sequence[Point]) -> Point:
    return {key: float(np.mean([point[key] for point in points])) for key in KEYS}


def _interval(points: Sequence[Point]) -> dict[str, list[float]]:
    """Ends of the bootstrap interval of each mean over seeds."""
    return dict(zip(KEYS, interval_of_mean([[point[key] for key in KEYS] for point in points]), strict=True))


def interval_of_mean(values: ArrayLike) -> list[list[float]]:
    """Ends of the 90 % bootstrap interval of the mean of each column (Efron 1979, percentile method).

    Args:
        values: ``(samples, columns)``; the same draws of samples for every column. One sample is its own interval.
    """
    from scipy.stats import bootstrap  # half a second to import

    data = np.asarray(values, dtype=np.float64)
    if len(data) == 1:
        return [[float(value)] * 2 for value in data[0]]
    result = bootstrap((data,), np.mean, axis=0, n_resamples=RESAMPLES, confidence_level=CONFIDENCE, method="percentile",
                      random_state=np.random.default_rng(0)).confidence_interval  # fmt: skip
    return np.stack(result, axis=1).tolist()  # type: ignore[no-any-return]
