"""SolverPool: the tables of several devices over one list of problems and one of solvers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from haotuner.errors import UsageError
from haotuner.hw_profiles.table import Known
from haotuner.records.miopen import Ids, SolverTable, Times
from tests.bench.transfer_study.solvers.features import problem_frame, solver_frame

Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What one device measured, a row a (problem, solver), ordered by problem, then solver."""

    device: Known
    problem: Ids
    solver: Ids
    share: Times  # log of the problem's best time over this one: 0 is the best
    best_ms: Times  # of the row's problem
    key: Ids  # of (problem, solver), ascending

    def take(self, rows: Ids) -> Rows:
        """Those rows only."""
        return Rows(
            device=self.device,
            problem=self.problem[rows],
            solver=self.solver[rows],
            share=self.share[rows],
            best_ms=self.best_ms[rows],
            key=self.key[rows],
        )

    def said_of(self, keys: Ids) -> Times:
        """The share of each of those (problem, solver), NaN where this device did not time it."""
        if not len(self.key):
            return np.full(len(keys), np.nan)
        at = np.minimum(np.searchsorted(self.key, keys), len(self.key) - 1)
        return np.where(self.key[at] == keys, self.share[at], np.nan)

    def choices(self, least_ms: float) -> Ids:
        """Rows of problems that have at least two solvers and take at least so long."""
        _, first, of, count = np.unique(self.problem, return_index=True, return_inverse=True, return_counts=True)
        return np.flatnonzero((count[of] > 1) & (self.best_ms >= least_ms))


class SolverPool:
    """Rows by device, and features of all problems and solvers."""

    def __init__(self, tables: Sequence[SolverTable]) -> None:
        if not tables:
            raise UsageError("no table of solvers")
        self.problems = sorted({text for table in tables for text in table.problems})
        self.solvers = sorted({name for table in tables for name in table.solvers})
        problem_at = {text: at for at, text in enumerate(self.problems)}
        solver_at = {name: at for at, name in enumerate(self.solvers)}
        self.rows: list[Rows] = []
        for table in tables:
            problem = np.array([problem_at[text] for text in table.problems], np.int64)[table.problem]
            solver = np.array([solver_at[name] for name in table.solvers], np.int64)[table.solver]
            key = problem * len(self.solvers) + solver
            order = np.argsort(key)
            best = table.best_ms()[table.problem]
            self.rows.append(
                Rows(
                    device=table.device,
                    problem=problem[order],
                    solver=solver[order],
                    share=np.log(best / table.ms)[order],
                    best_ms=best[order],
                    key=key[order],
                )
            )

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Features of every problem."""
        return problem_frame(self.problems)

    @cached_property
    def problem_values(self) -> Values:
        """The same as numbers; shape ``(problems, features)``."""
        return np.asarray(self.frame, np.float32)

    @cached_property
    def solver_values(self) -> Values:
        """Features of every solver; shape ``(solvers, features)``."""
        return np.asarray(solver_frame(self.solvers), np.float32)

    def device(self, name: str) -> Rows:
        """Rows of the device of that id; UsageError if it has none."""
        for rows in self.rows:
            if rows.device.id == name:
                return rows
        raise UsageError(f"no times of solvers on {name}; found {', '.join(rows.device.id for rows in self.rows)}")

    def sources(self, target: Rows) -> list[Rows]:
        """All devices of another silicon; those of the target's own would know its answers."""
        return [rows for rows in self.rows if rows.device.arch != target.device.arch]


def chosen_shares(rows: Rows, scores: Times) -> Times:
    """Share of the best time of the highest score of each problem; shape ``(problems of the rows,)``, in their order."""
    order = np.lexsort((-scores, rows.problem))
    problem = rows.problem[order]
    first = np.r_[True, problem[1:] != problem[:-1]] if len(problem) else np.array([], bool)
    return np.asarray(np.exp(rows.share[order][first]), np.float64)
