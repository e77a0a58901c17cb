"""SolverTable: what one device measured of solvers for convolution problems."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from haotuner.hw_profiles.table import Known

Ids = NDArray[np.int64]
Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverTable:
    """One row a (problem, solver) with a time; rows of a problem lie together, in the order of the file."""

    device: Known
    problems: tuple[str, ...]  # each once
    solvers: tuple[str, ...]  # each once
    problem: Ids  # of each row, among ``problems``; ascending
    solver: Ids  # of each row, among ``solvers``
    ms: Times
    left_out: Counter[str] = field(default_factory=Counter)  # reason to number of times or lines
    notes: tuple[str, ...] = ()  # what else is odd about the file

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.ms)

    @property
    def silicon(self) -> str:
        """Devices of one silicon are never on both sides of a split, however many of its units they have."""
        return self.device.arch

    def starts(self) -> Ids:
        """First row of each problem, and the end behind the last; shape ``(len(problems) + 1,)``."""
        return np.searchsorted(self.problem, np.arange(len(self.problems) + 1))

    def best_ms(self) -> Times:
        """Fastest time of each problem; shape ``(len(problems),)``."""
        return np.minimum.reduceat(self.ms, self.starts()[:-1]) if len(self.ms) else np.array([])
