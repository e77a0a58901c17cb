"""Specializations: one plan for a range of sizes, or a few by region; which requests are worth plans of their own.

The program that chooses groups minimises the sum over all requests, in which small ones hardly count. Here it is solved for
each request by itself, by the same prices. Then the requests are ordered by a measure of their sizes (a dimension, or the
product of all) and cut into a few intervals. Each has the plan that loses least there against the best at each request.
Whatever is solved for an interval may serve any other; neighbours with the same plan are one. Only kernels that have times
may be in a plan of a region's own: an expectation that is too good would else look like a gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt, prod

import numpy as np
from numpy.typing import NDArray

from haotuner.graph.extents import Extent, dimension, product
from haotuner.graph.graph import Graph
from haotuner.partition.greedy_fusion import Loops, Specialization
from haotuner.partition.ilp_partition import AGAIN_S, IlpPartitioner
from haotuner.partition.window_ilp import Candidate

MOST_WAYS = 3
SAVED = 0.05  # of what groups take, the mean over the requests, that one more plan must save
MOST_GROUPS = 2.0  # different kernels of all plans together, over those of the one plan: what they add to a pack
ROUNDS = 3  # of timing what the plans of single requests want
Plan = tuple[tuple[Candidate, ...], ...]  # of each window its kernels and aliases


@dataclass(frozen=True, slots=True)
class Cut:
    """Requests in intervals of a measure: each the last place of the ordered requests, and its plan."""

    extent: Extent
    ordered: tuple[int, ...]
    ends: tuple[int, ...]
    plans: tuple[int, ...]
    lost: float  # over the best at each request, the mean

    @property
    def members(self) -> list[list[int]]:
        """The requests of each interval."""
        return [list(self.ordered[first:end]) for first, end in zip((0, *self.ends), self.ends, strict=False)]

    def most(self, index: int, requests: Sequence[Mapping[str, int]]) -> int:
        """The end of an interval: between its largest request and the smallest of the next, their geometric mean."""
        values = _values(self.extent, requests)
        low, high = (values[self.ordered[at]] for at in (self.ends[index] - 1, self.ends[index]))
        return max(low, min(high - 1, isqrt(low * high)))

    def worst(self, lost: NDArray[np.float64]) -> float:
        """The largest loss of a request; ``lost``: of each plan at each request."""
        return max(float(lost[plan, own].max()) for plan, own in zip(self.plans, self.members, strict=True))


def ways_of(plan: IlpPartitioner) -> tuple[Specialization, ...]:
    """The ways of a graph, the one for any sizes last. Several only where prices are times and it pays."""
    single = (Specialization(plan.steps),)
    if not plan.prices.are_times or len(plan.prices.requests) < 2 or not plan.windows:
        return single
    chosen = Choice(plan)
    chosen.add_own()
    cut = chosen.best()
    while cut is not None and len(cut.ends) > 1:
        result = chosen.ways(cut)
        if _groups(result) <= MOST_GROUPS * max(1, _groups(single)):
            plan.report.ways = [chosen.summary(cut, index) for index in range(len(cut.ends))]
            return result
        cut = chosen.best(len(cut.ends) - 1)
    return single


class Choice:
    """Plans and what each takes at each request."""

    def __init__(self, plan: IlpPartitioner) -> None:
        self.plan, self.requests, self.answers = plan, plan.prices.requests, plan.solver()
        base = tuple(tuple(solution) for solution in plan.solved)
        self.plans: list[Plan] = [base]
        self.trusted = [{kernel.key for kernel in kernels} for kernels in base]
        self.open = [index for index, window in enumerate(plan.windows) if len(window.candidates) > len(window.outputs)]

    def add_own(self) -> None:
        """Plans for single requests, after what they want was timed; for the intervals of the best cut, too."""
        for _ in range(ROUNDS if self.plan.prices.more() else 0):
            candidates = [candidate for index in range(len(self.requests)) for candidate in self._candidates_of(index)]
            if not self.plan.prices.measure([self.plan.subgraph(*candidate.key) for candidate in candidates]):
                break
        self.plan.report.measured = self.plan.prices.count
        for index in range(len(self.requests)):
            self._add(np.eye(len(self.requests))[index])
        cut = self.best()
        for members in cut.members if cut is not None else ():
            best = self.costs.min(axis=0)
            self._add(np.array([1.0 / best[at] if at in members else 0.0 for at in range(len(self.requests))]))

    def _candidates_of(self, request: int) -> Iterator[Candidate]:
        """Kernels that a plan of this request alone would have, what has no time by its bound."""
        for window_index in self.open:
            window = self.plan.windows[window_index]
            if self.plan.prices.more():
                prices = [self._each(candidate)[request] for candidate in window.candidates]
                every = self.answers.by_other_prices(window, AGAIN_S, prices) or ()
                yield from (candidate for candidate in every if not candidate.alias)

    def _add(self, weights: NDArray[np.float64]) -> None:
        """The plan of the cheapest known kernels at requests of these weights."""
        result = list(self.plans[0])
        for window_index in self.open:
            window = self.plan.windows[window_index]
            known = [at for at, candidate in enumerate(window.candidates) if self._known(window_index, candidate)]
            prices = [float(np.dot(weights, self._each(window.candidates[at]))) for at in known]
            kernels = self.answers.by_other_prices(window, AGAIN_S, prices, known)
            if kernels is not None and np.dot(weights, self._us(kernels)) < np.dot(weights, self._us(result[window_index])):
                result[window_index] = tuple(sorted(kernels, key=lambda item: self.plan.order[item.output]))
        if tuple(result) not in self.plans:
            self.plans.append(tuple(result))

    def _known(self, index: int, candidate: Candidate) -> bool:
        return candidate.alias or self.plan.prices.knows(candidate.key) or candidate.key in self.trusted[index]

    def _each(self, candidate: Candidate) -> Sequence[float]:
        if candidate.alias:
            return candidate.usual_us
        return self.plan.prices.each_of(candidate.key, candidate.usual_us)

    def _us(self, kernels: Sequence[Candidate]) -> NDArray[np.float64]:
        """Time of a window at each request, in us."""
        rows = [self._each(kernel) for kernel in kernels]
        result: NDArray[np.float64] = np.sum(np.array(rows, float).reshape(-1, len(self.requests)), axis=0)
        return result

    @property
    def costs(self) -> NDArray[np.float64]:
        """Microseconds of each plan at each request, never 0."""
        every = [[self._us(kernels) for kernels in plan] for plan in self.plans]
        result: NDArray[np.float64] = np.maximum(np.array(every).sum(axis=1), 1e-9)
        return result

    def best(self, most: int = MOST_WAYS) -> Cut | None:
        """The cut that loses least, one more interval only where that saves enough; None where no size differs."""
        return best_cut(self.plan.graph, self.requests, self.costs, most)

    def ways(self, cut: Cut) -> tuple[Specialization, ...]:
        """The ways of a cut."""
        result = [self.plan.steps if plan == 0 else self.plan.steps_of(self.plans[plan]) for plan in cut.plans]
        return in_intervals(cut, self.requests, [Specialization(steps) for steps in result])

    def summary(self, cut: Cut, index: int) -> dict[str, object]:
        """An interval for people: its requests' groups by its plan and by the one plan, microseconds in all."""
        members, costs = cut.members[index], self.costs
        base = {kernel.key for kernels in self.plans[0] for kernel in kernels}
        own = {kernel.key for kernels in self.plans[cut.plans[index]] for kernel in kernels}
        return {
            "where": where(cut, index, self.requests),
            "requests": [dict(self.requests[at]) for at in members],
            "us": float(costs[cut.plans[index], members].sum()),
            "one_plan_us": float(costs[0, members].sum()),
            "own_kernels": len(own - base),
        }


def best_cut(
    graph: Graph,
    requests: Sequence[Mapping[str, int]],
    costs: NDArray[np.float64],
    most: int = MOST_WAYS,
    worst: float = float("inf"),
) -> Cut | None:
    """The cut that loses least, one more interval only where that saves enough; None where no size differs.

    ``costs``: of each plan at each request; ``worst``: loss of a request that more intervals must avoid where they can.
    """
    lost = costs / costs.min(axis=0) - 1
    every = [cut for extent in _measures(graph, requests) for cut in _cuts(extent, requests, lost, most)]
    return min(every, key=lambda cut: (cut.worst(lost) > worst, cut.lost + SAVED * len(cut.ends)), default=None)


def _cuts(extent: Extent, requests: Sequence[Mapping[str, int]], lost: NDArray[np.float64], most: int) -> Iterator[Cut]:
    """The best cut into so many intervals or fewer: a shortest path over where intervals end."""
    values = _values(extent, requests)
    ordered = tuple(sorted(range(len(values)), key=lambda at: values[at]))
    ends = [at + 1 for at in range(len(ordered)) if at + 1 == len(ordered) or values[ordered[at]] < values[ordered[at + 1]]]
    paths: dict[int, Cut] = {0: Cut(extent, ordered, (), (), 0.0)}
    for _ in range(most):
        longer: dict[int, Cut] = {}
        for first, path in paths.items():
            for end in (end for end in ends if end > first):
                own = lost[:, list(ordered[first:end])].sum(axis=1)
                plan = int(own.argmin())
                if path.plans and path.plans[-1] == plan:
                    continue  # neighbours with one plan are one interval
                whole = path.lost + float(own[plan]) / len(ordered)
                if end not in longer or whole < longer[end].lost:
                    longer[end] = Cut(extent, ordered, (*path.ends, end), (*path.plans, plan), whole)
        if len(ordered) in longer:
            yield longer[len(ordered)]
        paths = longer


def in_intervals(
    cut: Cut, requests: Sequence[Mapping[str, int]], ways: Sequence[Specialization]
) -> tuple[Specialization, ...]:
    """Ways, each for the requests of an interval of a cut; the last serves any sizes."""
    mosts = [cut.most(index, requests) for index in range(len(cut.ends) - 1)]
    return (*(replace(way, extent=cut.extent, most=most) for way, most in zip(ways, mosts, strict=False)), ways[-1])


def where(cut: Cut, index: int, requests: Sequence[Mapping[str, int]]) -> str:
    """Sizes of an interval, in words."""
    return "any sizes" if index + 1 == len(cut.ends) else f"{cut.extent} <= {cut.most(index, requests)}"


def _measures(graph: Graph, requests: Sequence[Mapping[str, int]]) -> list[Extent]:
    """Extents that may tell a region: each dimension that differs between requests, and the product of those."""
    varied = [name for name in graph.dimensions if len({request[name] for request in requests}) > 1]
    every = [dimension(name) for name in varied]
    return [*every, product(every)] if len(every) > 1 else every


def _values(extent: Extent, requests: Sequence[Mapping[str, int]]) -> list[int]:
    names = sorted(str(symbol) for symbol in extent.free_symbols)
    return [prod(request[name] for name in names) for request in requests]


def _groups(ways: Sequence[Specialization]) -> int:
    """Different generated kernels."""
    return len({
        (step.graph.outputs, frozenset(node.output for node in step.graph.nodes))
        for way in ways for step in way.steps if isinstance(step, Loops)
    })  # fmt: skip
