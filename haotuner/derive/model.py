"""Derivation of a model's products: each by itself, and those of one tensor together; equal ones are derived once.

A form counts for what a graph of it is expected to take: products by their rates, greedy fusion's groups by theirs.
Forms whose error bound is above the original's are refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from haotuner.derive.added_zeros import AddedZeros
from haotuner.derive.bounds import Bounds, bounds_of
from haotuner.derive.canonical import structural_hash
from haotuner.derive.expression import Read, Scope, tensors, with_reads
from haotuner.derive.form_prices import PricesOfForms
from haotuner.derive.from_graph import expression_of, part_of
from haotuner.derive.general_extents import concrete, generalised
from haotuner.derive.price import price_us
from haotuner.derive.search import Check, Derived, Limits, SearchResult, search
from haotuner.derive.to_graph import graph_of
from haotuner.derive.together import sharing, together
from haotuner.errors import UsageError
from haotuner.graph.extents import evaluate, text
from haotuner.graph.graph import Graph
from haotuner.partition.greedy_fusion import Greedy

SEARCHING = 0.5  # of a product's time, for its search at most
TRIED = 6  # cheapest states that become graphs
MOST_WEIGHT = 1 << 22  # numbers of a constant that a form is planned with; of larger ones zeros of that shape


@dataclass(frozen=True, slots=True)
class Form:
    """A form of one or more tensors: expressions, the graph, microseconds at each request, and the steps to it.

    ``adds_zeros``: as factors (``derive/added_zeros.py``).
    """

    scopes: tuple[Scope, ...]
    graph: Graph
    us: tuple[float, ...]
    steps: tuple[tuple[str, str], ...] = ()
    adds_zeros: bool = False


@dataclass(frozen=True, slots=True)
class NodeForms:
    """Forms of tensors of a model: the model's own and the cheapest others, with the search's statistics."""

    tensors: tuple[str, ...]
    original: Form
    others: tuple[Form, ...]
    statistics: str

    def best_at(self, request: int) -> Form:
        """The cheapest form for a request."""
        return min((self.original, *self.others), key=lambda form: form.us[request])


@dataclass(frozen=True, slots=True)
class _Ranked:
    """Forms of equal products: microseconds of the original, and states with theirs, the cheapest first.

    Beside each state is whether it adds zeros.
    """

    us: tuple[float, ...]
    states: tuple[tuple[Derived, tuple[float, ...], bool], ...]


@dataclass(slots=True)
class Results:
    """Results by the hash of a product: of searches, of error bounds, and of forms by sizes."""

    searches: dict[int, SearchResult] = field(default_factory=dict)
    ranked: dict[Hashable, _Ranked] = field(default_factory=dict)
    bounds: dict[int, Bounds | None] = field(default_factory=dict)
    zeros: dict[int, AddedZeros] = field(default_factory=dict)


@dataclass(slots=True)
class Derivation:
    """Derivations of a graph's products at some requests; ``limits``: of a product's search and its forms' prices.

    ``SEARCHING`` of the seconds are the search's; prices and bounds have the rest, and what a search leaves.
    """

    graph: Graph
    requests: Sequence[Mapping[str, int]]
    limits: Limits = field(default_factory=Limits)
    results: Results = field(default_factory=Results)
    _expressions: dict[str, Scope] = field(default_factory=dict)

    def products(self) -> list[str]:
        """Tensors that products make, in the graph's order."""
        return [
            node.output
            for node in self.graph.nodes
            if node.primitive == "contract" and self.graph.types[node.output].dtype == "fp32"
        ]

    def expression(self, tensor: str) -> Scope:
        """The expression of one product; errors as of ``expression_of``."""
        if tensor not in self._expressions:
            self._expressions[tensor] = expression_of(self.graph, tensor)
        return self._expressions[tensor]

    def forms_of(self, tensor: str, gain: float = -inf) -> NodeForms:
        """Forms of one product that are expected to save more than a share of its time at a request.

        UsageError where it is no product, or no expression describes it.
        """
        scope = self.expression(tensor)
        own = part_of(self.graph, tensor, [item.name for item in tensors(scope).values() if not item.constant])
        (general,), extents = generalised(scope)
        root, names = neutral(general)
        at = [{name: evaluate(extent, request) for name, extent in extents.items()} for request in self.requests]
        key, until = structural_hash(root), time.monotonic() + self.limits.seconds
        derived_before = key in self.results.searches
        if not derived_before:
            limits = replace(self.limits, seconds=SEARCHING * self.limits.seconds)
            self.results.searches[key] = search(root, at, limits)
        result = self.results.searches[key]

        def form_of(state: Derived, us: tuple[float, ...] = ()) -> Form:
            return self.form((concrete(_named(state.scope, names), extents),), state.steps, us)

        sized = key, tuple(sorted((name, text(extent)) for name, extent in extents.items()))
        if sized not in self.results.ranked:
            own_us = self.planned_us(own)
            self.results.ranked[sized] = _Ranked(own_us, tuple(self._within_bounds(key, at, form_of, until)))
        ranked = self.results.ranked[sized]
        saves = [any(np.array(us) < np.array(ranked.us) * (1 - gain)) for _, us, _ in ranked.states]
        others = tuple(
            replace(form_of(state, us), adds_zeros=adds_zeros)
            for (state, us, adds_zeros), may_pay in zip(ranked.states, saves, strict=True)
            if may_pay
        )
        summary = "derived before, for an equal product" if derived_before else str(result.statistics)
        return NodeForms((tensor,), Form((scope,), own, ranked.us), others, summary)

    def _within_bounds(
        self, key: int, at: Sequence[Mapping[str, int]], form_of: Callable[[Derived], Form], until: float
    ) -> Iterator[tuple[Derived, tuple[float, ...], bool]]:
        """The cheapest states that are graphs, with their times; those with larger error bounds are counted as pruned.

        Beside each is whether it adds zeros. After the moment ``until`` no state becomes a graph, and none is bounded.
        """
        result, original = self.results.searches[key], self.results.searches[key].original.scope
        priced: list[tuple[float, int, Derived, tuple[float, ...]]] = []
        for number, state in enumerate(_cheapest(result, at)):
            if time.monotonic() > until:
                break
            try:
                us = form_of(state).us
            except UsageError:
                continue  # a state that no primitives compute
            priced.append((sum(us), number, state, us))
        if priced and key not in self.results.bounds:
            self.results.bounds[key] = bounds_of(original)
            self.results.zeros[key] = AddedZeros(original)
        bounds, count = self.results.bounds.get(key), 0
        for _, _, state, us in sorted(priced, key=lambda item: item[:2]):
            if time.monotonic() > until or count == TRIED:
                break
            if bounds is None or not bounds.hold(state.scope, at[-1]):
                result.statistics.pruned["beyond the error bound"] += 1
                continue
            yield state, us, self.results.zeros[key].are_in(state.scope)
            count += 1
        if time.monotonic() > until:
            result.statistics.stopped = f"{self.limits.seconds:g} s are over"

    def merged(self, without: Collection[str] = (), may_save: Callable[..., bool] = lambda *_: True) -> Iterator[NodeForms]:
        """Products of one tensor as one product.

        ``without``: products that stay apart here; ``may_save``: of some products, whether one in their place may pay and
        there is time for it.
        """
        scopes = {}
        for tensor in self.products():
            if tensor in without:
                continue
            try:
                scopes[tensor] = self.expression(tensor)
            except UsageError:
                continue
        for members in filter(lambda every: may_save(*every), sharing(scopes, self.graph.guards)):
            parts = [scopes[name] for name in members]
            joined = together(parts)
            if joined is None:
                continue
            general, _ = generalised(*parts)
            shown = together(general)
            try:
                checked = shown is not None and all(Check(*general).holds(part, at) for at, part in enumerate(shown))
                steps = (("expression merging", f"{len(members)} products of one tensor"),)
                form = self.form(joined, steps, may_be_loops=False)
                if checked and shown is not None:
                    form = replace(form, adds_zeros=AddedZeros(*general).are_in(*shown))
                original = self.form(tuple(parts), ())
            except UsageError:
                continue
            yield NodeForms(tuple(members), original, (form,) if checked else (), "checked" if checked else "not shown")

    def form(
        self,
        scopes: tuple[Scope, ...],
        steps: tuple[tuple[str, str], ...],
        us: tuple[float, ...] = (),
        *,
        may_be_loops: bool = True,
    ) -> Form:
        """A form as a graph, with its times, where ``us`` does not say them. UsageError where no primitives compute it."""
        graph = graph_of(scopes, self.constants(scopes), self.requests[-1], may_be_loops=may_be_loops)
        return Form(scopes, graph, us or self.planned_us(graph), steps)

    def planned_us(self, graph: Graph) -> tuple[float, ...]:
        """Expected microseconds of a graph in greedy fusion's plan, at each request."""
        return tuple(PricesOfForms(self.requests).plan_us(Greedy(graph)).tolist())

    def constants(self, scopes: Sequence[Scope]) -> dict[str, Any]:
        """Numbers of the constants that some expressions read."""
        return {name: array for name, array in weights_of(self.graph, scopes).items() if array.size <= MOST_WEIGHT}


def weights_of(graph: Graph, scopes: Sequence[Scope]) -> dict[str, Any]:
    """Constants that some expressions read."""
    read_tensors = {name: tensor for scope in scopes for name, tensor in tensors(scope).items()}
    return {name: graph.constants[name] for name, tensor in read_tensors.items() if tensor.constant}


def are_laid_out(graph: Graph, scopes: Sequence[Scope]) -> bool:
    """True if the graphs of some expressions have their constants; of too large ones they have zeros."""
    return all(array.size <= MOST_WEIGHT for array in weights_of(graph, scopes).values())


def _cheapest(result: SearchResult, requests: Sequence[Mapping[str, int]]) -> list[Derived]:
    """Of each way the state of the least price: rules of one path often lead to one graph. The cheapest at these sizes."""
    ways: dict[tuple[str, ...], Derived] = {}
    for state in result.states:
        if state.steps:
            ways.setdefault(tuple(sorted(rule for rule, _ in state.steps)), state)
    if len(ways) <= 2 * TRIED:
        return list(ways.values())
    return sorted(ways.values(), key=lambda state: price_us(state.scope, requests))[: 2 * TRIED]


def neutral(scope: Scope) -> tuple[Scope, dict[str, str]]:
    """Copy of an expression with tensors ``X0``, ``X1`` …, and the names that these stand for."""
    names = {name: f"X{at}" for at, name in enumerate(tensors(scope))}
    return _named(scope, names), {new: old for old, new in names.items()}


def _named(scope: Scope, names: Mapping[str, str]) -> Scope:
    def renamed_read(read: Read) -> Read:
        source = read.source
        new = _named(source, names) if isinstance(source, Scope) else replace(source, name=names[source.name])
        return Read(new, read.index)

    return replace(scope, body=with_reads(scope.body, renamed_read))
