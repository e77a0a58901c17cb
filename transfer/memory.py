"""Memory: what a source measured of the very programs that are asked about, beside what its forest believes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from haotuner.cost.features import PROGRAM_NAMES
from haotuner.cost.model import Scores

Keys = NDArray[np.uint64]
# Odd multipliers of a multiply-and-add hash over the bits of a row; any fixed odd numbers do. 64 bits: for 10^5 programs the
# chance that any two share a key is below 10^-9.
_MULTIPLIERS = np.random.default_rng(2023).integers(0, 2**63, len(PROGRAM_NAMES), dtype=np.uint64) * 2 + 1
_DECIMALS = 6  # features are logarithms and shares: finer differences are the last bits of another machine's log2


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Residuals (measured less forest) by program, keys ascending."""

    keys: Keys
    residuals: Scores

    @staticmethod
    def of(frame: pd.DataFrame, residuals: Scores) -> Memory:
        """The memory of measured rows; rows of one program are averaged."""
        keys, where = np.unique(program_keys(frame), return_inverse=True)
        totals = np.bincount(where, weights=residuals, minlength=len(keys))
        return Memory(keys=keys, residuals=totals / np.bincount(where, minlength=len(keys)))

    def recall(self, frame: pd.DataFrame) -> Scores:
        """The residual of each row's program; 0 where it is not remembered."""
        return self.find(program_keys(frame))

    def find(self, asked: Keys) -> Scores:
        """The same for programs whose keys are known."""
        if not len(self.keys):
            return np.zeros(len(asked))
        at = np.minimum(np.searchsorted(self.keys, asked), len(self.keys) - 1)
        return np.where(self.keys[at] == asked, self.residuals[at], 0.0)


def program_keys(frame: pd.DataFrame) -> Keys:
    """One number for each row, equal for equal programs on equal shapes whatever the device; shape ``(rows,)``."""
    values = np.round(np.asarray(frame[list(PROGRAM_NAMES)], dtype=np.float64), _DECIMALS) + 0.0  # -0.0 becomes 0.0
    bits = values.view(np.uint64)
    mixed = (bits ^ (bits >> np.uint64(29))) * _MULTIPLIERS
    return np.asarray((mixed ^ (mixed >> np.uint64(32))).sum(axis=1, dtype=np.uint64), dtype=np.uint64)
