"""Runs as plain values that JSON can hold, and back: what processes send each other and an interrupted survey keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from haotuner.transfer.gauge import Verdict
from haotuner.transfer.report import CURVE_AT
from haotuner.transfer.search import LONGEST_WALK, Run


def plain(run: Run) -> dict[str, Any]:
    """Everything of a run that a report tells; curves at ``CURVE_AT`` only."""
    return {
        "modes": {mode: {str(count): point for count, point in by.items()} for mode, by in run.modes.items()},
        "chosen": {str(count): point for count, point in run.chosen.items()},
        "verdicts": {str(count): asdict(verdict) for count, verdict in run.verdicts.items()},
        "baselines": run.baselines,
        "measurements": {mode: {str(share): n for share, n in to.items()} for mode, to in run.measurements.items()},
        "curves": {mode: [float(curve[n - 1]) for n in CURVE_AT] for mode, curve in run.curves.items()},
    }


def run_of(told: Mapping[str, Any]) -> Run:
    """The run of what ``plain`` gave; its curves are NaN where they were not told."""
    run = Run(baselines=dict(told["baselines"]))
    run.modes = {mode: {int(count): dict(point) for count, point in by.items()} for mode, by in told["modes"].items()}
    run.chosen = {int(count): dict(point) for count, point in told["chosen"].items()}
    run.verdicts = {int(count): Verdict(**verdict) for count, verdict in told["verdicts"].items()}
    run.measurements = {mode: {float(share): n for share, n in to.items()} for mode, to in told["measurements"].items()}
    for mode, values in told["curves"].items():
        run.curves[mode] = np.full(LONGEST_WALK, np.nan)
        run.curves[mode][np.array(CURVE_AT) - 1] = values
    return run
