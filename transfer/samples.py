"""Which target kernels to measure first: a portfolio of all opinions, a few at a time, and a part by chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from haotuner.cost.features import PROGRAM_NAMES
from haotuner.cost.model import Scores
from haotuner.transfer.device_table import Rows
from haotuner.transfer.portfolio import Portfolio

# Rows chosen together, before any of them is measured: one at a time digs where the first opinions point. Of a large batch
# an eighth: what a few more rows tell is little then, and putting the draws right is most of the work.
TOGETHER = 4
# Of a later batch, this goes to chance, since a model is as good as its examples; of the first, one row in sixteen, as no
# model learns much from sixteen rows, and measured kernels are found kernels.
CHANCE = 0.25
FIRST_CHANCE = 0.0625
UNAIDED_BEST = 0.625  # of a batch of a search that nobody helps, what goes to the top of its own model


def program_units(frame: pd.DataFrame) -> Scores:
    """Program features that vary, in standard units over root of their number, so distances are root mean squares."""
    values = np.asarray(frame[list(PROGRAM_NAMES)], dtype=np.float64)
    spread = values.std(axis=0)
    kept = values[:, spread > 1e-9]
    if not kept.shape[1]:
        return np.zeros((len(frame), 1))
    return np.asarray((kept - kept.mean(axis=0)) / kept.std(axis=0) / np.sqrt(kept.shape[1]), dtype=np.float64)


def grow(portfolio: Portfolio, count: int, rows: int, measure: Callable[[int], float], rng: np.random.Generator) -> None:
    """Measure ``count`` more of ``rows`` rows, or all that are left, and tell the portfolio.

    Args:
        portfolio: what was measured is in it.
        count: size of the batch.
        rows: how many there are.
        measure: label of a row, log(throughput / roofline).
        rng: draws the part that is left to chance.
    """
    chance = round(count * (CHANCE if len(portfolio.rows) else FIRST_CHANCE))
    left, together = count - chance, max(TOGETHER, count // 8)
    while left > 0:
        found = portfolio.best(min(together, left))
        if not len(found):
            break  # the shortlist is measured
        portfolio.update(found, np.array([measure(row) for row in found.tolist()]))
        left -= len(found)
    free = np.setdiff1d(np.arange(rows), portfolio.rows)
    drawn = rng.permutation(free)[: left + chance].astype(np.int64)
    portfolio.update(drawn, np.array([measure(row) for row in drawn.tolist()]))


def unaided_batch(*, opinions: Sequence[Scores], taken: Rows, count: int, rows: int, rng: np.random.Generator) -> Rows:
    """At most ``count`` of ``rows`` rows for a search that nobody helps: by chance at first, then most by its own model."""
    free = np.setdiff1d(np.arange(rows), taken)
    top = free[np.argsort(-opinions[0][free], kind="stable")][: round(count * UNAIDED_BEST)] if opinions else free[:0]
    rest = rng.permutation(np.setdiff1d(free, top))[: max(count - len(top), 0)]
    return np.concatenate([top, rest]).astype(np.int64)[:count]
