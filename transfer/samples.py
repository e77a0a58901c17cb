"""Which target kernels to measure first: the promising by several opinions, and a random part of the rest.

Tried on the shared records and left out: farthest-first spread over program space instead of random (pairwise accuracy of
the residual mode -0.01 to -0.04 at 16 to 64 samples: extremes teach little about the middle), a quarter of each batch
for rows that the sources dispute (-0.01 to -0.03), one opinion only (best@10 0.86 instead of 0.99 where sources mislead).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import pandas as pd

from haotuner.cost.features import PROGRAM_NAMES
from haotuner.cost.model import Scores
from haotuner.transfer.table import Rows

# Of a batch, this goes to the top of the rankings, since measured kernels are found kernels, and the rest to chance, since a
# model is as good as its examples. 0.5 loses 0.02 of best@1 at 64 samples, 0.75 loses 0.01 to 0.02 of pairwise accuracy. The
# first batch leans to the top: no model learns much from sixteen rows, and best@1 gains 0.01 to 0.05 (0.875: pairwise
# accuracy loses 0.02, since nothing but the top was seen).
BEST_SHARE = 0.625
FIRST_BEST_SHARE = 0.75
# Variants of one program measure alike. Two rows are alike within this distance (root mean square of standard units), and
# a likeness costs this many standard deviations of the ranking (tried 0.1 to 0.4, and 0.15 to 0.6 of distance).
ALIKE = 0.3
PRICE = 0.2
_SHORTLIST = 400  # rows from the top that the diverse choice looks at: enough for batches of a hundred


def program_units(frame: pd.DataFrame) -> Scores:
    """Program features that vary, in standard units over root of their number, so distances are root mean squares."""
    values = np.asarray(frame[list(PROGRAM_NAMES)], dtype=np.float64)
    spread = values.std(axis=0)
    kept = values[:, spread > 1e-9]
    if not kept.shape[1]:
        return np.zeros((len(frame), 1))
    return np.asarray((kept - kept.mean(axis=0)) / kept.std(axis=0) / np.sqrt(kept.shape[1]), dtype=np.float64)


def next_batch(*, rankings: Sequence[Scores], places: Scores, taken: Rows, count: int, rng: np.random.Generator) -> Rows:
    """At most ``count`` rows that are not taken, most promising first.

    Args:
        rankings: opinions on all rows, higher is better; they share the promising part of the batch, the first has the
            odd row.
        places: ``program_units`` of all rows.
        taken: rows measured already.
        count: size of the batch.
        rng: draws the random part.
    """
    free = np.setdiff1d(np.arange(len(places)), taken)
    if len(free) <= count:
        return np.asarray(free[np.argsort(-rankings[0][free], kind="stable")], dtype=np.int64)
    best = round(count * (BEST_SHARE if len(taken) else FIRST_BEST_SHARE))
    parts: list[list[int]] = []
    chosen: list[int] = []
    for place, scores in enumerate(rankings):
        share = (best + len(rankings) - 1 - place) // len(rankings)
        seen = np.append(taken, chosen).astype(np.int64)
        parts.append(_diverse(scores, places, np.setdiff1d(free, chosen), seen, share))
        chosen += parts[-1]
    chosen = [row for rows in zip_longest(*parts) for row in rows if row is not None]  # every opinion's best first
    chosen += rng.permutation(np.setdiff1d(free, chosen))[: count - len(chosen)].tolist()
    return np.array(chosen, dtype=np.int64)


def _diverse(scores: Scores, places: Scores, free: Rows, taken: Rows, count: int) -> list[int]:
    """Greedy: the best score less a price for being like a row that is taken or chosen."""
    order = free[np.argsort(-scores[free], kind="stable")][:_SHORTLIST]
    value, here = scores[order] / (float(scores.std()) or 1.0), places[order]
    price = np.zeros(len(order))
    for row in taken.tolist():
        price = np.maximum(price, _likeness(here, places[row]))
    chosen: list[int] = []
    for _ in range(min(count, len(order))):
        at = int(np.argmax(value - PRICE * price))
        chosen.append(int(order[at]))
        price = np.maximum(price, _likeness(here, here[at]))
        value[at] = -np.inf
    return chosen


def _likeness(places: Scores, place: Scores) -> Scores:
    return np.asarray(np.exp(-((places - place) ** 2).sum(axis=1) / (2 * ALIKE**2)), dtype=np.float64)
