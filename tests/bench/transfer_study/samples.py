"""Which target kernels to measure first: a portfolio of all opinions, a few at a time, and a part by chance."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from haotuner.transfer.device_table import NOTHING, Rows
from haotuner.transfer.portfolio import Portfolio

# Rows chosen together, before any of them is measured: one at a time digs where the first opinions point. Of a large batch
# an eighth: what a few more rows tell is little then, and putting the draws right is most of the work.
TOGETHER = 4
# Of a later batch, this goes to chance, since a model is as good as its examples; of the first, two rows in sixteen, as no
# model learns much from sixteen rows, and measured kernels are found kernels.
CHANCE = 0.25
FIRST_CHANCE = 0.125
# Wide: where rows that were ranked high are hardly better than those drawn by chance, nobody knows where the best are and
# three quarters of a batch go to chance. The share is of the pairs of a chosen and a drawn row: one half if the sources say
# nothing; on public records of GEMM and convolution it is above 0.9.
WIDE_CHANCE = 0.75
WIDE_BELOW = 0.75
FEWEST_DRAWN = 2  # rows drawn by chance below which there is nothing to hold the others against


def grow(
    portfolio: Portfolio,
    count: int,
    rows: int,
    measure: Callable[[int], float],
    rng: np.random.Generator,
    drawn: Rows = NOTHING,
) -> Rows:
    """Measure ``count`` more of ``rows`` rows, or all that are left, and tell the portfolio.

    Args:
        portfolio: what was measured is in it.
        count: size of the batch.
        rows: how many there are.
        measure: label of a row, log(throughput / roofline).
        rng: draws the part that is left to chance.
        drawn: the measured rows that were drawn by chance.

    Returns:
        All measured rows that were drawn by chance.
    """
    share = CHANCE if len(portfolio.rows) else FIRST_CHANCE
    chance = round(count * (WIDE_CHANCE if contradicted(portfolio, drawn) else share))
    left, together = count - chance, max(TOGETHER, count // 8)
    while left > 0:
        result = portfolio.best(min(together, left))
        if not len(result):
            break  # the shortlist is measured
        portfolio.update(result, np.array([measure(row) for row in result.tolist()]))
        left -= len(result)
    free = np.setdiff1d(np.arange(rows), portfolio.rows)
    more = rng.permutation(free)[: left + chance].astype(np.int64)
    portfolio.update(more, np.array([measure(row) for row in more.tolist()]))
    return np.concatenate([drawn, more])


def contradicted(portfolio: Portfolio, drawn: Rows) -> bool:
    """Whether the rows that were chosen turned out hardly better than those drawn by chance."""
    by_chance = np.isin(portfolio.rows, drawn)
    if by_chance.sum() < FEWEST_DRAWN or by_chance.all():
        return False
    labels = portfolio.labels()
    ahead = labels[~by_chance][:, np.newaxis] - labels[by_chance]
    return float(((ahead > 0) + 0.5 * (ahead == 0)).mean()) < WIDE_BELOW
