"""Search of a cheaper expression: explorative steps with hash pruning, guided steps at once after each.

Every state that is counted in is computed at small extents and compared with the first. States come in the order of their
explorative steps, then of their price; so a budget that ends leaves what few steps can reach.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from haotuner.derive.canonical import structural_hash
from haotuner.derive.expression import Scope, scopes, tensors
from haotuner.derive.general_extents import sizes_needed
from haotuner.derive.interpret import interpret
from haotuner.derive.moves import Move, moves
from haotuner.derive.nests import normal
from haotuner.derive.price import price_us
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, dimensions, evaluate

TOLERANCE = 1e-9  # of double sums in another order, over the largest number
SEED = 0
DOUBLINGS = 8  # of small sizes, for long windows without pads and what lies deep in a model


@dataclass(frozen=True, slots=True)
class Limits:
    """``explorative``: most steps that no table asks for; ``states``; ``seconds``; ``beam``: most states of one depth."""

    explorative: int = 3
    states: int = 2_000
    seconds: float = 60.0
    beam: int = 160


@dataclass(frozen=True, slots=True)
class Derived:
    """An expression, its price in microseconds, and the steps that led to it, as rule and detail."""

    scope: Scope
    price_us: float
    steps: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Statistics:
    """Statistics of a search: states, pruned states by reason, steps by rule, seconds."""

    states: int = 0
    pruned: Counter[str] = field(default_factory=Counter)  # known, not shown, too many, wrong
    rules: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    stopped: str = ""

    def __str__(self) -> str:
        pruned = ", ".join(f"{number} {why}" for why, number in self.pruned.most_common()) or "none"
        return (
            f"states: {self.states} in {self.seconds:.1f} s, pruned: {pruned}{self.stopped and f'; stopped: {self.stopped}'}"
        )


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search: every state by price, the first among them, and statistics."""

    original: Derived
    states: tuple[Derived, ...]
    statistics: Statistics

    @property
    def best(self) -> Derived:
        """The cheapest state."""
        return self.states[0]


def search(root: Scope, requests: Sequence[Mapping[str, int]], limits: Limits | None = None) -> SearchResult:
    """The states that a budget reaches. ``requests``: sizes of all dimensions, for prices."""
    return _Search(normal(root), requests, limits or Limits()).run()


class _Search:
    def __init__(self, root: Scope, requests: Sequence[Mapping[str, int]], limits: Limits) -> None:
        self.root, self.requests, self.limits = root, requests, limits
        self.statistics, self.number = Statistics(), count()
        self.check = Check(root)
        self.hashes: set[int] = set()
        self.states: list[Derived] = []
        self.waiting: list[tuple[int, float, int, Derived]] = []
        self.expanded: Counter[int] = Counter()

    def run(self) -> SearchResult:
        begin = time.monotonic()
        first = Derived(self.root, price_us(self.root, self.requests))
        self.hashes.add(structural_hash(self.root))
        self.add(first, 0)
        while self.waiting:
            depth, _, _, state = heapq.heappop(self.waiting)
            if self.expanded[depth] >= self.limits.beam:
                self.statistics.pruned["beyond the beam"] += 1
                continue
            self.expanded[depth] += 1
            for move in self.moves(state, depth):
                self.follow(state, move, depth)
                if time.monotonic() - begin > self.limits.seconds:
                    break
            if time.monotonic() - begin > self.limits.seconds:
                self.statistics.stopped = f"{self.limits.seconds:g} s are over"
                break
            if self.statistics.states >= self.limits.states:
                self.statistics.stopped = f"{self.limits.states} states"
                break
        self.statistics.seconds = time.monotonic() - begin
        return SearchResult(first, tuple(sorted(self.states, key=lambda item: item.price_us)), self.statistics)

    def moves(self, state: Derived, depth: int) -> Iterator[Move]:
        """Steps of a state. Behind a summation splitting come guided ones alone: splits commute with it and stand before."""
        split = any(rule == "summation splitting" for rule, _ in state.steps)
        return moves(state.scope, depth < self.limits.explorative and not split)

    def follow(self, state: Derived, move: Move, depth: int) -> None:
        if move.result is None:
            self.statistics.pruned["side condition not shown"] += 1
            return
        deeper = depth if move.guided else depth + 1
        if deeper > self.limits.explorative:
            return
        key = structural_hash(move.result)
        if key in self.hashes:
            self.statistics.pruned["seen before"] += 1
            return
        self.hashes.add(key)
        try:
            why = "" if self.check.holds(move.result) else "wrong"
        except UsageError:
            why = "too large to check"
        if why:
            self.statistics.pruned[why] += 1
            return
        self.statistics.rules[move.rule] += 1
        steps = (*state.steps, (move.rule, move.detail))
        self.add(Derived(move.result, price_us(move.result, self.requests), steps), deeper)

    def add(self, state: Derived, depth: int) -> None:
        self.statistics.states += 1
        self.states.append(state)
        heapq.heappush(self.waiting, (depth, state.price_us, next(self.number), state))


def counts_of(scope: Scope) -> list[Extent]:
    """Extents of all tensors and iterators of an expression: where one is 0, little or nothing is computed."""
    loops = (loop.extent for inner in scopes(scope) for loop in (*inner.spatial, *inner.sums))
    return [*loops, *(extent for tensor in tensors(scope).values() for extent in tensor.shape)]


def small_sizes(sizes: Mapping[str, int], extents: Sequence[Extent]) -> dict[str, int]:
    """Sizes of dimensions at which no extent is below 1: those of dimensions in such extents are doubled until then.

    UsageError where they would be too large to compute with: nothing is derived without a check.
    """
    result = dict(sizes)
    for _ in range(DOUBLINGS + 1):
        below = [dimensions(extent) for extent in extents if evaluate(extent, result) < 1]
        if not below:
            return result
        if not all(below):
            raise UsageError("an extent of its tensors or sums is 0: nothing is computed")
        small = frozenset[str]().union(*below)
        result |= {name: 2 * result[name] for name in small}
    raise UsageError(f"an extent of its tensors or sums is below 1 at all small sizes of {', '.join(sorted(small))}")


class Check:
    """Comparison of expressions with the first ones, at small extents and random numbers."""

    def __init__(self, *roots: Scope, seed: int = SEED) -> None:
        draw = np.random.default_rng(seed)
        read_tensors = {name: tensor for root in roots for name, tensor in tensors(root).items()}
        drawn = {name: int(draw.integers(2, 5)) for name in sorted(set[str]().union(*map(sizes_needed, roots)))}
        self.sizes = small_sizes(drawn, [extent for root in roots for extent in counts_of(root)])
        self.arrays = {
            name: draw.normal(size=[evaluate(extent, self.sizes) for extent in tensor.shape])
            for name, tensor in sorted(read_tensors.items())
        }
        self.expected = [interpret(root, self.arrays, self.sizes) for root in roots]

    def holds(self, scope: Scope, at: int = 0) -> bool:
        """True if an expression gives the numbers of the first one, or of another root. UsageError: it is too large."""
        expected, answer = self.expected[at], interpret(scope, self.arrays, self.sizes)
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        return answer.shape == expected.shape and bool(np.abs(answer - expected).max(initial=0.0) <= TOLERANCE * scale)
