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
from typing import Any

from haotuner.graph.graph import Graph
from haotuner.partition.costs import Prices
from haotuner.partition.greedy_fusion import Greedy, Step
from haotuner.partition.products import Product
from haotuner.partition.window_ilp import WINDOW_S, Candidate, solve
from haotuner.partition.windows import Window, Windows
from haotuner.spec.op import Op

AGAIN_S = 1.0  # for a window's program when some of its prices have become times


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

    @property
    def status(self) -> str:
        """Never "optimal" when it is not."""
        return "optimal" if not self.unproved else f"feasible ({self.unproved} of {self.windows} windows not proved)"


def together(every: Sequence[PartitionReport]) -> PartitionReport:
    """Report for all segments of a model."""
    lists: dict[str, Any] = {
        name: [report for report_ in every for report in getattr(report_, name)] for name in ("regions", "ways")
    }
    counts = [field_.name for field_ in fields(PartitionReport) if field_.name not in lists and field_.name != "longest_s"]
    numbers: dict[str, Any] = {name: sum(getattr(report, name) for report in every) for name in counts}
    return PartitionReport(**numbers, **lists, longest_s=max((report.longest_s for report in every), default=0.0))


class SolvedWindows:
    """Solutions of windows by their prices: those that mean the same and cost the same are solved once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[list[int] | None, float, bool]] = {}
        self.longest_s = 0.0

    def of(
        self, window: Window, limit_s: float, prices: Sequence[float] | None = None, places: Sequence[int] | None = None
    ) -> tuple[list[Candidate] | None, float, bool]:
        """As ``solve``, of the window's candidates or those at some places, by their prices or by others."""
        every = window.candidates if places is None else [window.candidates[position] for position in places]
        costs = tuple(candidate.us for candidate in every) if prices is None else tuple(prices)
        key = (window.meaning, costs, None if places is None else tuple(places))
        if key not in self._known:
            begin = time.monotonic()
            result, bound, proved = solve(every, window.outputs, limit_s, costs)
            self.longest_s = max(self.longest_s, time.monotonic() - begin)
            at = {candidate.key: index for index, candidate in enumerate(every)}
            chosen = None if result is None else [at[kernel.key] for kernel in result]
            self._known[key] = chosen, bound, proved
        chosen, bound, proved = self._known[key]
        return None if chosen is None else [every[position] for position in chosen], bound, proved


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
        self.prices, self.told = prices, PartitionReport()
        self.kinds = {} if kinds is None else kinds
        super().__init__(graph, tuned=tuned, serves=serves)

    def of(self, graph: Graph, prices: Prices, *, tuned: bool = True) -> IlpPartitioner:
        """The plan of another graph, served by the same kernels; windows that mean the same are shared."""
        return IlpPartitioner(graph, prices, tuned=tuned, serves=self.finder.serves, kinds=self.kinds)

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
            window.candidates = [
                replace(candidate, us=prices.price_of(candidate.key, candidate.usual_us)) for candidate in window.candidates
            ]
        self.prices, self.told = prices, PartitionReport()
        for made in ("steps", "solved"):
            self.__dict__.pop(made, None)

    @cached_property
    def _cut(self) -> Windows:
        return Windows(self, self.prices, self.kinds)

    @cached_property
    def windows(self) -> list[Window]:
        """The windows with their candidates, which take most of the time of a plan."""
        _, groups = self.chosen
        result = self._cut.found
        for window in result:
            window.base = {name: group for name, group in groups.items() if name in window.inside}
        return result

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the cheapest plan over all requests."""
        return self.steps_of(self.solved)

    @cached_property
    def solved(self) -> list[list[Candidate] | None]:
        """Of each window its kernels; None: those of the greedy plan, which is the incumbent of each."""
        self.told.candidates = sum(len(window.candidates) for window in self.windows)
        plans = self._priced(self.windows)
        for index, (window, solution) in enumerate(zip(self.windows, plans, strict=True)):
            base_us = sum(self.prices.loops_us(group) for group in window.base.values())
            self.told.windows += 1
            self.told.greedy_us += base_us
            if solution is None or sum(kernel.us for kernel in solution) > base_us:  # candidates were left out
                plans[index] = None
            self.told.regions.append(self._region(window, plans[index]))
            self.told.chosen_us += base_us if plans[index] is None else sum(kernel.us for kernel in solution or ())
        return plans

    def steps_of(self, plans: Sequence[Sequence[Candidate] | None]) -> tuple[Step, ...]:
        """The steps of a plan, which has kernels for each window; None: those of the greedy plan."""
        greedy_stored, required = self.chosen[0], self.required()
        stored = {name for name in required if name in self.made}
        # A reshape of what lies in memory is that memory: no kernel makes it, and whoever reads it finds it there.
        stored |= self._cut.alias.keys()
        groups: dict[str, Graph] = {}
        for window, plan in zip(self.windows, plans, strict=True):
            if plan is None:
                groups |= window.base
                stored |= {name for name in greedy_stored if name in window.inside}
                continue
            for kernel in plan:
                stored.update(kernel.outputs)
                groups[kernel.output] = self.subgraph(*kernel.key)
        return self._ordered(stored, groups.values())

    def _region(self, window: Window, kernels: list[Candidate] | None) -> dict[str, Any]:
        """The window's kernels, for people, beside greedy fusion's; None: the plan has those, too."""
        greedy = [
            {"output": name, "primitives": [node.primitive for node in group.nodes], "us": self.prices.loops_us(group)}
            for name, group in window.base.items()
        ]
        chosen = greedy if kernels is None else [
            {"output": kernel.output, "us": kernel.us,
             "primitives": [self.made[name].primitive for name in self.order if name in kernel.nodes],
             **({"beside": list(kernel.outputs[1:])} if len(kernel.outputs) > 1 else {})} for kernel in kernels
        ]  # fmt: skip
        return {"outputs": window.outputs, "chosen": chosen, "greedy": greedy}

    def _priced(self, windows: Sequence[Window]) -> list[list[Candidate] | None]:
        """The plan of each window. Where prices are measured, solved again until every kernel of the plans has a time.

        Where time for measuring ends first, what has none counts with what is expected of it, no longer with a bound.
        """
        answers = SolvedWindows()
        solved = [answers.of(window, WINDOW_S) for window in windows]
        bounds = [bound for _, bound, _ in solved]
        while True:
            graphs = [self.subgraph(*kernel.key) for kernels, _, _ in solved for kernel in kernels or ()]
            graphs += [group for window in windows for group in window.base.values()]
            more = self.prices.measure(graphs)
            if not more and not self.prices.settle(graphs):
                break
            for index, window in enumerate(windows):
                before = [candidate.us for candidate in window.candidates]
                window.candidates = [
                    replace(candidate, us=self.prices.price_of(candidate.key, candidate.usual_us))
                    for candidate in window.candidates
                ]
                if [candidate.us for candidate in window.candidates] != before:
                    kernels, bound, proved = answers.of(window, AGAIN_S)
                    if kernels is None:  # the plan before, by the prices now
                        chosen = {kernel.key for kernel in solved[index][0] or ()}
                        kernels = [candidate for candidate in window.candidates if candidate.key in chosen] or None
                    solved[index] = kernels, bound, proved
                    bounds[index] = bound if more else bounds[index]
        self.told.measured, self.told.longest_s = self.prices.count, answers.longest_s
        for window, bound, (_, _, proved) in zip(windows, bounds, solved, strict=True):
            self.told.unproved += not (window.whole and proved)
            self.told.bound_us += bound if window.whole else 0.0
        return [kernels for kernels, _, _ in solved]
