"""Orchestration as Korch does it (ASPLOS 2024, arXiv 2406.09465): which groups become kernels is a binary program.

Candidates are convex sets of primitives with one output. ``u_k``: candidate k is a kernel of the plan. Every tensor that
must lie in memory is some kernel's output, and so is every other tensor that a chosen kernel reads. A primitive may be in
several kernels: it is then computed again. With one output each, kernels cannot wait for each other in a circle, so no order
variables are needed. Windows between tensors that must lie in memory are programs of their own; each is solved to proved
optimality, or its bound is told. Which tensors must lie in memory, and what a product carries along, is decided before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from haotuner.graph.graph import Graph
from haotuner.orchestrate.costs import Prices
from haotuner.orchestrate.greedy import Greedy, Step
from haotuner.orchestrate.products import Product
from haotuner.orchestrate.repeated import again_and_again
from haotuner.orchestrate.twins import meaning
from haotuner.words.op import Op

MOST_CANDIDATES = 600  # of a window; more are left out, and the window is then not called optimal
MOST_NODES = 32  # of a candidate
WINDOW_S, AGAIN_S = 20.0, 1.0  # for a window's program; again, when some of its prices have become times


@dataclass(frozen=True, slots=True)
class Candidate:
    """``output`` and the primitives that one kernel computes, by the tensors they make; ``reads`` of the window.

    ``us``: its price; ``usual_us``: what is expected of it at each request without a time.
    """

    output: str
    nodes: frozenset[str]
    reads: frozenset[str]
    us: float
    usual_us: tuple[float, ...] = ()


@dataclass(slots=True)
class Told:
    """What the solver did: printed, and kept in the pack's report."""

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


def together(every: Sequence[Told]) -> Told:
    """What was done for all segments of a model."""
    lists: dict[str, Any] = {name: [one for told in every for one in getattr(told, name)] for name in ("regions", "ways")}
    counts = [one.name for one in fields(Told) if one.name not in lists and one.name != "longest_s"]
    numbers: dict[str, Any] = {name: sum(getattr(told, name) for told in every) for name in counts}
    return Told(**numbers, **lists, longest_s=max((told.longest_s for told in every), default=0.0))


@dataclass(slots=True)
class _Window:
    nodes: list[str] = field(default_factory=list)
    inside: frozenset[str] = frozenset()
    candidates: list[Candidate] = field(default_factory=list)
    whole: bool = True  # whether no candidate was left out
    outputs: list[str] = field(default_factory=list)
    base: dict[str, Graph] = field(default_factory=dict)
    meaning: Hashable = None  # the same of windows that differ in names alone


class Answers:
    """What the solver said of windows by their prices: those that mean the same and cost the same are solved once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[list[int] | None, float, bool]] = {}
        self.longest_s = 0.0

    def of(
        self, window: _Window, limit_s: float, prices: Sequence[float] | None = None, places: Sequence[int] | None = None
    ) -> tuple[list[Candidate] | None, float, bool]:
        """As ``solve``, of the window's candidates or those at some places, by their prices or by others."""
        every = window.candidates if places is None else [window.candidates[place] for place in places]
        costs = tuple(one.us for one in every) if prices is None else tuple(prices)
        key = (window.meaning, costs, None if places is None else tuple(places))
        if key not in self._known:
            begin = time.monotonic()
            found, bound, proved = solve(every, window.outputs, limit_s, costs)
            self.longest_s = max(self.longest_s, time.monotonic() - begin)
            at = {(one.output, one.nodes): place for place, one in enumerate(every)}
            chosen = None if found is None else [at[one.output, one.nodes] for one in found]
            self._known[key] = chosen, bound, proved
        chosen, bound, proved = self._known[key]
        return None if chosen is None else [every[place] for place in chosen], bound, proved


class Exact(Greedy):
    """The steps of the cheapest plan by the prices given; ``told`` says how it was found."""

    def __init__(
        self,
        graph: Graph,
        prices: Prices,
        *,
        tuned: bool = True,
        serves: Callable[[Op], bool] | None = None,
        kinds: dict[Hashable, _Window] | None = None,
    ) -> None:
        """``kinds``: windows by what they mean, which segments of a model share; the others are as of ``Greedy``."""
        self.prices, self.told = prices, Told()
        self._kinds = {} if kinds is None else kinds
        super().__init__(graph, tuned=tuned, serves=serves)

    def prefers(self, one: Product, parts: Sequence[Product]) -> bool:
        """Whether the one kernel is priced below the products and the loops that they leave."""
        covered = {name for part in parts for name in part.nodes}
        between = [name for name in one.nodes if name not in covered]
        apart = sum(self.prices.product_us(part, self.graph) for part in parts)
        stored = [name for name in between if any(r.output in covered for r in self.finder.readers.get(name, []))]
        apart += sum(self.prices.loops_us(self.subgraph(name, between)) for name in stored)
        return self.prices.product_us(one, self.graph) < apart

    def price(self, prices: Prices) -> None:
        """The same candidates by other prices at the same requests; ``steps`` and ``told`` are then those of a new plan."""
        for window in self.windows:
            window.candidates = [
                replace(one, us=prices.price_of(one.output, one.nodes, one.usual_us)) for one in window.candidates
            ]
        self.prices, self.told = prices, Told()
        for made in ("steps", "solved"):
            self.__dict__.pop(made, None)

    @cached_property
    def windows(self) -> list[_Window]:
        """The windows with their candidates, which take most of the time of a plan."""
        required, (_, groups) = self.required(), self.chosen
        found = self._windows(required)
        for window in found:
            window.meaning = meaning(self.graph, self.made, window.nodes, required)
            self._opened(window, required, groups, self._kinds.setdefault(window.meaning, window))
        return found

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the cheapest plan over all requests."""
        return self.steps_of(self.solved)

    @cached_property
    def solved(self) -> list[list[Candidate] | None]:
        """Of each window its kernels; None: those of the greedy plan, which is the incumbent of each."""
        self.told.candidates = sum(len(window.candidates) for window in self.windows)
        plans = self._priced(self.windows)
        for place, (window, found) in enumerate(zip(self.windows, plans, strict=True)):
            base_us = sum(self.prices.loops_us(group) for group in window.base.values())
            self.told.windows += 1
            self.told.greedy_us += base_us
            if found is None or sum(one.us for one in found) > base_us:  # candidates were left out
                plans[place] = None
            self.told.regions.append(self._region(window, plans[place]))
            self.told.chosen_us += base_us if plans[place] is None else sum(one.us for one in found or ())
        return plans

    def steps_of(self, plans: Sequence[Sequence[Candidate] | None]) -> tuple[Step, ...]:
        """The steps of a plan, which has kernels for each window; None: those of the greedy plan."""
        greedy_stored, required = self.chosen[0], self.required()
        stored = {name for name in required if name in self.made}
        # A reshape of what lies in memory is that memory: no kernel makes it, and whoever reads it finds it there.
        stored |= {name for name in self._live(required) if self._alias(self.made[name], required) is not None}
        groups: dict[str, Graph] = {}
        for window, found in zip(self.windows, plans, strict=True):
            if found is None:
                groups |= window.base
                stored |= {name for name in greedy_stored if name in window.inside}
                continue
            for one in found:
                stored.add(one.output)
                groups[one.output] = self.subgraph(one.output, one.nodes)
        return self._ordered(stored, groups)

    def _region(self, window: _Window, found: list[Candidate] | None) -> dict[str, Any]:
        """The window's kernels, for people, beside greedy fusion's; None: the plan has those, too."""
        greedy = [
            {"output": name, "primitives": [node.primitive for node in group.nodes], "us": self.prices.loops_us(group)}
            for name, group in window.base.items()
        ]
        chosen = greedy if found is None else [
            {"output": one.output, "us": one.us,
             "primitives": [self.made[name].primitive for name in self.order if name in one.nodes]} for one in found
        ]  # fmt: skip
        return {"outputs": window.outputs, "chosen": chosen, "greedy": greedy}

    def _opened(self, window: _Window, required: set[str], groups: Mapping[str, Graph], twin: _Window) -> None:
        """Give the window its candidates, its outputs, and what greedy fusion makes of it. ``twin``: the first such one."""
        window.inside = frozenset(window.nodes)
        if twin is window:
            window.candidates, window.whole = self._candidates(window, required)
        else:
            window.candidates, window.whole = self._renamed(twin, window), twin.whole
        window.outputs = [name for name in window.nodes if name in required]
        window.base = {name: group for name, group in groups.items() if name in window.inside}

    def _renamed(self, twin: _Window, window: _Window) -> list[Candidate]:
        """The candidates of a window that means the same, by this one's names."""
        names = dict(zip(twin.nodes, window.nodes, strict=True))
        found = []
        for one in twin.candidates:
            output, nodes, reads = names[one.output], *(frozenset(map(names.__getitem__, n)) for n in (one.nodes, one.reads))
            us = self.prices.price_of(output, nodes, one.usual_us)
            found.append(Candidate(output, nodes, reads, us, one.usual_us))
        return found

    def _priced(self, windows: Sequence[_Window]) -> list[list[Candidate] | None]:
        """The plan of each window. Where prices are measured, solved again until every kernel of the plans has a time.

        Where time for measuring ends first, what has none counts with what is expected of it, no longer with a bound.
        """
        answers = Answers()
        solved = [answers.of(window, WINDOW_S) for window in windows]
        bounds = [bound for _, bound, _ in solved]
        while True:
            wanted = [self.subgraph(one.output, one.nodes) for found, _, _ in solved for one in found or ()]
            wanted += [group for window in windows for group in window.base.values()]
            more = self.prices.measure(wanted)
            if not more and not self.prices.settle(wanted):
                break
            for place, window in enumerate(windows):
                before = [one.us for one in window.candidates]
                window.candidates = [
                    replace(one, us=self.prices.price_of(one.output, one.nodes, one.usual_us)) for one in window.candidates
                ]
                if [one.us for one in window.candidates] != before:
                    found, bound, proved = answers.of(window, AGAIN_S)
                    if found is None:  # the plan before, by the prices now
                        chosen = {(one.output, one.nodes) for one in solved[place][0] or ()}
                        found = [one for one in window.candidates if (one.output, one.nodes) in chosen] or None
                    solved[place] = found, bound, proved
                    bounds[place] = bound if more else bounds[place]
        self.told.measured, self.told.longest_s = self.prices.count, answers.longest_s
        for window, bound, (_, _, proved) in zip(windows, bounds, solved, strict=True):
            self.told.unproved += not (window.whole and proved)
            self.told.bound_us += bound if window.whole else 0.0
        return [found for found, _, _ in solved]

    def _windows(self, required: set[str]) -> list[_Window]:
        """Primitives that are tied together by tensors that need not lie in memory."""
        live = self._live(required)
        parent = {name: name for name in live}

        def root(name: str) -> str:
            while parent[name] != name:
                parent[name] = parent[parent[name]]
                name = parent[name]
            return name

        for name in live:
            for one in self.made[name].inputs:
                if one in parent and one not in required:
                    parent[root(one)] = root(name)
        found: dict[str, _Window] = {}
        for name in live:
            if self._alias(self.made[name], required) is None:
                found.setdefault(root(name), _Window()).nodes.append(name)
        return list(found.values())

    def _live(self, required: set[str]) -> list[str]:
        """Primitives outside of products that some tensor in memory needs, in the graph's order."""
        needed: set[str] = set()
        for node in reversed(self.graph.nodes):
            if node.output in self.products or node.output in self.inside:
                continue
            if node.output in required or node.output in needed:
                needed.add(node.output)
                needed.update(one for one in node.inputs if one in self.made and one not in required)
        return [name for name in self.order if name in needed and name not in self.products and name not in self.inside]

    def _candidates(self, window: _Window, required: set[str]) -> tuple[list[Candidate], bool]:
        """All convex sets with one output, from the output upwards; whether none was left out."""
        inside, found, whole = set(window.nodes), [], True
        for name in window.nodes:
            seen = {frozenset({name})}
            waiting = [frozenset({name})]
            while waiting:
                nodes = waiting.pop(0)
                graph = self.subgraph(name, nodes)
                if again_and_again(graph) is None:
                    reads = frozenset(one for one in graph.inputs if one in inside and one not in required)
                    usual = self.prices.usual_us(graph)
                    found.append(Candidate(name, nodes, reads, self.prices.price_of(name, nodes, usual), usual))
                    if len(found) >= MOST_CANDIDATES:
                        return found, False
                for more in self._grown_by_one(nodes, inside, required):
                    if more not in seen:
                        if len(more) > MOST_NODES:
                            whole = False
                            continue
                        seen.add(more)
                        waiting.append(more)
        return found, whole

    def _grown_by_one(self, nodes: frozenset[str], inside: set[str], required: set[str]) -> Iterable[frozenset[str]]:
        """The set with one more primitive that it reads, and whatever lies on a way from that one into the set."""
        for name in sorted(nodes, key=self.order.__getitem__):
            for one in self.made[name].inputs:
                if one in inside and one not in nodes and one not in required:
                    yield self._convex(nodes | {one}, inside)

    def _convex(self, nodes: frozenset[str], inside: set[str]) -> frozenset[str]:
        """With all primitives between two of the set."""
        first = min(self.order[name] for name in nodes)
        between = [name for name in inside if name not in nodes and self.order[name] > first]
        above: set[str] = set(nodes)  # what the set's members lead to
        for name in sorted(between, key=self.order.__getitem__):
            if any(one in above for one in self.made[name].inputs):
                above.add(name)
        below: set[str] = set(nodes)  # what leads to the set
        for name in sorted(between, key=self.order.__getitem__, reverse=True):
            if any(reader.output in below for reader in self.finder.readers.get(name, [])):
                below.add(name)
        return frozenset(nodes | (above & below))


def solve(
    candidates: Sequence[Candidate],
    outputs: Sequence[str],
    limit_s: float = WINDOW_S,
    prices: Sequence[float] | None = None,
) -> tuple[list[Candidate] | None, float, bool]:
    """The binary program by HiGHS: the plan, a lower bound on any plan's cost, and whether the plan meets it.

    ``y_t`` is the number of chosen kernels that make tensor t; at most one, one for each output, and one wherever a chosen
    kernel reads t. ``prices``: of the candidates, where they are others than their own.
    """
    makers: dict[str, list[int]] = {}
    for place, one in enumerate(candidates):
        makers.setdefault(one.output, []).append(place)
    if any(name not in makers for name in outputs):
        return None, 0.0, False
    reads = [(place, name) for place, one in enumerate(candidates) for name in sorted(one.reads)]
    rows = lil_matrix((len(makers) + len(reads), len(candidates)))
    low, high = np.zeros(len(makers) + len(reads)), np.ones(len(makers) + len(reads))
    for row, (name, places) in enumerate(makers.items()):
        for place in places:
            rows[row, place] = 1
        low[row] = 1 if name in outputs else 0
    for row, (reader, name) in enumerate(reads, start=len(makers)):
        for place in makers.get(name, ()):
            rows[row, place] = 1
        rows[row, reader] -= 1
    solution = milp(
        [one.us for one in candidates] if prices is None else prices,
        constraints=LinearConstraint(rows.tocsr(), low, high),
        bounds=Bounds(0, 1),
        integrality=np.ones(len(candidates)),
        options={"time_limit": limit_s, "mip_rel_gap": 0.0},
    )
    bound = float(solution.get("mip_dual_bound") or 0.0)
    if solution.x is None:
        return None, bound, False
    chosen = [one for one, taken in zip(candidates, solution.x, strict=True) if taken > 0.5]
    return _needed(chosen, outputs), bound, bool(solution.status == 0)


def _needed(chosen: Sequence[Candidate], outputs: Sequence[str]) -> list[Candidate]:
    """What the outputs need of the chosen ones."""
    by_output: Mapping[str, Candidate] = {one.output: one for one in chosen}
    found: dict[str, Candidate] = {}
    waiting = list(outputs)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = by_output[name]
            waiting += sorted(by_output[name].reads)
    return list(found.values())
