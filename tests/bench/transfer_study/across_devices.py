"""Across devices: what a split found on all targets of a family together, held against every opinion alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.transfer.experts import ANALYSIS, COPY_MEAN, COPY_OF, PLAIN
from tests.bench.transfer_study.evaluate import interval_of_mean
from tests.bench.transfer_study.simulate import SimulatedRun
from tests.bench.transfer_study.started_mode import GUIDED

KEY = "best@10"
SCRATCH = "from-scratch"


def across_devices(runs: Mapping[str, Sequence[SimulatedRun]], reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Means over targets with 90 % intervals over seeds, the worst target, and who alone was ahead of transfer where.

    Args:
        runs: of each target, one a seed, the same seeds for all.
        reports: what ``report_of`` made of them.
    """
    counts = sorted({count for of_target in runs.values() for run in of_target for count in run.chosen})
    return {
        "chosen": {str(count): _over(runs, reports, "chosen", count) for count in counts},
        GUIDED: {str(count): _over(runs, reports, GUIDED, count) for count in counts if count},
        SCRATCH: {str(count): _over(runs, reports, SCRATCH, count) for count in counts if count},
        "single": {target: _single(report) for target, report in reports.items() if "0" in report["chosen"]},
    }


def _over(
    runs: Mapping[str, Sequence[SimulatedRun]], reports: Mapping[str, Mapping[str, Any]], name: str, count: int
) -> dict[str, Any]:
    values = np.array([[_point(run, name, count) for run in of_target] for of_target in runs.values()])
    by_target = dict(zip(runs, values.mean(axis=1).tolist(), strict=True))
    worst = min(by_target, key=lambda target: by_target[target])
    (ends,) = interval_of_mean(values.mean(axis=0)[:, None])
    return {"mean": float(values.mean()), "interval": ends, "worst": worst, "least": by_target[worst]}


def _point(run: SimulatedRun, name: str, count: int) -> float:
    return (run.chosen if name == "chosen" else run.modes[name])[count][KEY]


def _single(report: Mapping[str, Any]) -> dict[str, Any]:
    """The best opinion alone, with hindsight, and how far it is ahead of the zero-shot ranking (below 0: behind)."""
    name, reached = best_single(report["baselines"], KEY)
    return {"name": name, "reached": reached, "ahead": reached - report["chosen"]["0"][KEY]}


def best_single(baselines: Mapping[str, Mapping[str, float]], key: str) -> tuple[str, float]:
    """With hindsight: which opinion alone did best by a score, and what it reached."""
    single = {
        name: scores[key]
        for name, scores in baselines.items()
        if name.startswith(COPY_OF) or name in (COPY_MEAN, PLAIN, ANALYSIS)
    }
    name = max(single, key=lambda each: single[each])
    return name, float(single[name])
