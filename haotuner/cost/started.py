"""Started: a cost model that begins where another one stands and learns what it gets wrong on the device at hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from haotuner.cost.blend import Ranks
from haotuner.cost.forest import Forest, Settings, line_through
from haotuner.cost.model import Scores, check_columns, check_rows

BAG = 4  # forests, averaged: one forest of 30 rows is mostly chance
# Rows before trees learn what the start gets wrong; fewer teach level and slope only. With trees from eight rows on, AVX2 to
# AVX-512 and back were 3.1 and 4.6 % behind after a tenth of the measurements, from 48, 80 or 120 on 1.6 and 3.5 %; a start
# as far off as SSE loses by it (4.5 -> 10). Kernels to 98 % from this device's own model, two ops: 8 rows 20 and 34, 24: 16
# and 42, 48: 16 and 38, 80: 16 and 50.
TREE_ROWS = 48
TREES = Settings(trees=50, feature_share=0.5, slope=0.0)


class Started:
    """A ``CostModel`` over a fitted one: the start alone before ``fit``, the start put right by measured rows after it."""

    def __init__(self, start: Ranks, seed: int = 0) -> None:
        self.start = start
        self.seed = seed
        self._line = (0.0, 1.0)
        self._trees: tuple[Forest, ...] = ()

    def fit(self, frame: pd.DataFrame, log_efficiency: ArrayLike, weights: ArrayLike | None = None) -> Started:
        """Learn level and slope of the start, then trees on what is left; rows of an earlier call are forgotten."""
        check_columns(frame)
        labels, given = check_rows(frame, log_efficiency, weights)
        said = self.start.predict(frame)
        self._line = line_through(said, labels, given, None)
        left = labels - self._line[0] - self._line[1] * said
        enough = len(labels) >= TREE_ROWS
        self._trees = tuple(
            Forest(seed=self.seed * BAG + i, settings=TREES).fit(frame, left, given) for i in range(BAG if enough else 0)
        )
        return self

    def predict(self, frame: pd.DataFrame) -> Scores:
        """Log(throughput / roofline) of shape ``(rows,)``; higher is better."""
        found = self._line[0] + self._line[1] * self.start.predict(frame)
        if self._trees:
            found = found + np.mean([forest.predict(frame) for forest in self._trees], axis=0)
        return np.asarray(found, dtype=np.float64)
