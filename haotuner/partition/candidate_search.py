"""Candidates of one output: all of a small window, those that the program asks for of a large one (column generation).

A set without a price counts with a bound. The relaxation's dual values give each set a reduced cost; sets below 0 are priced
and join. At the end a set may be in a better plan only where its reduced cost is below the gap between plan and relaxation.
All such sets are priced, and the integer program of those proves the plan (Barnhart et al., Operations Research 1998).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from haotuner.partition.convex_sets import ConvexSets, Floors, bits
from haotuner.partition.costs import Kernel
from haotuner.partition.window_ilp import Candidate, Duals, duals, solve

EAGER = 120  # candidates of a window up to which all are priced
SETS_A_CANDIDATE = 2
MOST_NODES = 48  # of a candidate, without those that pass on one element each
MOST_PRICED = 800  # candidates of a window; where more may matter the window is not called optimal
MOST_SETS = 10_000  # of a window that are looked at
FEW_SETS = 8  # of an output that are grown between two relaxations
AT_ONCE = 3  # sets of an output that are priced between two relaxations
ROUNDS = 60  # relaxations at most
UNPROVED_S = 2.0  # for the integer program of candidates of which some were left out
NEAR = 1e-7  # of a plan's price, below which two prices are the same


@dataclass(slots=True)
class _Root:
    """Sets with one output: ``waiting`` by the bound of what they grow to; ``known`` with what is expected or its bound."""

    whole: int
    barred: int = 0
    waiting: list[tuple[float, int]] = field(default_factory=list)
    known: dict[int, float] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)


@dataclass(slots=True)
class CandidateSearch:
    """Candidates of a window.

    ``priced``: of an output and a set the candidate, or None, and a tensor whose reduction the set repeats, or None.
    """

    sets: ConvexSets
    floors: Floors
    priced: Callable[[str, frozenset[str]], tuple[Candidate | None, str | None]]
    candidates: dict[tuple[int, int], Candidate | None] = field(default_factory=dict)
    joined: set[tuple[int, int]] = field(default_factory=set)  # those that the program has
    looked_at: int = 0
    bounds_hold: bool = True
    _roots: dict[int, _Root] = field(default_factory=dict)

    def all_of(self, most: int) -> list[Candidate] | None:
        """All candidates, by output and size; None where there are more than ``most``, or far more sets."""
        result = list[Candidate]()
        if self.sets.more_than(SETS_A_CANDIDATE * most, MOST_NODES):
            return None
        for root in self.sets.outputs():
            barred, first = 0, self.sets.first(root)
            seen, waiting = {first}, [first]
            for mask in waiting:
                if mask & barred:
                    continue
                candidate, more = self._look(root, mask)
                barred |= more
                if candidate is not None:
                    result.append(candidate)
                    if len(result) > most:
                        return None
                for grown in self.sets.grown(mask, barred, MOST_NODES):
                    if grown not in seen:
                        seen.add(grown)
                        waiting.append(grown)
        return result

    def _look(self, root: int, mask: int) -> tuple[Candidate | None, int]:
        """A set's candidate, and primitives that no set with its output may have."""
        if (root, mask) in self.candidates:
            return self.candidates[root, mask], 0
        name = self.sets.names[root]
        candidate, repeated = self.priced(name, self.sets.nodes(mask))
        barred = 0
        if repeated is not None:
            at = self.sets.index[repeated]
            least = self.sets.closed(1 << root | 1 << at)
            barred = 1 << at if least == mask or self.priced(name, self.sets.nodes(least))[0] is None else 0
        self.candidates[root, mask] = candidate
        return candidate, barred

    def open(self) -> list[Candidate]:
        """The least candidate of each output, to begin with."""
        result = list[Candidate]()
        for root in self.sets.outputs():
            own = self._roots[root] = _Root(self.floors.whole(root))
            self._add(root, own, self.sets.first(root))
            candidate, barred = self._look(root, self.sets.first(root))
            own.barred |= barred
            if candidate is not None:
                self.joined.add((root, self.sets.first(root)))
                result.append(candidate)
        return result

    def _add(self, root: int, own: _Root, mask: int) -> None:
        own.seen.add(mask)
        self.looked_at += 1
        own.known[mask] = self.floors.us(root, mask, own.whole, -1)
        least = self.floors.us(root, mask, own.whole, self.sets.required | own.barred)
        heapq.heappush(own.waiting, (least, mask))

    def below(
        self, dual: Duals, limit: float, least_us: Callable[[float], float], most: int = MOST_SETS
    ) -> dict[int, list[tuple[float, int]]]:
        """Sets that the program has not and whose reduced cost may be below ``limit``, by output, least first.

        Of each output at most so many sets more are grown.
        """
        result: dict[int, list[tuple[float, int]]] = {}
        for root, own in self._roots.items():
            name = self.sets.names[root]
            worth = dual.worth.get(name, 0.0)
            left = most
            while left and own.waiting and least_us(own.waiting[0][0]) - worth < limit and self.looked_at < MOST_SETS:
                left -= 1
                _, mask = heapq.heappop(own.waiting)
                if not mask & own.barred:
                    for more in self.sets.grown(mask, own.barred, MOST_NODES):
                        if more not in own.seen:
                            self._add(root, own, more)
            reading = {
                tensor: dual.reading.get((self.sets.names[tensor], name), 0.0) for tensor in bits(self.sets.before[root])
            }
            some = list[tuple[float, int]]()
            for mask, us in own.known.items():
                cost = least_us(us) - worth
                if cost >= limit or (root, mask) in self.joined or mask & own.barred:
                    continue
                cost += sum(reading[tensor] for tensor in bits(self.sets.reads(mask)))
                if cost < limit:
                    some.append((cost, mask))
            if some:
                result[root] = sorted(some)
        return result

    def complete(self, dual: Duals, limit: float, least_us: Callable[[float], float]) -> bool:
        """True if every set of a reduced cost below ``limit`` was looked at."""
        return all(
            not own.waiting or least_us(own.waiting[0][0]) - dual.worth.get(self.sets.names[root], 0.0) >= limit
            for root, own in self._roots.items()
        )

    def price(self, root: int, mask: int) -> Candidate | None:
        """The candidate of a set with this output; None where it is none."""
        own = self._roots[root]
        if mask & own.barred:
            return None
        candidate, barred = self._look(root, mask)
        own.barred |= barred
        if candidate is None:
            del own.known[mask]
            return None
        usual_us = sum(candidate.usual_us) / len(candidate.usual_us)
        if own.known[mask] > usual_us * (1 + NEAR):
            self.bounds_hold = False
        own.known[mask] = usual_us
        return candidate


@dataclass(frozen=True, slots=True)
class Solution:
    """A window's plan, a bound under every plan of it, and whether the plan is proved to be the best."""

    plan: list[Candidate] | None
    bound_us: float
    proved: bool


@dataclass(slots=True)
class ColumnGeneration:
    """The program of a window whose candidates are found on the way; they join ``candidates``, which hold some plan.

    ``least_us``: the least price of a kernel without a time, by what is expected of it. ``reprice``: a candidate at today's
    price.
    """

    searches: Sequence[CandidateSearch]
    candidates: list[Candidate]
    outputs: Sequence[str]
    limit_s: float
    least_us: Callable[[float], float]
    reprice: Callable[[Candidate], Candidate]
    _until: float = 0.0
    _known: set[Kernel] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.limit_s
        self._known = {candidate.key for candidate in self.candidates}

    def relaxed(self) -> tuple[Duals | None, bool]:
        """The relaxation once no candidate would change it, and whether that is so; candidates join meanwhile."""
        dual = None
        for _ in range(ROUNDS):
            dual = duals(self.candidates, self.outputs)
            if dual is None or self._spent():
                return dual, False
            near = -NEAR * max(1.0, abs(dual.us))
            for most in (FEW_SETS, MOST_SETS):  # dual values of few candidates are far off, and ask for many sets
                below = [(part, part.below(dual, near, self.least_us, most)) for part in self.searches]
                if any(roots for _, roots in below):
                    break
            else:
                return dual, all(part.complete(dual, near, self.least_us) for part in self.searches)
            for part, roots in below:
                for root, some in roots.items():
                    self._best(part, root, [mask for _, mask in some[:AT_ONCE]], dual, near)
        return dual, False

    def _best(self, part: CandidateSearch, root: int, masks: Sequence[int], dual: Duals, limit: float) -> None:
        """The first of these sets that the relaxation would take joins."""
        for mask in masks:
            candidate = part.price(root, mask)
            if candidate is None:
                continue
            candidate = self.reprice(candidate)
            if self._reduced(dual, candidate) < limit:
                self._join(part, root, mask, candidate)
                return

    def solution(self) -> Solution:
        """The best plan, proved where no set was left out that may be in a better one."""
        dual, whole = self.relaxed()
        plan, bound_us, proved = solve(
            self.candidates, self.outputs, self._left() if whole else min(UNPROVED_S, self._left())
        )
        if not whole or dual is None or plan is None:
            return Solution(plan, 0.0, proved=False)
        gap = sum(candidate.us for candidate in plan) - dual.us
        if gap > NEAR * max(1.0, abs(dual.us)):
            joined, whole = self._close(dual, gap)
            if joined:
                again, bound_us, proved = solve(self.candidates, self.outputs, self._left())
                plan = again or plan
        holds = all(part.bounds_hold for part in self.searches)
        bound_us = bound_us if whole and proved else dual.us
        return Solution(plan, bound_us if holds else 0.0, proved=whole and proved and holds)

    def _close(self, dual: Duals, gap: float) -> tuple[int, bool]:
        """Price all sets that may be in a better plan; how many joined, and whether none was left out."""
        every = [
            (cost, at, root, mask)
            for at, part in enumerate(self.searches)
            for root, some in part.below(dual, gap, self.least_us).items() for cost, mask in some
        ]  # fmt: skip
        joined = 0
        for _, at, root, mask in sorted(every):
            if self._spent():
                return joined, False
            candidate = self.searches[at].price(root, mask)
            candidate = None if candidate is None else self.reprice(candidate)
            if candidate is not None and self._reduced(dual, candidate) < gap:
                self._join(self.searches[at], root, mask, candidate)
                joined += 1
        return joined, all(part.complete(dual, gap, self.least_us) for part in self.searches)

    def _reduced(self, dual: Duals, candidate: Candidate) -> float:
        return dual.reduced_cost(candidate.output, candidate.reads, candidate.us)

    def _join(self, part: CandidateSearch, root: int, mask: int, candidate: Candidate) -> None:
        part.joined.add((root, mask))
        if candidate.key not in self._known:
            self._known.add(candidate.key)
            self.candidates.append(candidate)

    def _left(self) -> float:
        return max(0.5, self._until - time.monotonic())

    def _spent(self) -> bool:
        return time.monotonic() > self._until or sum(len(part.candidates) for part in self.searches) > MOST_PRICED
