"""One plan for a range of sizes, or a few by region: which requests are worth plans of their own.

The program that chooses groups minimises the sum over all requests, in which small ones hardly count. Here it is solved for
each request by itself, by the same prices. Then the requests are ordered by a measure of their sizes (a dimension, or the
product of all) and cut into a few intervals, each with the plan that loses least there against the best at each request.
Whatever is solved for an interval may serve any other; neighbours with the same plan are one. Only kernels that have times
may be in a plan of a region's own: an expectation that is too good would else look like a gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt, prod

import numpy as np
from numpy.typing import NDArray

from haotuner.graph.extents import Extent, dimension, product
from haotuner.graph.graph import Graph
from haotuner.orchestrate.greedy_fusion import Loops, Specialization
from haotuner.orchestrate.ilp_partition import AGAIN_S, IlpPartitioner, SolvedWindows
from haotuner.orchestrate.window_ilp import Candidate

MOST_WAYS = 3
SAVED = 0.05  # of what groups take, the mean over the requests, that one more plan must save
MOST_GROUPS = 2.0  # different kernels of all plans together, over those of the one plan: what they add to a pack
ROUNDS = 3  # of timing what the plans of single requests want
Plan = tuple[tuple[Candidate, ...] | None, ...]  # of each window its kernels; None: greedy fusion's


@dataclass(frozen=True, slots=True)
class _Cut:
    """Requests in intervals of a measure: each the last place of the ordered requests, and its plan."""

    extent: Extent
    ordered: tuple[int, ...]
    ends: tuple[int, ...]
    plans: tuple[int, ...]
    lost: float  # over the best at each request, the mean


def ways_of(plan: IlpPartitioner) -> tuple[Specialization, ...]:
    """The ways of a graph, the one for any sizes last. Several only where prices are times and it pays."""
    one = (Specialization(plan.steps),)
    if not plan.prices.are_times or len(plan.prices.requests) < 2 or not plan.windows:
        return one
    chosen = Choice(plan)
    chosen.add_own()
    cut = chosen.best()
    while cut is not None and len(cut.ends) > 1:
        found = chosen.ways(cut)
        if _groups(found) <= MOST_GROUPS * max(1, _groups(one)):
            plan.told.ways = [chosen.said(cut, place) for place in range(len(cut.ends))]
            return found
        cut = chosen.best(len(cut.ends) - 1)
    return one


class Choice:
    """Plans and what each takes at each request."""

    def __init__(self, plan: IlpPartitioner) -> None:
        self.plan, self.requests, self.answers = plan, plan.prices.requests, SolvedWindows()
        base = tuple(None if one is None else tuple(one) for one in plan.solved)
        self.plans: list[Plan] = [base]
        self.trusted = [{one.key for one in kernels or ()} for kernels in base]
        self.open = [place for place, window in enumerate(plan.windows) if len(window.candidates) > len(window.outputs)]

    def add_own(self) -> None:
        """Plans for single requests, after what they want was timed; for the intervals of the best cut, too."""
        for _ in range(ROUNDS if self.plan.prices.more() else 0):
            wanted = [one for place in range(len(self.requests)) for one in self._wanted(place)]
            if not self.plan.prices.measure([self.plan.subgraph(*one.key) for one in wanted]):
                break
        self.plan.told.measured = self.plan.prices.count
        for place in range(len(self.requests)):
            self._add(np.eye(len(self.requests))[place])
        cut = self.best()
        for members in _members(cut) if cut is not None else ():
            best = self.costs.min(axis=0)
            self._add(np.array([1.0 / best[at] if at in members else 0.0 for at in range(len(self.requests))]))

    def _wanted(self, request: int) -> Iterator[Candidate]:
        """Kernels that a plan of this request alone would have, what has no time by its bound."""
        for place in self.open:
            window = self.plan.windows[place]
            if self.plan.prices.more():
                prices = [self._each(one)[request] for one in window.candidates]
                yield from self.answers.of(window, AGAIN_S, prices)[0] or ()

    def _add(self, weights: NDArray[np.float64]) -> None:
        """The plan of the cheapest known kernels at requests of these weights."""
        found = list(self.plans[0])
        for place in self.open:
            window = self.plan.windows[place]
            known = [at for at, one in enumerate(window.candidates) if self._known(place, one)]
            prices = [float(np.dot(weights, self._each(window.candidates[at]))) for at in known]
            kernels = self.answers.of(window, AGAIN_S, prices, known)[0]
            if kernels is not None and np.dot(weights, self._us(place, kernels)) < np.dot(
                weights, self._us(place, found[place])
            ):
                found[place] = tuple(sorted(kernels, key=lambda one: self.plan.order[one.output]))
        if tuple(found) not in self.plans:
            self.plans.append(tuple(found))

    def _known(self, place: int, one: Candidate) -> bool:
        return self.plan.prices.knows(one.key) or one.key in self.trusted[place]

    def _each(self, one: Candidate) -> Sequence[float]:
        return self.plan.prices.each_of(one.key, one.usual_us)

    def _us(self, place: int, kernels: Sequence[Candidate] | None) -> NDArray[np.float64]:
        """What a window takes at each request."""
        rows = (
            [self.plan.prices.each_us(group) for group in self.plan.windows[place].base.values()]
            if kernels is None
            else [self._each(one) for one in kernels]
        )
        found: NDArray[np.float64] = np.sum(np.array(rows, float).reshape(-1, len(self.requests)), axis=0)
        return found

    @property
    def costs(self) -> NDArray[np.float64]:
        """Microseconds of each plan at each request, never 0."""
        every = [[self._us(place, kernels) for place, kernels in enumerate(plan)] for plan in self.plans]
        found: NDArray[np.float64] = np.maximum(np.array(every).sum(axis=1), 1e-9)
        return found

    def best(self, most: int = MOST_WAYS) -> _Cut | None:
        """The cut that loses least, one more interval only where that saves enough; None where no size differs."""
        costs = self.costs
        lost = costs / costs.min(axis=0) - 1
        every = [cut for extent in _measures(self.plan.graph, self.requests) for cut in self._cuts(extent, lost, most)]
        return min(every, key=lambda cut: cut.lost + SAVED * len(cut.ends), default=None)

    def _cuts(self, extent: Extent, lost: NDArray[np.float64], most: int) -> Iterator[_Cut]:
        """The best cut into so many intervals or fewer: a shortest path over where intervals end."""
        values = _values(extent, self.requests)
        ordered = tuple(sorted(range(len(values)), key=lambda at: values[at]))
        ends = [
            at + 1 for at in range(len(ordered)) if at + 1 == len(ordered) or values[ordered[at]] < values[ordered[at + 1]]
        ]
        paths: dict[int, _Cut] = {0: _Cut(extent, ordered, (), (), 0.0)}
        for _ in range(most):
            longer: dict[int, _Cut] = {}
            for first, path in paths.items():
                for end in (one for one in ends if one > first):
                    own = lost[:, list(ordered[first:end])].sum(axis=1)
                    plan = int(own.argmin())
                    if path.plans and path.plans[-1] == plan:
                        continue  # neighbours with one plan are one interval
                    whole = path.lost + float(own[plan]) / len(ordered)
                    if end not in longer or whole < longer[end].lost:
                        longer[end] = _Cut(extent, ordered, (*path.ends, end), (*path.plans, plan), whole)
            if len(ordered) in longer:
                yield longer[len(ordered)]
            paths = longer

    def ways(self, cut: _Cut) -> tuple[Specialization, ...]:
        """The ways of a cut."""
        found = [self.plan.steps if one == 0 else self.plan.steps_of(self.plans[one]) for one in cut.plans]
        mosts = [self._most(cut, place) for place in range(len(cut.ends) - 1)]
        return (
            *(Specialization(steps, cut.extent, most) for steps, most in zip(found, mosts, strict=False)),
            Specialization(found[-1]),
        )

    def _most(self, cut: _Cut, place: int) -> int:
        """Between the largest request of an interval and the smallest of the next one, in the geometric mean."""
        values = _values(cut.extent, self.requests)
        low, high = (values[cut.ordered[at]] for at in (cut.ends[place] - 1, cut.ends[place]))
        return max(low, min(high - 1, isqrt(low * high)))

    def said(self, cut: _Cut, place: int) -> dict[str, object]:
        """An interval for people: its requests' groups by its plan and by the one plan, microseconds in all."""
        members, costs = _members(cut)[place], self.costs
        last = place + 1 == len(cut.ends)
        base = {one.key for kernels in self.plans[0] for one in kernels or ()}
        own = {one.key for kernels in self.plans[cut.plans[place]] for one in kernels or ()}
        return {
            "where": "any sizes" if last else f"{cut.extent} <= {self._most(cut, place)}",
            "requests": [dict(self.requests[at]) for at in members],
            "us": float(costs[cut.plans[place], members].sum()),
            "one_plan_us": float(costs[0, members].sum()),
            "own_kernels": len(own - base),
        }


def _members(cut: _Cut) -> list[list[int]]:
    return [list(cut.ordered[first:end]) for first, end in zip((0, *cut.ends), cut.ends, strict=False)]


def _measures(graph: Graph, requests: Sequence[Mapping[str, int]]) -> list[Extent]:
    """What a region may be told by: each dimension that differs between requests, and the product of those."""
    varied = [name for name in graph.dimensions if len({one[name] for one in requests}) > 1]
    every = [dimension(name) for name in varied]
    return [*every, product(every)] if len(every) > 1 else every


def _values(extent: Extent, requests: Sequence[Mapping[str, int]]) -> list[int]:
    names = sorted(str(one) for one in extent.free_symbols)
    return [prod(one[name] for name in names) for one in requests]


def _groups(ways: Sequence[Specialization]) -> int:
    """Different generated kernels."""
    return len({
        (step.graph.outputs, frozenset(node.output for node in step.graph.nodes))
        for way in ways for step in way.steps if isinstance(step, Loops)
    })  # fmt: skip
