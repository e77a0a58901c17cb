"""Which target kernels to measure first: the promising by several opinions, and a random part of the rest.

Tried on the shared records and left out: farthest-first spread over program space instead of random (pairwise accuracy of
the residual mode -0.01 to -0.04 at 16 to 64 samples: extremes teach little about the middle), a quarter of each batch
for rows that the sources dispute (-0.01 to -0.03), one opinion only (best@10 0.86 instead of 0.99 where sources mislead).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from haotuner.cost.features import PROGRAM_NAMES
from haotuner.cost.model import Scores
from haotuner.transfer.device_table import Rows
from haotuner.transfer.gp_prior import GpPriors

# Of a batch, this goes to the most promising, since measured kernels are found kernels, and the rest to chance,
# since a model is as good as its examples. 0.5 loses 0.02 of best@1 at 64 samples, 0.75 loses 0.01 to 0.02 of pairwise
# accuracy. The first batch leans to the promising: no model learns much from sixteen rows. Fifteen of sixteen against
# thirteen, convolution, eight seeds: best@10 at sixteen 0.996 and 0.994 (device out, configurations out) against 0.995 and
# 0.988, measurements to 97 % 9 and 11 against 10 and 12; pairwise accuracy 0.004 to 0.007 lower up to 32 samples.
BEST_SHARE = 0.625
FIRST_BEST_SHARE = 0.9375
# Rows that each opinion names by itself in the first batch and in later ones, before what all of them believe. Two in the
# first: convolution, twenty seeds, 11 and 12 measurements to 97 % (device out, configurations out) where three take 9 and
# 13, W6600 0.048 behind the best mode, not 0.038. None later: from scratch, configurations out, 32 where one takes 22.
HEARD = 3
HEARD_LATER = 1
_SHORTLIST = 400  # rows from the top of each opinion that may be promising: enough for batches of a hundred


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
    opinions: Sequence[Scores],
    analysis: Scores,
    spread: float,
    places: Scores,
    tasks: Rows,
    taken: Rows,
    count: int,
    measure: Callable[[int], float],
    rng: np.random.Generator,
) -> Rows:
    """At most ``count`` rows that are not taken, in the order they are measured: the promising ones, then the random ones.

    Args:
        opinions: what models say of all rows, in log efficiency; the first is asked first. May be empty.
        analysis: what the analysis says of them. Its own rows are taken as it names them: models err alike on programs
            that are alike, the analysis does not (A4000, convolution: its second row is the best of all, its first, a
            third as far from it as others are, reaches 0.13 of that).
        spread: standard deviation that is expected of the labels.
        places: ``program_units`` of all rows.
        tasks: the task of each row.
        taken: rows measured already.
        count: size of the batch.
        measure: label of a row, log(throughput / roofline); asked for the rows taken, then for each promising one.
        rng: draws the random part.
    """
    said = [*opinions, analysis]
    free = np.setdiff1d(np.arange(len(places)), taken)
    if len(free) <= count:
        return np.asarray(free[np.argsort(-said[0][free], kind="stable")], dtype=np.int64)
    best = round(count * (BEST_SHARE if len(taken) else FIRST_BEST_SHARE))
    owed = (HEARD_LATER if len(taken) else HEARD) * len(said)
    tops = [free[np.argsort(-each[free], kind="stable")][: max(best, _SHORTLIST)] for each in said]
    rows = np.unique(np.concatenate([*tops, taken]))
    priors = GpPriors([each[rows] for each in said], places[rows], tasks[rows], spread)
    # models that were learnt from these rows are not to be praised for knowing them
    priors.update(np.searchsorted(rows, taken).tolist(), [measure(row) for row in taken.tolist()], judge=False)
    chosen: list[int] = []
    for turn in range(best):
        asked = turn % len(said) if turn < owed else None
        worth = priors.prior(asked) if asked == len(opinions) else priors.expected_improvement(asked)
        place = int(np.argmax(worth))
        chosen.append(int(rows[place]))
        priors.update([place], [measure(chosen[-1])])
    chosen += rng.permutation(np.setdiff1d(free, chosen))[: count - len(chosen)].tolist()
    return np.array(chosen, dtype=np.int64)


def unaided_batch(*, opinions: Sequence[Scores], taken: Rows, count: int, rows: int, rng: np.random.Generator) -> Rows:
    """At most ``count`` of ``rows`` rows for a search that nobody helps: by chance at first, then most by its own model."""
    free = np.setdiff1d(np.arange(rows), taken)
    top = free[np.argsort(-opinions[0][free], kind="stable")][: round(count * BEST_SHARE)] if opinions else free[:0]
    rest = rng.permutation(np.setdiff1d(free, top))[: max(count - len(top), 0)]
    return np.concatenate([top, rest]).astype(np.int64)[:count]
