"""Shapes held out on one device: the nearest known shape's answers, as a table of tuned shapes gives, against a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from haotuner.records.miopen import Ids, Times
from tests.bench.transfer_study.solvers.evaluate import LEAST_MS, summary
from tests.bench.transfer_study.solvers.experts import LEAST, prior_of
from tests.bench.transfer_study.solvers.learned import LearnedChoice, Settings
from tests.bench.transfer_study.solvers.pool import Rows, SolverPool, chosen_shares

FOLDS = 5
_PROBLEMS, _ROUNDS, _LEAVES = 4000, 200, 63  # of the model at most
TABLE, LEARNED, PRIOR = "nearest shape's table", "learned", "prior of solvers"
# What must be equal for a table's entry to answer: the code that runs hangs on it. The rest is a distance.
_EQUAL = ("direction", "dtype", "layout", "axes", "filter_height", "filter_width", "stride")
_DISTANCE = ("batch_log2", "image_channels_log2", "out_channels_log2", "image_height_log2", "image_width_log2",
             "groups_log2", "out_height_log2", "out_width_log2")  # fmt: skip


def evaluate_shapes(
    pool: SolverPool,
    *,
    settings: Settings | None = None,
    problems: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Scores on every device of shapes that nothing of the same device and shape was learned from, as one JSON document.

    One shape's directions and types fall into one fold. ``problems`` scores a random part, so many; 0 scores all.
    """
    requested = settings or Settings()
    shapes = _shapes(pool, requested.seed)
    result = {}
    for rows in pool.rows:
        shares: dict[str, list[Times]] = {name: [] for name in (TABLE, LEARNED, PRIOR)}
        usable = rows.choices(LEAST_MS)
        for fold in range(FOLDS):
            inside = shapes[rows.problem] == fold
            stored = usable[inside[usable]]
            if problems:
                some = np.random.default_rng([requested.seed, fold]).permutation(np.unique(rows.problem[stored]))[
                    : problems // FOLDS
                ]
                stored = stored[np.isin(rows.problem[stored], some)]
            known, target = rows.take(np.flatnonzero(~inside)), rows.take(stored)
            if not len(stored) or not len(known.key):
                continue
            nearest = _nearest(pool, np.unique(known.problem), np.unique(target.problem))
            shares[TABLE].append(chosen_shares(target, _by_table(pool, known, target, nearest)))
            shares[PRIOR].append(chosen_shares(target, prior_of([known], len(pool.solvers))[target.solver]))
            model = LearnedChoice(pool, [known], _one_device(requested))
            scores = model.scores(target) + _carried(pool, model, known, target, nearest)
            shares[LEARNED].append(chosen_shares(target, scores))
        if shares[TABLE]:
            scored = {name: summary(np.concatenate(parts)) for name, parts in shares.items()}
            result[rows.device.id] = {"problems": sum(map(len, shares[TABLE])), "rankings": scored}
            tell(f"shapes on {rows.device.id}: {scored[LEARNED]['mean']:.3f}, table {scored[TABLE]['mean']:.3f}")
    return {"least_ms": LEAST_MS, "folds": FOLDS, "devices": result}


def _one_device(requested: Settings) -> Settings:
    """One source bears smaller trees, and each device needs five times two of them."""
    problems, rounds, leaves = (
        min(requested.problems, _PROBLEMS),
        min(requested.rounds, _ROUNDS),
        min(requested.leaves, _LEAVES),
    )
    return Settings(problems=problems, rounds=rounds, leaves=leaves, kriging=False, seed=requested.seed)


def _shapes(pool: SolverPool, seed: int) -> Ids:
    """Fold of each problem, the same for all directions and types of a shape; shape ``(problems,)``."""
    plain = [re.sub(r"-[A-Z0-9]+-[FBW](?=_g|$)", "", text) for text in pool.problems]
    _, of = np.unique(["-".join(sorted(text.split("-"))) for text in plain], return_inverse=True)  # B and W swap the ends
    folds: Ids = np.random.default_rng([seed, 5]).integers(0, FOLDS, of.max() + 1)
    return folds[of]


def _nearest(pool: SolverPool, there: Ids, required: Ids, *, other: bool = False) -> Ids:
    """Of each problem that is wanted the nearest of those there, -1 where none is alike or none is asked; ``(problems,)``.

    ``other``: not the problem itself.
    """
    equal = np.unique(np.asarray(pool.frame[list(_EQUAL)]), axis=0, return_inverse=True)[1].ravel()
    position = np.asarray(pool.frame[list(_DISTANCE)], np.float64)
    nearest = np.full(len(pool.problems), -1, np.int64)
    for kind in np.unique(equal[required]):
        some, requested = there[equal[there] == kind], required[equal[required] == kind]
        if len(some) > other:
            result = cKDTree(position[some]).query(position[requested], k=1 + other)[1].reshape(len(requested), -1)
            first, last = some[result[:, 0]], some[result[:, -1]]
            nearest[requested] = np.where(other & (first == requested), last, first)
    return nearest


def _by_table(pool: SolverPool, known: Rows, target: Rows, nearest: Ids) -> Times:
    """Scores by the order of the nearest known problem; solvers it lacks follow by their mean."""
    means = prior_of([known], len(pool.solvers))
    answer = known.said_of(nearest[target.problem] * len(pool.solvers) + target.solver)
    return np.where(np.isnan(answer), means[target.solver] + 4.0 * LEAST, answer)


def _carried(pool: SolverPool, model: LearnedChoice, known: Rows, target: Rows, nearest: Ids) -> Times:
    """What the model errs by at the nearest known problem, as far as errors of neighbours hang together among the known."""
    some = np.random.default_rng(model.settings.seed).permutation(np.unique(known.problem))[:_PROBLEMS]
    rows = known.take(np.flatnonzero(np.isin(known.problem, some)))
    own = model.errors(known, rows.problem, rows.solver)
    beside = model.errors(known, _nearest(pool, np.unique(known.problem), some, other=True)[rows.problem], rows.solver)
    both = ~np.isnan(own) & ~np.isnan(beside)
    slope = float(own[both] @ beside[both] / max(float(beside[both] @ beside[both]), 1e-9)) if both.any() else 0.0
    error = model.errors(known, nearest[target.problem], target.solver)
    return np.where(np.isnan(error), 0.0, np.clip(slope, 0.0, 1.0) * error)
