"""Partitioner by a binary program, as Korch's (ASPLOS 2024, arXiv 2406.09465): it chooses which groups become kernels.

Candidates are convex sets of primitives with one output, and unions of such with several. ``u_k``: candidate k is a kernel
of the plan. Every tensor that must lie in memory is some kernel's output, and so is every other tensor that a chosen kernel
reads. A primitive may be in several kernels: it is then computed again. Kernels with one output each cannot wait for each
other in a circle; a circle with others is cut out where a plan has it, as Korch's public code, which has none of them, need
not. Windows between tensors that must lie in memory are programs of their own; each is solved to proved optimality, or its
bound is told. Which tensors must lie in memory, and what a product carries along, is decided before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeAlias

from haotuner.graph.graph import Graph
from haotuner.partition.costs import Prices
from haotuner.partition.greedy_fusion import Greedy, Step
from haotuner.partition.products import Product
from haotuner.partition.window_ilp import WINDOW_S, Candidate, solve, total_us
from haotuner.partition.windows import Window, Windows
from haotuner.spec.op import Op

NEAR = 1e-6  # of a sum of prices, below which two are the same
AGAIN_S = 1.0  # for a window's program when some of its prices have become times
PROOF_S = 5.0  # the same once all kernels of the plan have times, for what was not proved until then
ERROR = 1.34  # that an expectation is off by: of what was not timed beside what was, only more than that counts as a gain


@dataclass(slots=True)
class PartitionReport:
    """Report of the solver: printed, and kept in the pack's report."""

    windows: int = 0
    candidates: int = 0
    unproved: int = 0  # windows whose plan is not proved to be the best of all
    greedy_us: float = 0.0
    chosen_us: float = 0.0
    bound_us: float = 0.0
    measured: int = 0  # kernels that were timed, of the candidates
    longest_s: float = 0.0  # that a window's program took
    regions: list[dict[str, Any]] = field(default_factory=list)  # of each window its kernels beside greedy fusion's
    ways: list[dict[str, Any]] = field(default_factory=list)  # plans by region of sizes, where there are several
    rewrites: list[dict[str, Any]] = field(default_factory=list)  # primitives that others stand for (rewrites.py)

    @property
    def status(self) -> str:
        """Optimal where every window is proved, and bound, plan and greedy plan are in this order; else feasible."""
        if self.unproved:
            return f"feasible ({self.unproved} of {self.windows} windows not proved)"
        if not self.bound_us <= self.chosen_us * (1 + NEAR) <= self.greedy_us * (1 + NEAR) ** 2:
            return (
                f"feasible (bound {self.bound_us:,.3f}, plan {self.chosen_us:,.3f} and greedy plan {self.greedy_us:,.3f} us "
                "are not in this order)"
            )
        return "optimal"


def together(every: Sequence[PartitionReport]) -> PartitionReport:
    """Report for all segments of a model."""
    lists: dict[str, Any] = {
        name: [report for report_ in every for report in getattr(report_, name)] for name in ("regions", "ways", "rewrites")
    }
    counts = [field_.name for field_ in fields(PartitionReport) if field_.name not in lists and field_.name != "longest_s"]
    numbers: dict[str, Any] = {name: sum(getattr(report, name) for report in every) for name in counts}
    return PartitionReport(**numbers, **lists, longest_s=max((report.longest_s for report in every), default=0.0))


@dataclass(frozen=True, slots=True)
class _Solved:
    """Solution of a window: which candidates, by their places; ``joined``: those that were found on the way."""

    chosen: tuple[int, ...]
    bound_us: float
    proved: bool
    joined: tuple[Candidate, ...]
    nodes: tuple[str, ...]
    limit_s: float = 0.0  # that it was solved in


Solved: TypeAlias = tuple[list[Candidate], float, bool]  # a plan, a bound under every plan, whether the plan is proved


class SolvedWindows:
    """Solutions of windows by their prices: those that mean the same and cost the same are solved once."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._known: dict[Hashable, _Solved | None] = {}
        self.longest_s = 0.0

    def of(self, window: Window, limit_s: float) -> Solved:
        """The cheapest plan known, a bound under every plan, and whether the plan is proved.

        Of a large window candidates may join; where no plan is found it is greedy fusion's.
        """
        key = self._key(window, [candidate.us for candidate in window.candidates])
        solved = self._known.get(key)
        if key not in self._known or (solved is not None and not solved.proved and solved.limit_s < limit_s):
            solved = self._known[key] = self._solved(window, limit_s)
        if solved is None:
            return window.greedy_plan, 0.0, False
        if solved.nodes != tuple(window.nodes):
            window.candidates += self._windows.renamed(solved.joined, solved.nodes, window.nodes)
        return [window.candidates[index] for index in solved.chosen], solved.bound_us, solved.proved

    def _solved(self, window: Window, limit_s: float) -> _Solved | None:
        begin, before = time.monotonic(), len(window.candidates)
        if window.searches:
            solution = self._windows.column_generation(window, limit_s).solution()
            plan, bound_us, proved = solution.plan, solution.bound_us, solution.proved
        else:
            plan, bound_us, proved = solve(window.candidates, window.outputs, limit_s)
        self.longest_s = max(self.longest_s, time.monotonic() - begin)
        greedy = window.greedy_plan
        if plan is None or total_us(plan) > (1 + NEAR) * total_us(greedy):
            plan, proved = greedy, False
        places = {candidate.key: index for index, candidate in enumerate(window.candidates)}
        chosen = tuple(places[kernel.key] for kernel in plan)
        return _Solved(chosen, bound_us, proved, tuple(window.candidates[before:]), tuple(window.nodes), limit_s)

    def by_other_prices(
        self, window: Window, limit_s: float, prices: Sequence[float], places: Sequence[int] | None = None
    ) -> list[Candidate] | None:
        """The cheapest plan of the window's candidates, or of those at some places, by other prices; None: not found."""
        every = window.candidates if places is None else [window.candidates[position] for position in places]
        key = self._key(window, prices), None if places is None else tuple(places)
        if key not in self._known:
            result, bound_us, proved = solve(every, window.outputs, limit_s, prices)
            at = {candidate.key: index for index, candidate in enumerate(every)}
            chosen = None if result is None else tuple(at[kernel.key] for kernel in result)
            self._known[key] = None if chosen is None else _Solved(chosen, bound_us, proved, (), ())
        solved = self._known[key]
        return None if solved is None else [every[position] for position in solved.chosen]

    def _key(self, window: Window, prices: Sequence[float]) -> Hashable:
        """Windows with one key have one program, but for names."""
        index = {name: position for position, name in enumerate(window.nodes)}
        return (
            window.meaning,
            tuple(prices),
            tuple(
                (
                    candidate.alias,
                    tuple(index[name] for name in candidate.outputs),
                    tuple(sorted(index[name] for name in candidate.reads)),
                )
                for candidate in window.candidates
            ),
        )


class IlpPartitioner(Greedy):
    """Partitioner that chooses the cheapest plan by the prices given; ``told`` reports how it was found."""

    def __init__(
        self,
        graph: Graph,
        prices: Prices,
        *,
        tuned: bool = True,
        serves: Callable[[Op], bool] | None = None,
        kinds: dict[Hashable, Window] | None = None,
    ) -> None:
        """``kinds``: windows by what they mean, which segments of a model share; the others are as of ``Greedy``."""
        self.prices, self.report = prices, PartitionReport()
        self.kinds = {} if kinds is None else kinds
        self.rewrites: list[dict[str, Any]] = []  # of the graph, for the report
        super().__init__(graph, tuned=tuned, serves=serves)

    def of(self, graph: Graph, prices: Prices, *, tuned: bool = True) -> IlpPartitioner:
        """The plan of another graph, served by the same kernels; windows that mean the same are shared."""
        result = IlpPartitioner(graph, prices, tuned=tuned, serves=self.finder.serves, kinds=self.kinds)
        result.rewrites = self.rewrites
        return result

    def prefers(self, product: Product, parts: Sequence[Product]) -> bool:
        """True if the one kernel is priced below the products and the loops that they leave."""
        covered = {name for part in parts for name in part.nodes}
        between = [name for name in product.nodes if name not in covered]
        apart = sum(self.prices.product_us(part, self.graph) for part in parts)
        stored = [name for name in between if any(r.output in covered for r in self.finder.readers.get(name, []))]
        apart += sum(self.prices.loops_us(self.subgraph((name,), between)) for name in stored)
        return self.prices.product_us(product, self.graph) < apart

    def price(self, prices: Prices) -> None:
        """Change of the candidates' prices, at the same requests; ``steps`` and ``told`` are then those of a new plan."""
        for window in self.windows:
            window.candidates = [replace(candidate, us=candidate.price(prices)) for candidate in window.candidates]
        self.prices, self.report = prices, PartitionReport()
        self._cut.prices = prices
        for made in ("steps", "solved"):
            self.__dict__.pop(made, None)

    @cached_property
    def _cut(self) -> Windows:
        return Windows(self, self.prices, self.kinds)

    @cached_property
    def windows(self) -> list[Window]:
        """The windows with their candidates, which take most of the time of a plan."""
        return self._cut.windows

    def solver(self) -> SolvedWindows:
        """Solver of the windows by today's prices."""
        return SolvedWindows(self._cut)

    @cached_property
    def _solver(self) -> SolvedWindows:
        return self.solver()

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the cheapest plan over all requests."""
        return self.steps_of(self.solved)

    @cached_property
    def solved(self) -> list[list[Candidate]]:
        """Of each window its kernels and aliases."""
        plans = self._priced(self.windows)
        self.report.windows, self.report.rewrites = len(self.windows), self.rewrites
        self.report.candidates = sum(len(window.candidates) for window in self.windows)
        for window, plan in zip(self.windows, plans, strict=True):
            self.report.greedy_us += total_us(window.greedy_plan)
            self.report.chosen_us += total_us(plan)
            self.report.regions.append(
                {"outputs": window.outputs, "chosen": self._shown(plan), "greedy": self._shown(window.greedy_plan)}
            )
        return plans

    def steps_of(self, plans: Sequence[Sequence[Candidate]]) -> tuple[Step, ...]:
        """The steps of a plan, which has kernels and aliases for each window."""
        # A reshape of what lies in memory is that memory: no kernel makes it, and whoever reads it finds it there.
        stored = {name for name in self._cut.required if name in self.producers} | self._cut.alias.keys()
        groups: dict[str, Graph] = {}
        for kernel in (kernel for plan in plans for kernel in plan):
            stored.update(kernel.outputs)
            if not kernel.alias:
                groups[kernel.output] = self.subgraph(*kernel.key)
        return self._ordered(stored, groups.values())

    def _shown(self, plan: Sequence[Candidate]) -> list[dict[str, Any]]:
        """The kernels of a window's plan, for people."""
        return [
            {
                "output": kernel.output,
                "us": kernel.us,
                "primitives": [self.producers[name].primitive for name in sorted(kernel.nodes, key=self.order.__getitem__)],
                **({"beside": list(kernel.outputs[1:])} if len(kernel.outputs) > 1 else {}),
            }
            for kernel in plan
            if not kernel.alias
        ]

    def _priced(self, windows: Sequence[Window]) -> list[list[Candidate]]:
        """The plan of each window."""
        solver = self._solver
        solved = [solver.of(window, WINDOW_S) for window in windows]
        if self.prices.are_times:
            solved = self._timed(windows, solved)
        self.report.measured, self.report.longest_s = self.prices.count, solver.longest_s
        for window, (_, bound, proved) in zip(windows, solved, strict=True):
            self.report.unproved += not (window.whole and proved)
            self.report.bound_us += bound if window.whole else 0.0
        return [kernels for kernels, _, _ in solved]

    def _timed(self, windows: Sequence[Window], expected: Sequence[Solved]) -> list[Solved]:
        """The plans where prices are measured, solved again until all of their kernels have times.

        Greedy fusion's kernels and those of the plan by expectations are timed first, then what bounds ask for. Where time
        ends before, a plan has only kernels with times, if greedy fusion's have such: so it is never slower than that by
        its times, however short other kernels were expected to be.
        """
        solved = list(expected)
        while True:
            if not self.prices.measure(self._wanted(windows, solved)):
                if not self.prices.more() or (self.prices.by_bounds and not self._proved_again(windows, solved)):
                    break
                self.prices.by_bounds = True
            self._solved_again(windows, solved)
        self.prices.by_bounds = True
        self._solved_again(windows, solved)  # with what was learnt last
        self.prices.by_bounds = self.prices.more()
        for index, window in enumerate(windows):
            kernels, bound, proved = solved[index]
            self._price_again(window)
            if not all(map(self._has_time, kernels)):
                kernels, proved = self._certain(window, expected[index])
            today = {candidate.key: candidate for candidate in window.candidates}
            solved[index] = [today[kernel.key] for kernel in kernels], bound, proved
        return solved

    def _wanted(self, windows: Sequence[Window], solved: Sequence[Solved]) -> list[Graph]:
        """Kernels to be timed: of the longest windows first, greedy fusion's before those of the plan."""
        plans = [(window.greedy_plan, kernels) for window, (kernels, _, _) in zip(windows, solved, strict=True)]
        plans.sort(key=lambda pair: -max(map(total_us, pair)))
        return [self.subgraph(*kernel.key) for pair in plans for plan in pair for kernel in plan if not kernel.alias]

    def _has_time(self, candidate: Candidate) -> bool:
        return candidate.alias or self.prices.knows(candidate.key)

    def _price_again(self, window: Window) -> None:
        window.candidates = [replace(item, us=item.price(self.prices)) for item in window.candidates]

    def _solved_again(self, windows: Sequence[Window], solved: list[Solved]) -> None:
        """Solve the windows again whose prices are others now."""
        for index, window in enumerate(windows):
            before = [candidate.us for candidate in window.candidates]
            self._price_again(window)
            if [candidate.us for candidate in window.candidates] != before:
                chosen = {kernel.key for kernel in solved[index][0]}
                kernels, bound, proved = self._solver.of(window, AGAIN_S)
                last = [candidate for candidate in window.candidates if candidate.key in chosen]
                if total_us(last) < total_us(kernels):
                    kernels, proved = last, False  # the plan before, by the prices now
                solved[index] = kernels, bound, proved

    def _proved_again(self, windows: Sequence[Window], solved: list[Solved]) -> bool:
        """Solve windows that are not proved with more time; whether a plan is another one then."""
        other = False
        for index, window in enumerate(windows):
            plan, _, proved = solved[index]
            if not proved and window.whole and self.prices.more():
                again = self._solver.of(window, PROOF_S)
                if total_us(again[0]) <= total_us(plan) * (1 + NEAR):
                    other = other or {kernel.key for kernel in again[0]} != {kernel.key for kernel in plan}
                    solved[index] = again
        return other

    def _certain(self, window: Window, expected: Solved) -> tuple[list[Candidate], bool]:
        """The plan of a window in which time ended too early, and whether it is proved by expectations.

        Of kernels with times alone, where greedy fusion's have such. Without any times it is the one that was expected.
        Between, kernels without a time must save more than expectations are off by.
        """
        candidates, greedy = window.candidates, window.greedy_plan
        if not any(self.prices.knows(candidate.key) for candidate in candidates):
            return expected[0], expected[2]
        costs = [item.us if self._has_time(item) or item.key in window.greedy else ERROR * item.us for item in candidates]
        timed = all(map(self._has_time, greedy))
        places = [at for at, item in enumerate(candidates) if not timed or self._has_time(item)]
        plan = self._solver.by_other_prices(window, AGAIN_S, [costs[at] for at in places], places) or greedy
        by_key = dict(zip((item.key for item in candidates), costs, strict=True))
        return min(greedy, plan, key=lambda kernels: sum(by_key[kernel.key] for kernel in kernels)), False
