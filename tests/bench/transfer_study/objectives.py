"""Objectives: does a model that learns an order rank better than one that learns throughput?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from haotuner.cost.features import NAMES, PROGRAM_NAMES
from haotuner.cost.forest import Settings
from haotuner.cost.model import Scores
from haotuner.transfer.device_table import DeviceTable, Rows
from haotuner.transfer.similarity import priors_of
from haotuner.transfer.sources import Scale
from tests.bench.transfer_study.calibrate import TargetScores
from tests.bench.transfer_study.curves import mean_of

OBJECTIVES = ("regression", "lambdarank", "rank_xendcg")  # Burges 2010; Bruch et al. 2021
SAMPLES = 128  # of the device itself: what a search has after a minute
GRADES = 31  # LightGBM's own limit: a gain of 2^grade - 1
QUERY = 256  # rows that are ranked among each other; LightGBM takes 10,000 at most, and its pairs grow with the square
_SETTINGS = Settings(trees=100, feature_share=0.5, slope=0.0)


def compare(tables: Sequence[DeviceTable], seeds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Mean scores over devices by objective and by what was learnt from.

    ``device out``: the other devices, near ones first, program features. ``own samples``: ``SAMPLES`` random rows of the
    device itself, all features. Both once a seed.
    """
    results: dict[str, dict[str, dict[str, float]]] = {}
    for objective in OBJECTIVES:
        out, own = [], []
        for target in (table for table in tables if table.groups()):
            scores = TargetScores.of(target)
            others = [table for table in tables if table is not target]
            priors = priors_of([table.device for table in others], target.device)
            for seed in range(seeds):
                predicted = [_said(objective, table, table.every(), target, PROGRAM_NAMES, seed) for table in others]
                out.append(
                    scores.score(np.asarray(priors @ np.stack([Scale.of(scores_).units(scores_) for scores_ in predicted])))
                )
                rows = np.random.default_rng([0, seed]).permutation(len(target))[:SAMPLES]
                own.append(scores.score(_said(objective, target, rows, target, NAMES, seed), rows))
        results[objective] = {"device out": mean_of(out), "own samples": mean_of(own)}
    return results


def _said(objective: str, table: DeviceTable, rows: Rows, target: DeviceTable, columns: Sequence[str], seed: int) -> Scores:
    """What a model of some rows of one table says of every row of another."""
    import lightgbm  # a second to import

    parameters: dict[str, Any] = _SETTINGS.parameters(len(rows), seed=seed, threads=1)
    labels, group = table.labels[rows], None
    if objective != "regression":
        rows, group = _queries(table, rows, seed)
        labels = np.concatenate([_grades(table.labels[part]) for part in np.split(rows, np.cumsum(group)[:-1])])
        parameters |= {"objective": objective}
    matrix = np.asarray(table.frame[list(columns)].iloc[rows], dtype=np.float64)
    booster = lightgbm.train(parameters, lightgbm.Dataset(matrix, labels, group=group), num_boost_round=_SETTINGS.trees)
    predicted = booster.predict(np.asarray(target.frame[list(columns)], dtype=np.float64), num_threads=1)
    return np.asarray(predicted, dtype=np.float64)


def _queries(table: DeviceTable, rows: Rows, seed: int) -> tuple[Rows, list[int]]:
    """Rows of the same task next to each other, in chance order, and how many each query has."""
    order = np.random.default_rng(seed).permutation(rows)
    order = order[np.argsort(table.tasks[order], kind="stable")]
    sizes = [size for count in np.unique(table.tasks[order], return_counts=True)[1].tolist() for size in _cut(count)]
    return order, sizes


def _cut(count: int) -> list[int]:
    parts = -(-count // QUERY)
    return [count * (at + 1) // parts - count * at // parts for at in range(parts)]


def _grades(labels: Scores) -> Scores:
    """Place among the rows of a query, from 0 for the worst."""
    places = np.empty(len(labels))
    places[np.argsort(labels, kind="stable")] = np.arange(len(labels))
    return np.asarray(places * GRADES // len(labels), dtype=np.float64)
