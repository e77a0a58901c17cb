"""Which target kernels to measure first: the promising by several opinions, and a random part of the rest.

Tried on the shared records and left out: farthest-first spread over program space instead of random (pairwise accuracy of
the residual mode -0.01 to -0.04 at 16 to 64 samples: extremes teach little about the middle), a quarter of each batch
for rows that the sources dispute (-0.01 to -0.03), one opinion only (best@10 0.86 instead of 0.99 where sources mislead).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import methodcaller

import numpy as np
import pandas as pd

from haotuner.cost.features import PROGRAM_NAMES
from haotuner.cost.model import Scores
from haotuner.transfer.table import Rows

# Of a batch, this goes to the top of the rankings, since measured kernels are found kernels, and the rest to chance,
# since a model is as good as its examples. 0.5 loses 0.02 of best@1 at 64 samples, 0.75 loses 0.01 to 0.02 of pairwise
# accuracy. The first batch leans to the top: no model learns much from sixteen rows. Thirteen of sixteen: twelve leave
# three cases of fifty more than 0.01 behind the best mode, not one; fourteen as many, and cost up to 0.05 of pairwise
# accuracy; sixteen leave one, by 0.13.
BEST_SHARE = 0.625
FIRST_BEST_SHARE = 0.8125
# Variants of one program measure alike. Two rows are alike within this distance (root mean square of standard units), and
# a likeness costs this many standard deviations of the ranking (tried 0.1 to 0.4, and 0.15 to 0.6 of distance).
ALIKE = 0.3
PRICE = 0.2
# Opinions compete for the promising part. Each is heard this often before any is preferred: once leaves three cases of
# fifty, not one (with fourteen of sixteen). An opinion's promise is the mean of its two best labels, since a batch is to
# hold good rows, not to be good on average, and this many standard errors: a whole one leaves four cases where 0.5 and
# 0.25 leave three (with twelve of sixteen). Chosen on the public records, convolution, which the figures there flatter;
# GEMM, on which nothing was chosen, gained as well.
HEARD = 2
WIDTH = 0.5
_SHORTLIST = 400  # rows from the top that the diverse choice looks at: enough for batches of a hundred


def program_units(frame: pd.DataFrame) -> Scores:
    """Program features that vary, in standard units over root of their number, so distances are root mean squares."""
    values = np.asarray(frame[list(PROGRAM_NAMES)], dtype=np.float64)
    spread = values.std(axis=0)
    kept = values[:, spread > 1e-9]
    if not kept.shape[1]:
        return np.zeros((len(frame), 1))
    return np.asarray((kept - kept.mean(axis=0)) / kept.std(axis=0) / np.sqrt(kept.shape[1]), dtype=np.float64)


def next_batch(
    *,
    rankings: Sequence[Scores],
    places: Scores,
    taken: Rows,
    count: int,
    measure: Callable[[int], float],
    rng: np.random.Generator,
) -> Rows:
    """At most ``count`` rows that are not taken, in the order they are measured: the promising ones, then the random ones.

    Opinions compete for the promising part as arms of a bandit (upper confidence bounds, after UCB1 of Auer, Cesa-Bianchi
    and Fischer, 2002, with a fixed width on the scale of what was measured): the next row is named by the one whose rows
    turned out best so far, with an allowance for having been asked seldom.

    Args:
        rankings: opinions on all rows, higher is better; the first is asked first.
        places: ``program_units`` of all rows.
        taken: rows measured already.
        count: size of the batch.
        measure: label of a row, log(throughput / roofline); asked for the rows taken, then for each promising one.
        rng: draws the random part.
    """
    free = np.setdiff1d(np.arange(len(places)), taken)
    if len(free) <= count:
        return np.asarray(free[np.argsort(-rankings[0][free], kind="stable")], dtype=np.int64)
    best = round(count * (BEST_SHARE if len(taken) else FIRST_BEST_SHARE))
    opinions = [_Opinion(scores, places, free, taken, max(best, _SHORTLIST)) for scores in rankings]
    chosen: list[int] = []
    labels = [measure(row) for row in taken.tolist()]
    for _ in range(best):
        asked = max(opinions, key=methodcaller("promise", float(np.std(labels)) if labels else 0.0))  # the first of equals
        chosen.append(asked.name())
        labels.append(measure(chosen[-1]))
        asked.labels.append(labels[-1])
        for opinion in opinions:
            opinion.close(chosen[-1], places[chosen[-1]])
    chosen += rng.permutation(np.setdiff1d(free, chosen))[: count - len(chosen)].tolist()
    return np.array(chosen, dtype=np.int64)


class _Opinion:
    """One ranking of the rows that are free: names the best, less a price for being like a row that is taken."""

    def __init__(self, scores: Scores, places: Scores, free: Rows, taken: Rows, length: int) -> None:
        self.rows = free[np.argsort(-scores[free], kind="stable")][:length]
        self.places = places[self.rows]
        self.value = scores[self.rows] / (float(scores.std()) or 1.0)
        self.likeness = np.zeros(len(self.rows))  # to the likest row that is taken, 0 to 1
        self.labels: list[float] = []  # of the rows it named
        for place in places[taken]:
            self._near(place)

    def promise(self, spread: float) -> tuple[int, float]:
        """Turns it is owed, and the upper confidence bound of the label of a good row of its naming."""
        turns = len(self.labels)
        if turns < HEARD:
            return HEARD - turns, 0.0
        return 0, float(np.mean(sorted(self.labels)[-2:]) + WIDTH * spread / np.sqrt(turns))

    def name(self) -> int:
        """Its best row that is free."""
        return int(self.rows[np.argmax(self.value - PRICE * self.likeness)])

    def close(self, row: int, place: Scores) -> None:
        """``row`` is taken: nobody names it again, and rows like it cost more."""
        self.value[self.rows == row] = -np.inf
        self._near(place)

    def _near(self, place: Scores) -> None:
        self.likeness = np.maximum(self.likeness, _likeness(self.places, place))


def _likeness(places: Scores, place: Scores) -> Scores:
    return np.asarray(np.exp(-((places - place) ** 2).sum(axis=1) / (2 * ALIKE**2)), dtype=np.float64)
