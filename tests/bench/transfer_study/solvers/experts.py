"""Opinions that need no model: how good a solver is on the whole, and what each source says of the very problem."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from haotuner.records.miopen import Times
from tests.bench.transfer_study.solvers.pool import Rows

LEAST = -3.0  # a solver 20 times slower than the best is as bad as any
_UNHEARD = 2.0 * LEAST  # of a solver that no source has


def prior_of(sources: Sequence[Rows], solvers: int) -> Times:
    """Mean share of each solver over the sources, each source counting as much; shape ``(solvers,)``."""
    means = []
    for rows in sources:
        count = np.bincount(rows.solver, minlength=solvers)
        total = np.bincount(rows.solver, weights=np.maximum(rows.share, LEAST), minlength=solvers)
        means.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
    table = np.array(means)
    known = ~np.isnan(table)
    sums = np.where(known, table, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), sums / np.maximum(known.sum(axis=0), 1), _UNHEARD)


def copy(target: Rows, source: Rows, means: Times) -> Times:
    """The source's own order of a problem; solvers it did not time there follow in the order of all sources' ``means``."""
    answer = source.said_of(target.key)
    return np.where(np.isnan(answer), means[target.solver] + 2.0 * _UNHEARD, answer)
