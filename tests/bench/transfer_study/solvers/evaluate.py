"""How well a solver is chosen on a device whose silicon no source has: every device in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.records.miopen import Times
from tests.bench.transfer_study.solvers.experts import copy, prior_of
from tests.bench.transfer_study.solvers.learned import LearnedChoice, Settings
from tests.bench.transfer_study.solvers.pool import Rows, SolverPool, chosen_shares

LEAST_MS = 0.05  # of a problem's best time: shorter ones measure the launch
LEARNED, BLIND, FOREST = "learned", "learned, without hardware", "learned, without kriging"
PRIOR = "prior of solvers"
# What copying a file of the same silicon with another number of units reaches (MIOpen's gfx90a with 104 and 110 units and
# the like): between these. The bar takes a third of the gap to the upper one.
SAME_SILICON = (0.93, 0.98)


def evaluate_solvers(
    pool: SolverPool,
    *,
    settings: Settings | None = None,
    targets: tuple[str, ...] = (),
    problems: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Scores of every ranking on every target, as one JSON document.

    Args:
        pool: at least two silicons.
        settings: of the learned model.
        targets: ids of devices; none is all.
        problems: score a random part of each target's, so many; 0 scores all.
        tell: is told of each target that is done.

    Raises:
        UsageError: only one silicon, or a target without rows.
    """
    if len({rows.device.arch for rows in pool.rows}) < 2:
        raise UsageError("times of solvers of two silicons are needed: one to learn from, one to judge on")
    requested = settings or Settings()
    result = {}
    for target in [pool.device(name) for name in targets] or pool.rows:
        rows = _scored(target, problems, requested.seed)
        if not len(rows.key):
            continue
        result[target.device.id] = _evaluate_target(pool, target, rows, requested)
        tell(f"solvers on {target.device.id}: {result[target.device.id]['rankings'][LEARNED]['mean']:.3f}")
    return {"least_ms": LEAST_MS, "targets": result, "bar": bar(result)}


def bar(targets: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the learned choice takes a third of the gap from the best of prior and copies to the same silicon's reach."""
    if not targets:
        return {}
    ours = float(np.mean([target["rankings"][LEARNED]["mean"] for target in targets.values()]))
    best = float(np.mean([target["best_baseline"]["mean"] for target in targets.values()]))
    return {
        "learned": ours,
        "best_baseline": best,
        "needed": [best + max(reach - best, 0.0) / 3.0 for reach in SAME_SILICON],
    }


def _evaluate_target(pool: SolverPool, target: Rows, rows: Rows, requested: Settings) -> dict[str, Any]:
    sources = pool.sources(target)
    means = prior_of(sources, len(pool.solvers))
    rankings: dict[str, Times] = {PRIOR: means[rows.solver]}
    known = {}
    for source in sources:
        name = f"copy of {source.device.id}"
        rankings[name] = copy(rows, source, means)
        known[name] = float(np.isin(np.unique(rows.problem), source.problem).mean())
    baselines = list(rankings)
    model = LearnedChoice(pool, sources, requested)
    rankings[LEARNED] = model.scores(rows)
    model.settings = _but(requested, kriging=False)
    rankings[FOREST] = model.scores(rows)
    rankings[BLIND] = LearnedChoice(pool, sources, _but(requested, hardware=False)).scores(rows)
    scored = {name: summary(chosen_shares(rows, scores)) for name, scores in rankings.items()}
    best = max(baselines, key=lambda name: scored[name]["mean"])
    return {
        "problems": int(len(np.unique(rows.problem))),
        "sources": [source.device.id for source in sources],
        "rankings": scored,
        "known": known,  # share of the problems that each source has
        "best_baseline": {"name": best, **scored[best]},
    }


def _scored(target: Rows, problems: int, seed: int) -> Rows:
    rows = target.choices(LEAST_MS)
    if problems:
        some = np.random.default_rng([seed, 3]).permutation(np.unique(target.problem[rows]))[:problems]
        rows = rows[np.isin(target.problem[rows], some)]
    return target.take(rows)


def summary(shares: Times) -> dict[str, float]:
    """Mean, tenth percentile and least of the shares of the best time."""
    return {"mean": float(shares.mean()), "p10": float(np.quantile(shares, 0.1)), "least": float(shares.min())}


def _but(requested: Settings, *, hardware: bool = True, kriging: bool = True) -> Settings:
    return Settings(
        problems=requested.problems,
        rounds=requested.rounds,
        leaves=requested.leaves,
        hardware=hardware,
        kriging=kriging,
        seed=requested.seed,
    )
