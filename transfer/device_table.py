"""DeviceTable: measurements of one family on one device, as features and labels; which of its programs are equal."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from haotuner.cost.features import PROGRAM_NAMES
from haotuner.cost.model import Scores
from haotuner.spec.device import Device
from haotuner.spec.record import Trial

Rows = NDArray[np.int64]  # indices of rows
NOTHING: Rows = np.array([], dtype=np.int64)
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
class DeviceTable:
    """Measured rows of one family on one device. Rows of a *task* (op, shape, threads, weights) compete with each other."""

    device: Device
    family: str
    frame: pd.DataFrame  # features on this device, one row a trial
    labels: Scores  # log(throughput / roofline), higher is better
    trials: tuple[Trial, ...]  # equal on every device for the same measurement
    tasks: Rows  # code of each row's task
    task_names: tuple[str, ...]
    timed: bool = True  # False: labels follow from a known winner alone, so that nobody is judged by them

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.labels)

    def take(self, rows: Rows) -> DeviceTable:
        """The table of those rows only."""
        return replace(
            self,
            frame=self.frame.iloc[rows].reset_index(drop=True),
            labels=self.labels[rows],
            trials=tuple(self.trials[row] for row in rows.tolist()),
            tasks=self.tasks[rows],
        )

    @property
    def kernels(self) -> tuple[str, ...]:
        """Name of each row's kernel."""
        return tuple(trial.kernel for trial in self.trials)

    def every(self) -> Rows:
        """Indices of all rows."""
        return np.arange(len(self.labels))

    def groups(self) -> list[Rows]:
        """Rows of each task that has at least two."""
        result = [np.flatnonzero(self.tasks == task) for task in np.unique(self.tasks)]
        return [rows for rows in result if len(rows) > 1]


def program_keys(frame: pd.DataFrame) -> Keys:
    """One number for each row, equal for equal programs on equal shapes whatever the device; shape ``(rows,)``."""
    values = np.round(np.asarray(frame[list(KEY_NAMES)], dtype=np.float64), _DECIMALS) + 0.0  # -0.0 becomes 0.0
    bits = values.view(np.uint64)
    mixed = (bits ^ (bits >> np.uint64(29))) * _MULTIPLIERS
    return np.asarray((mixed ^ (mixed >> np.uint64(32))).sum(axis=1, dtype=np.uint64), dtype=np.uint64)
