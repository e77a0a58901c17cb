"""Searches replayed on records: every measurement is looked up, so that searches differ in nothing but their choices.

A plan is chosen with the times that its search saw and judged with those of another round: the best of five hundred noisy
times is the luckiest as much as the best, and a search should not have to find the luckiest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.forest import Forest
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.plan.compose import Curve, best_us, can_serve, choose, mean_us
from haotuner.search.observations import ObservationTable
from haotuner.search.probes import Probe
from haotuner.search.propose import foreseen, rounds
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Trial
from haotuner.transfer.warm_start import Started
from haotuner.tuning.strategies import Effort

LOOK_EVERY = 12  # timings between two looks at the plan, a round of a started search: a look costs some milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Candidates of one op in order of expectation, every one of them measured twice, and the traffic that counts."""

    op: Op
    device: Device
    probes: Sequence[Probe]
    known: Mapping[str, Record]  # what searches see
    again: Mapping[str, Record]  # the other round, which judges
    rows: NDArray[np.int64]
    shares: NDArray[np.float64]
    state: str
    start: Forest | None = None  # a model learnt elsewhere; None: from cold

    def book(self, seed: int) -> ObservationTable:
        """An empty book."""
        model = None if self.start is None else Started(self.start, seed=seed)
        return ObservationTable(self.op, CpuDense(), self.device, self.probes, cache=self.state, seed=seed, model=model)

    def judge(self) -> dict[str, Curve]:
        """Every kernel's curve as the other round has it."""
        book = self.book(0)
        for record in self.again.values():
            book.note(record)
        return {curve.kernel: curve for curve in book.curves([probe.kernel.name for probe in self.probes])}


def plan_us(
    book: ObservationTable,
    names: Sequence[str],
    judge: Mapping[str, Curve],
    rows: NDArray[np.int64],
    shares: NDArray[np.float64],
) -> float:
    """Geometric mean time over the traffic of the plan with these kernels; inf if they cannot serve every m.

    Chosen by what the book knows, what it predicts a spread slower; timed by the judge.
    """
    layouts = [curves for curves in book.layouts(names, Effort().caution).values() if can_serve(curves)]
    if not layouts:
        return float("inf")
    curves = min(layouts, key=lambda layout: mean_us(best_us(layout, rows)[0], shares))
    us = []
    for planned in choose(curves, rows.tolist()):
        (first, tiles), *others = planned.composition.parts
        lead = float(judge[first].lead(np.array([tiles]))[0])
        us.append(lead + sum(judge[kernel].follow_us * more for kernel, more in others))
    return mean_us(np.array(us), shares)


Strategy = Callable[[Pool, ObservationTable, int], Iterator[Trial]]  # in the order in which they are measured


def random_order(pool: Pool, book: ObservationTable, seed: int) -> Iterator[Trial]:
    """Whole probes of the kernels in any order."""
    for at in np.random.default_rng(seed).permutation(len(pool.probes)).tolist():
        yield from pool.probes[at].trials()


def analytic(pool: Pool, book: ObservationTable, seed: int) -> Iterator[Trial]:
    """The search of `haotuner tune` with nothing learned."""
    yield from _search(pool, book, seed, learn=False)


def model(pool: Pool, book: ObservationTable, seed: int) -> Iterator[Trial]:
    """The search of `haotuner tune`."""
    yield from _search(pool, book, seed, learn=True)


STRATEGIES: dict[str, Strategy] = {"model": model, "analytic": analytic, "random": random_order}


def _search(pool: Pool, book: ObservationTable, seed: int, *, learn: bool) -> Iterator[Trial]:
    ordered = [probe.kernel.name for probe in pool.probes]
    for batch in rounds(book, ordered, pool.rows, pool.shares, seed, foreseen(book, ordered, pool.rows, pool.shares)):
        for trials in batch.values():
            yield from trials
        if learn:
            book.learn()


def timings_to(share: float, pool: Pool, strategy: Strategy, seed: int) -> int:
    """How many timings a search needs until its plan is within ``1 / share`` of the plan with all kernels."""
    every = [probe.kernel.name for probe in pool.probes]
    full, judge = pool.book(seed), pool.judge()
    for record in pool.known.values():
        full.note(record)
    enough = plan_us(full, every, judge, pool.rows, pool.shares) / share
    book, count = pool.book(seed), 0
    for trial in strategy(pool, book, seed):
        book.note(pool.known[trial.key()])
        count += 1
        if count % LOOK_EVERY == 0 and plan_us(book, book.judged(every), judge, pool.rows, pool.shares) <= enough:
            break
    return count
