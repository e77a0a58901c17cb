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
from haotuner.cost.started import Started
from haotuner.device import Device
from haotuner.microkernels.cpu_dense import CpuDense
from haotuner.op import Op
from haotuner.plan.compose import best_us, choose, mean_us
from haotuner.plan.curves import Curve
from haotuner.record import Record
from haotuner.search.book import Book
from haotuner.search.probes import Probe
from haotuner.search.propose import rounds

LOOK_EVERY = 4  # kernels between two looks at the plan: a look costs some milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Candidates of one op in order of expectation, every one of them measured twice, and the traffic that counts."""

    op: Op
    device: Device
    probes: Sequence[Probe]
    known: Mapping[str, Record]  # what searches see
    again: Mapping[str, Record]  # the other round, which judges
    rows: NDArray[np.int64]
    weights: NDArray[np.float64]
    state: str
    start: Forest | None = None  # a model learnt elsewhere; None: from cold

    def book(self, seed: int) -> Book:
        """An empty book."""
        model = None if self.start is None else Started(self.start, seed=seed)
        return Book(self.op, CpuDense(), self.device, self.probes, weights=self.state, seed=seed, model=model)

    def note(self, book: Book, name: str) -> None:
        """Look one kernel's measurements up."""
        for trial in book.probes[name].trials():
            book.note(self.known[trial.key()])

    def judge(self) -> dict[str, Curve]:
        """Every kernel's curve as the other round has it."""
        book = self.book(0)
        for record in self.again.values():
            book.note(record)
        return {curve.kernel: curve for curve in book.curves([probe.kernel.name for probe in self.probes])}


def plan_us(
    book: Book, names: Sequence[str], judge: Mapping[str, Curve], rows: NDArray[np.int64], weights: NDArray[np.float64]
) -> float:
    """Geometric mean time over the traffic of the plan with these kernels; inf if they cannot serve every m.

    Chosen by what the book knows, timed by the judge.
    """
    layouts = [curves for curves in book.layouts(names).values() if any(curve.mr == 1 for curve in curves)]
    if not layouts:
        return float("inf")
    curves = min(layouts, key=lambda found: mean_us(best_us(found, rows)[0], weights))
    us = []
    for choice in choose(curves, rows.tolist()):
        (first, tiles), *others = choice.parts
        lead = float(judge[first].lead(np.array([tiles]))[0])
        us.append(lead + sum(judge[kernel].follow_us * more for kernel, more in others))
    return mean_us(np.array(us), weights)


Strategy = Callable[[Pool, Book, int], Iterator[str]]  # kernels in the order in which they are measured


def random_order(pool: Pool, book: Book, seed: int) -> Iterator[str]:
    """Any order."""
    names = [probe.kernel.name for probe in pool.probes]
    yield from (names[i] for i in np.random.default_rng(seed).permutation(len(names)).tolist())


def analytic(pool: Pool, book: Book, seed: int) -> Iterator[str]:
    """The search of `haotuner tune` with nothing learned."""
    yield from _search(pool, book, seed, learn=False)


def model(pool: Pool, book: Book, seed: int) -> Iterator[str]:
    """The search of `haotuner tune`."""
    yield from _search(pool, book, seed, learn=True)


STRATEGIES: dict[str, Strategy] = {"model": model, "analytic": analytic, "random": random_order}


def _search(pool: Pool, book: Book, seed: int, *, learn: bool) -> Iterator[str]:
    ordered = [probe.kernel.name for probe in pool.probes]
    for batch in rounds(book, ordered, pool.rows, pool.weights, seed):
        yield from batch
        if learn:
            book.learn()


def kernels_to(share: float, pool: Pool, strategy: Strategy, seed: int) -> int:
    """How many kernels a search measures until its plan is within ``1 / share`` of the plan with all of them."""
    every = [probe.kernel.name for probe in pool.probes]
    full, judge = pool.book(seed), pool.judge()
    for name in every:
        pool.note(full, name)
    enough = plan_us(full, every, judge, pool.rows, pool.weights) / share
    book, seen = pool.book(seed), list[str]()
    for name in strategy(pool, book, seed):
        pool.note(book, name)
        seen.append(name)
        if len(seen) % LOOK_EVERY == 0 and plan_us(book, seen, judge, pool.rows, pool.weights) <= enough:
            break
    return len(seen)
