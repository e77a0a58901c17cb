"""Permutation test: does the ranking use the hardware? Two devices' profiles are swapped, which must cost accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from haotuner.cost.features import frame as frame_of
from haotuner.errors import UsageError
from haotuner.spec.device import Device
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.reading import DeviceTables, demands_of
from haotuner.transfer.sources import learn_sources
from tests.bench.transfer_study.calibrate import TargetScores
from tests.bench.transfer_study.evaluate import interval_of_mean
from tests.bench.transfer_study.splits import check_rankable

SEEDS = 5  # of the forests: pairwise accuracy moves by less than 0.01 from one to the next


def permute(read: DeviceTables, family: str, *, seeds: int = SEEDS) -> dict[str, Any]:
    """Zero-shot pairwise accuracy of every target with true profiles, and with each pair swapped; means over seeds.

    A swap exchanges two devices' profiles while their measurements stay. The ranking of a target changes with its own
    profile (the analysis) and with its likeness to the sources (their priors). Devices with nothing to rank are no targets.

    Raises:
        UsageError: fewer than two devices, or none with two kernels of one task to rank.
    """
    tables = read.of(family)
    if len(tables) < 2:
        raise UsageError(f"the permutation test of {family} needs at least two devices; found {len(tables)}")
    check_rankable(tables, family)
    accuracies = _accuracies(tables, [at for at in range(len(tables)) if tables[at].groups()], seeds)
    true = {tables[at].device.id: accuracy for at, accuracy in accuracies.items()}
    swaps = []
    for first, other in combinations(range(len(tables)), 2):
        profiles = [table.device for table in tables]
        profiles[first], profiles[other] = profiles[other], profiles[first]
        retold_tables = [
            table if at not in (first, other) else retold(table, profiles[at]) for at, table in enumerate(tables)
        ]
        for at, swapped in _accuracies(retold_tables, [at for at in (first, other) if tables[at].groups()], seeds).items():
            target = tables[at].device.id
            swaps.append(
                {
                    "swapped": [tables[first].device.id, tables[other].device.id],
                    "target": target,
                    "true": true[target],
                    "pairwise": swapped,
                    "cost": true[target] - swapped,
                }
            )
    costs = np.array([swap["cost"] for swap in swaps], dtype=np.float64)
    ((low, high),) = interval_of_mean(costs[:, None])
    return {
        "family": family,
        "true": true,
        "swaps": swaps,
        "mean_cost": float(costs.mean()),
        "interval": [low, high],
        "uses_hardware": low > 0,
    }


def _accuracies(tables: Sequence[DeviceTable], targets: Iterable[int], seeds: int) -> dict[int, float]:
    """Zero-shot pairwise accuracy of some tables, each as the target of all others; means over seeds."""
    results = {}
    for at in targets:
        target = tables[at]
        others = [table for index, table in enumerate(tables) if index != at]
        scores, accuracies = TargetScores.of(target), []
        for seed in range(seeds):
            sources = learn_sources(others, target.device, seed=seed)
            accuracies.append(scores.score(sources.zero_shot(sources.columns(target.frame)))["pairwise"])
        results[at] = float(np.mean(accuracies))
    return results


def retold(table: DeviceTable, device: Device) -> DeviceTable:
    """The same measurements with the features of another device: what a wrong profile would say."""
    trials, demands = demands_of(device, table.family, list(table.trials))
    frame = pd.concat([frame_of(part, required) for part, required in demands], ignore_index=True)
    at = {trial: row for row, trial in enumerate(trials)}
    return replace(table, device=device, frame=frame.iloc[[at[trial] for trial in table.trials]].reset_index(drop=True))
