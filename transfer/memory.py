"""Memory: what a source measured of the very programs that are asked about, beside what its forest believes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from haotuner.cost.features import PROGRAM_NAMES
from haotuner.cost.model import Scores

Keys = NDArray[np.uint64]
# Program features that hang on how many threads run in lockstep: the same program has others on waves of 64. The rest tell
# programs apart without them.
_OF_WAVES = {"tile_intensity_log2", "bank_ways"}
KEY_NAMES = tuple(name for name in PROGRAM_NAMES if name not in _OF_WAVES)
# Odd multipliers of a multiply-and-add hash over the bits of a row, from the features' names, so that saved keys stay valid.
# 64 bits: for 10^5 programs the chance that any two share a key is below 10^-9.
_DIGESTS = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in KEY_NAMES]
_MULTIPLIERS = np.array([int.from_bytes(digest, "little") | 1 for digest in _DIGESTS], dtype=np.uint64)
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

    def find(self, asked: Keys) -> Scores:
        """The residual of each program by its key; 0 where it is not remembered."""
        if not len(self.keys):
            return np.zeros(len(asked))
        at = np.minimum(np.searchsorted(self.keys, asked), len(self.keys) - 1)
        return np.where(self.keys[at] == asked, self.residuals[at], 0.0)


def program_keys(frame: pd.DataFrame) -> Keys:
    """One number for each row, equal for equal programs on equal shapes whatever the device; shape ``(rows,)``."""
    values = np.round(np.asarray(frame[list(KEY_NAMES)], dtype=np.float64), _DECIMALS) + 0.0  # -0.0 becomes 0.0
    bits = values.view(np.uint64)
    mixed = (bits ^ (bits >> np.uint64(29))) * _MULTIPLIERS
    return np.asarray((mixed ^ (mixed >> np.uint64(32))).sum(axis=1, dtype=np.uint64), dtype=np.uint64)
