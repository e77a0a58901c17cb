"""Ablation: what resource features add over program-only features, on devices that training never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from haotuner.cost.features import PROGRAM_NAMES
from haotuner.cost.forest import Forest
from haotuner.cost.model import Scores
from haotuner.errors import UsageError
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.reading import DeviceTables
from haotuner.transfer.similarity import priors_of
from haotuner.transfer.sources import ANALYTIC_SLOPE, KnownPrograms, Scale, learn_sources
from tests.bench.transfer_study.calibrate import KEYS, TargetScores
from tests.bench.transfer_study.curves import mean_of
from tests.bench.transfer_study.objectives import compare
from tests.bench.transfer_study.opinions import PLAIN_TREES, plain
from tests.bench.transfer_study.splits import check_rankable

SEEDS = 5  # of the forests


def ablate(read: DeviceTables, family: str, *, seeds: int = SEEDS) -> dict[str, Any]:
    """Zero-shot scores on every device of a family, learnt from the others, by what the model may see; means over seeds.

    ``program``: forests of program features, the same whatever the devices. ``program+near``: the same, near profiles
    first. ``+analysis``: half the analytic difference of the devices on top. ``+joint``: the forest over all sources
    and features joins. ``+memory``: and what each source's forest gets wrong of programs it measured: what transfer uses.
    ``resource``: one joint forest over all features. ``analysis``: no learning. ``objectives``: regression against ranking.
    """
    tables = read.of(family)
    if len(tables) < 2:
        raise UsageError(f"the ablation of {family} needs at least two devices; found {len(tables)}")
    check_rankable(tables, family)
    results: dict[str, dict[str, dict[str, float]]] = {}
    for at, target in enumerate(tables):
        if not target.groups():
            continue  # a source, but nothing to rank
        scores, others = TargetScores.of(target), [table for index, table in enumerate(tables) if index != at]
        runs = [
            {name: scores.score(scores_) for name, scores_ in _said(others, target, seed).items()} for seed in range(seeds)
        ]
        for name in runs[0]:
            results.setdefault(name, {})[target.device.id] = mean_of([run[name] for run in runs])
    means = {
        name: {key: float(np.mean([scores[key] for scores in by_device.values()])) for key in KEYS}
        for name, by_device in results.items()
    }
    return {
        "family": family,
        "devices": results,
        "means": means,
        "analytic_slope": ANALYTIC_SLOPE,
        "objectives": compare(tables, seeds),
    }


def _said(others: Sequence[DeviceTable], target: DeviceTable, seed: int) -> dict[str, Scores]:
    """What each variant says of the target's rows."""
    trees = replace(PLAIN_TREES, columns=PROGRAM_NAMES)
    forests = [Forest(seed=seed, settings=trees).fit(table.frame, table.labels) for table in others]
    predicted = np.stack([
        Scale.of(table.labels).units(forest.predict(target.frame)) for table, forest in zip(others, forests, strict=True)
    ])  # fmt: skip
    nothing = KnownPrograms(keys=np.zeros(0, dtype=np.uint64), residuals=np.zeros(0))
    whole = learn_sources(others, target.device, seed=seed)
    forgetful = replace(whole, known_programs=tuple(nothing for _ in others))
    analysed = replace(forgetful, joint_share=0.0)
    return {
        "program": predicted.mean(axis=0),
        "program+near": priors_of([table.device for table in others], target.device) @ predicted,
        "program+near+analysis": analysed.zero_shot(analysed.columns(target.frame)),
        "program+near+analysis+joint": forgetful.zero_shot(forgetful.columns(target.frame)),
        "program+near+analysis+joint+memory": whole.zero_shot(whole.columns(target.frame)),
        "resource": plain(others, target, seed),
        "analysis": np.asarray(target.frame["expected_log"], dtype=np.float64),
    }
