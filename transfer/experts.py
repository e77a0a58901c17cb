"""Expert opinions: predictions of one source alone, all alike, a plain model or the analysis for a target's rows.

Each is a way to rank that anybody could use without the rest of this folder. What transfer does is held against them, and
its portfolio is shared among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from haotuner.cost.model import Scores
from haotuner.transfer.portfolio import Opinion
from haotuner.transfer.sources import Sources, copied

COPY_OF, FOREST_OF = "copy of ", "forest of "  # and the source's id
COPY_MEAN, PLAIN, ANALYSIS = "copy-mean", "plain", "analytic"
_UNKNOWN = 1.0  # standard units that a row which a source did not measure stands behind what its forest says of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Prior weights of opinions, before any measurement. Weights are relative; a source's kind decides its own."""

    halving: float = 8.0  # doublings of resources between source and target that halve a source's weight
    analysis: float = 1.0  # the weight of the analysis; a source like the target has 1, and so have its copies
    together: float = 0.25  # of each model of all sources together: their mean, the joint forest, the plain one
    learnt: float = 0.5  # of each model that learnt from samples, before it is held against what it had not seen
    doubt: float = 0.1  # share of the belief that nobody is right


SHARES = Shares()


def weighted_opinions(
    sources: Sources,
    columns: Scores,
    known: Scores,
    single: Mapping[str, Scores],
    shares: Shares = SHARES,
) -> list[Opinion]:
    """Every opinion on a target's rows in log efficiency, with its weight.

    Args:
        sources: the fitted sources.
        columns: ``sources.columns`` of the rows.
        known: what each source measured of them, in standard units, NaN where nothing.
        single: what ``single_opinions`` said; the plain model's is used.
        shares: how far each kind of opinion is believed.
    """
    near, spread = np.exp2(-sources.distances / shares.halving), sources.level().spread
    result: list[tuple[str, Scores, float]] = []
    for at, name in enumerate(sources.ids):
        missing = np.isnan(known[:, at])
        result.append((FOREST_OF + name, columns[:, at], float(near[at])))
        if not missing.all():
            copy = np.where(missing, columns[:, at] - _UNKNOWN, known[:, at])
            result.append((COPY_OF + name, copy, float(near[at] * (1.0 - missing.mean()))))
    common = copied(known, np.ones(known.shape[1]))
    missing = np.isnan(common)
    together = columns[:, : len(sources.ids)].mean(axis=1)
    of_all = shares.together * float(near.max())  # whatever is learnt of sources is worth no more than the nearest of them
    result.append((COPY_MEAN, np.where(missing, together - _UNKNOWN, common), of_all))
    result.append(("joint", columns[:, -2], of_all))
    if PLAIN in single:
        result.append((PLAIN, single[PLAIN], of_all))
    result.append((ANALYSIS, columns[:, -1], shares.analysis))
    return [Opinion(name=name, prediction=spread * text, weight=weight) for name, text, weight in result]
