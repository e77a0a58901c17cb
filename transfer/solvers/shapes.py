"""Shapes held out on one device: the nearest known shape's answers, as a table of tuned shapes gives, against a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from haotuner.transfer.solvers.evaluate import LEAST_MS, told
from haotuner.transfer.solvers.learned import LearnedChoice, Settings
from haotuner.transfer.solvers.opinions import LEAST, prior_of
from haotuner.transfer.solvers.pool import Rows, SolverPool, chosen_shares
from haotuner.transfer.solvers.table import Ids, Times

FOLDS = 5
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
    asked = settings or Settings()
    shapes = _shapes(pool, asked.seed)
    found = {}
    for rows in pool.rows:
        shares: dict[str, list[Times]] = {name: [] for name in (TABLE, LEARNED, PRIOR)}
        usable = rows.choices(LEAST_MS)
        for fold in range(FOLDS):
            inside = shapes[rows.problem] == fold
            held = usable[inside[usable]]
            if problems:
                some = np.random.default_rng([asked.seed, fold]).permutation(np.unique(rows.problem[held]))[
                    : problems // FOLDS
                ]
                held = held[np.isin(rows.problem[held], some)]
            known, target = rows.take(np.flatnonzero(~inside)), rows.take(held)
            if not len(held) or not len(known.key):
                continue
            shares[TABLE].append(chosen_shares(target, _nearest(pool, known, target)))
            shares[PRIOR].append(chosen_shares(target, prior_of([known], len(pool.solvers))[target.solver]))
            model = LearnedChoice(pool, [known], _one_device(asked))
            shares[LEARNED].append(chosen_shares(target, model.scores(target)))
        if shares[TABLE]:
            scored = {name: told(np.concatenate(parts)) for name, parts in shares.items()}
            found[rows.device.id] = {"problems": sum(map(len, shares[TABLE])), "rankings": scored}
            tell(f"shapes on {rows.device.id}: {scored[LEARNED]['mean']:.3f}, table {scored[TABLE]['mean']:.3f}")
    return {"least_ms": LEAST_MS, "folds": FOLDS, "devices": found}


def _one_device(asked: Settings) -> Settings:
    return Settings(problems=asked.problems, rounds=asked.rounds, leaves=asked.leaves, kriging=False, seed=asked.seed)


def _shapes(pool: SolverPool, seed: int) -> Ids:
    """Fold of each problem, the same for all directions and types of a shape; shape ``(problems,)``."""
    plain = [re.sub(r"-[A-Z0-9]+-[FBW](?=_g|$)", "", text) for text in pool.problems]
    _, of = np.unique(["-".join(sorted(text.split("-"))) for text in plain], return_inverse=True)  # B and W swap the ends
    folds: Ids = np.random.default_rng([seed, 5]).integers(0, FOLDS, of.max() + 1)
    return folds[of]


def _nearest(pool: SolverPool, known: Rows, target: Rows) -> Times:
    """Scores by the order of the nearest known problem; solvers it lacks follow by their mean."""
    means = prior_of([known], len(pool.solvers))
    equal = np.unique(np.asarray(pool.frame[list(_EQUAL)]), axis=0, return_inverse=True)[1].ravel()
    place = np.asarray(pool.frame[list(_DISTANCE)], np.float64)
    there, wanted = np.unique(known.problem), np.unique(target.problem)
    nearest = np.full(len(pool.problems), -1, np.int64)
    for kind in np.unique(equal[wanted]):
        some, asked = there[equal[there] == kind], wanted[equal[wanted] == kind]
        if len(some):
            nearest[asked] = some[cKDTree(place[some]).query(place[asked])[1]]
    said = known.said_of(nearest[target.problem] * len(pool.solvers) + target.solver)
    return np.where(np.isnan(said), means[target.solver] + 4.0 * LEAST, said)
