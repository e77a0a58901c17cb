"""Ablation: what resource features add over program-only features, on devices that training never saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from haotuner.cost.features import PROGRAM_NAMES
from haotuner.cost.forest import Forest
from haotuner.cost.model import Scores
from haotuner.errors import UsageError
from haotuner.transfer.judging import KEYS, Bench, mean_of
from haotuner.transfer.memory import Memory
from haotuner.transfer.nearness import weights_of
from haotuner.transfer.objectives import compare
from haotuner.transfer.reading import Read, check_rankable
from haotuner.transfer.sources import ANALYTIC_SLOPE, PLAIN_TREES, Scale, Sources, learn_sources, plain
from haotuner.transfer.table import Table

SEEDS = 5  # of the forests


def ablate(read: Read, family: str, *, seeds: int = SEEDS) -> dict[str, Any]:
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
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in _VARIANTS}
    for at, target in enumerate(tables):
        if not target.groups():
            continue  # a source, but nothing to rank
        others = [table for place, table in enumerate(tables) if place != at]
        bench = Bench.of(target)
        for name, variant in _VARIANTS.items():
            found[name][target.device.id] = mean_of([bench.score(variant(others, target, seed)) for seed in range(seeds)])
    means = {
        name: {key: float(np.mean([scores[key] for scores in by_device.values()])) for key in KEYS}
        for name, by_device in found.items()
    }
    return {
        "family": family,
        "devices": found,
        "means": means,
        "analytic_slope": ANALYTIC_SLOPE,
        "objectives": compare(tables, seeds),
    }


def _program(others: Sequence[Table], target: Table, seed: int) -> Scores:
    return _forests(others, target, seed, np.full(len(others), 1.0 / len(others)))


def _near(others: Sequence[Table], target: Table, seed: int) -> Scores:
    return _forests(others, target, seed, weights_of([table.device for table in others], target.device))


def _forests(others: Sequence[Table], target: Table, seed: int, weights: Scores) -> Scores:
    total = np.zeros(len(target))
    for table, weight in zip(others, weights.tolist(), strict=True):
        forest = Forest(seed=seed, settings=replace(PLAIN_TREES, columns=PROGRAM_NAMES)).fit(table.frame, table.labels)
        total += weight * Scale.of(table.labels).units(forest.predict(target.frame))
    return total


def _analysed(others: Sequence[Table], target: Table, seed: int) -> Scores:
    return _prior(replace(_forgetful(others, target, seed), share=0.0), target)


def _joined(others: Sequence[Table], target: Table, seed: int) -> Scores:
    return _prior(_forgetful(others, target, seed), target)


def _remembering(others: Sequence[Table], target: Table, seed: int) -> Scores:
    return _prior(learn_sources(others, target.device, seed=seed), target)


def _forgetful(others: Sequence[Table], target: Table, seed: int) -> Sources:
    learnt = learn_sources(others, target.device, seed=seed)
    nothing = Memory(keys=np.zeros(0, dtype=np.uint64), residuals=np.zeros(0))
    return replace(learnt, memories=tuple(nothing for _ in others))


def _prior(sources: Sources, target: Table) -> Scores:
    return sources.zero_shot(sources.columns(target.frame))


def _analysis(others: Sequence[Table], target: Table, seed: int) -> Scores:
    return np.asarray(target.frame["expected_log"], dtype=np.float64)


_VARIANTS: Mapping[str, Callable[[Sequence[Table], Table, int], Scores]] = {
    "program": _program,
    "program+near": _near,
    "program+near+analysis": _analysed,
    "program+near+analysis+joint": _joined,
    "program+near+analysis+joint+memory": _remembering,
    "resource": plain,
    "analysis": _analysis,
}
