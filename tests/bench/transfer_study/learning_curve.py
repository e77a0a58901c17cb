"""Learning curve: how well the zero-shot ranking does on a target as more devices have measured the family."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np

from haotuner.cost.forest import Forest
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.experts import SHARES, Shares
from haotuner.transfer.sources import SOURCE_TREES, learn_sources
from tests.bench.transfer_study.calibrate import TargetScores
from tests.bench.transfer_study.modes import make_pool

SUBSETS = 6  # sets of sources of one size that are tried: with four sources that is every set
KEY = "best@10"


def learning_curve(
    target: DeviceTable, tables: Sequence[DeviceTable], seed: int = 0, shares: Shares = SHARES
) -> dict[str, list[float]]:
    """Zero-shot best@10 by the number of sources, one value for each of at most ``SUBSETS`` sets of that size."""
    scores, rng = TargetScores.of(target), np.random.default_rng([seed, 9])
    forests = [Forest(seed=seed, settings=SOURCE_TREES).fit(table.frame, table.labels) for table in tables]
    result: dict[str, list[float]] = {}
    for size in range(1, len(tables) + 1):
        for chosen in _subsets(len(tables), size, rng):
            part = [tables[at] for at in chosen]
            sources = learn_sources(part, target.device, seed=seed, forests=[forests[at] for at in chosen])
            pool = make_pool(sources, part, target, shares=shares)
            result.setdefault(str(size), []).append(scores.score(pool.zero_shot())[KEY])
    return result


def _subsets(count: int, size: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    if comb(count, size) <= SUBSETS:
        return list(combinations(range(count), size))
    return [tuple(sorted(rng.permutation(count)[:size].tolist())) for _ in range(SUBSETS)]
