"""Expert opinions: predictions of one source alone, all alike, a plain model or the analysis for a target's rows.

Each is a way to rank that anybody could use without the rest of this folder. What transfer does is held against them, and
its portfolio is shared among them. ``agreement`` is the order that the independent ones among them have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from haotuner.cost.model import Analytic, Scores
from haotuner.transfer.device_table import NOTHING, DeviceTable, Rows
from haotuner.transfer.portfolio import Opinion
from haotuner.transfer.sources import Sources, copied, plain

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
    agreed: float = 0.0  # of the zero-shot head, the share that goes to ``agreement``; the portfolio has the rest


SHARES = Shares()


def single_opinions(target: DeviceTable, tables: Sequence[DeviceTable], known: Scores, seed: int) -> dict[str, Scores]:
    """Scores of every row by each opinion alone, ``(rows,)`` each; copies that know no row at all are left out.

    Args:
        target: the rows asked about; their labels are not looked at.
        tables: the sources.
        known: what each source measured of the rows, as ``measured_by`` gives it.
        seed: of the plain model's forest.
    """
    copies = {f"{COPY_OF}{table.device.id}": known[:, column] for column, table in enumerate(tables)}
    copies[COPY_MEAN] = copied(known, np.full(len(tables), 1.0 / len(tables)))
    result = {name: measured_first(values) for name, values in copies.items() if not np.isnan(values).all()}
    return result | {PLAIN: plain(tables, target, seed), ANALYSIS: Analytic().predict(target.frame)}


def measured_first(values: Scores) -> Scores:
    """The values with what is missing below all of them."""
    return np.where(np.isnan(values), np.nanmin(values) - 1.0, values)


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


FEWEST_AGREED = 3  # independent opinions below which a median is one of them, or lies between two


def agreement(opinions: Sequence[Opinion]) -> Rows:
    """All rows in the order of their median rank among opinions that owe nothing to each other; none of fewer than three.

    These are each source's own forest, which knows what the source measured, and the analysis. Copies repeat their forests,
    and models of all sources repeat all of them, so that with them a majority is what two sources have in common. The median
    is not moved by one that is far off (Dwork et al., Rank aggregation methods for the web, 2001).
    """
    independent = [
        opinion.prediction for opinion in opinions if opinion.name.startswith(FOREST_OF) or opinion.name == ANALYSIS
    ]
    if len(independent) < FEWEST_AGREED:
        return NOTHING
    from scipy.stats import rankdata  # half a second to import

    ranks = np.stack([rankdata(-item) for item in independent])
    return np.argsort(np.median(ranks, axis=0), kind="stable").astype(np.int64)


def shared_head(agreed: Rows, portfolio: Rows, share: float) -> Rows:
    """As many rows as the portfolio has; of the first ``n``, for any ``n``, a share comes from the agreement."""
    result: dict[int, None] = {}
    first, other, taken = agreed.tolist(), portfolio.tolist(), 0
    while len(result) < len(portfolio):
        from_agreed = bool(first) and taken < share * (len(result) + 1)
        row = (first if from_agreed or not other else other).pop(0)
        if row not in result:
            result[row] = None
            taken += from_agreed
    return np.array(list(result), dtype=np.int64)
