"""Derivation of a model's products: each by itself, and those of one tensor together; equal ones are derived once.

A form counts for what a graph of it is expected to take: products by their rates, greedy fusion's groups by theirs.
Forms whose error bound is above the original's are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from haotuner.derive.bounds import bounds_of
from haotuner.derive.canonical import structural_hash
from haotuner.derive.expression import Read, Scope, tensors, with_reads
from haotuner.derive.form_prices import PricesOfForms
from haotuner.derive.from_graph import concrete, expression_of, generalised, part_of
from haotuner.derive.search import Check, Derived, Limits, SearchResult, search
from haotuner.derive.to_graph import graph_of
from haotuner.derive.together import sharing, together
from haotuner.errors import UsageError
from haotuner.graph.graph import Graph
from haotuner.partition.greedy_fusion import Greedy

TRIED = 6  # cheapest states that become graphs
MOST_WEIGHT = 1 << 22  # numbers of a constant that a form is planned with; of larger ones zeros of that shape


@dataclass(frozen=True, slots=True)
class Form:
    """A form of one or more tensors: expressions, the graph, microseconds at each request, and the steps to it."""

    scopes: tuple[Scope, ...]
    graph: Graph
    us: tuple[float, ...]
    steps: tuple[tuple[str, str], ...] = ()


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
    """Forms of equal products: microseconds of the original, and states with theirs, the cheapest first."""

    us: tuple[float, ...]
    states: tuple[tuple[Derived, tuple[float, ...]], ...]


@dataclass(slots=True)
class Derivation:
    """Derivations of a graph's products at some requests; ``derived`` and ``ranked``: by hash, for all of them."""

    graph: Graph
    requests: Sequence[Mapping[str, int]]
    limits: Limits = field(default_factory=Limits)
    derived: dict[int, SearchResult] = field(default_factory=dict)
    ranked: dict[Hashable, _Ranked] = field(default_factory=dict)

    def products(self) -> list[str]:
        """Tensors that products make, in the graph's order."""
        return [
            node.output
            for node in self.graph.nodes
            if node.primitive == "contract" and self.graph.types[node.output].dtype == "fp32"
        ]

    def forms_of(self, tensor: str) -> NodeForms:
        """Forms of one product. UsageError where it is none, or no expression describes it."""
        scope = expression_of(self.graph, tensor)
        own = part_of(self.graph, tensor, [item.name for item in tensors(scope).values() if not item.constant])
        general, sizes = generalised(scope)
        neutral, names = _neutral(general)
        key = structural_hash(neutral)
        derived_before = key in self.derived
        if not derived_before:
            at = [{**request, **sizes} for request in self.requests]
            self.derived[key] = search(neutral, at, self.limits)
        result = self.derived[key]

        def form_of(state: Derived, us: tuple[float, ...] = ()) -> Form:
            return self.form((concrete(_named(state.scope, names), sizes),), state.steps, us)

        sized = key, tuple(sorted(sizes.items()))
        if sized not in self.ranked:
            us = tuple(planned_us(own, request) for request in self.requests)
            self.ranked[sized] = _Ranked(us, tuple(self._within_bounds(result, form_of)))
        ranked = self.ranked[sized]
        others = tuple(form_of(state, us) for state, us in ranked.states)
        summary = "derived before, for an equal product" if derived_before else str(result.statistics)
        return NodeForms((tensor,), Form((scope,), own, ranked.us), others, summary)

    def _within_bounds(
        self, result: SearchResult, form_of: Callable[[Derived], Form]
    ) -> Iterator[tuple[Derived, tuple[float, ...]]]:
        """The cheapest states that are graphs, with their times; those with larger error bounds are counted as pruned."""
        priced: list[tuple[float, int, Derived, tuple[float, ...]]] = []
        for number, state in enumerate(self.cheapest(result)):
            try:
                us = form_of(state).us
            except UsageError:
                continue  # a state that no primitives compute
            priced.append((sum(us), number, state, us))
        bounds, count = bounds_of(result.original.scope), 0
        for _, _, state, us in sorted(priced, key=lambda item: item[:2]):
            if bounds is None or not bounds.hold(state.scope):
                result.statistics.pruned["beyond the error bound"] += 1
                continue
            yield state, us
            count += 1
            if count == TRIED:
                return

    def cheapest(self, result: SearchResult) -> Iterator[Derived]:
        """States of the least price, and the least of each way to end: rules of one path often lead to one graph."""
        ways: dict[tuple[str, ...], int] = {}
        for state in result.states:
            way = tuple(sorted(rule for rule, _ in state.steps))
            if not state.steps or ways.get(way, 0) >= 1:
                continue
            ways[way] = ways.get(way, 0) + 1
            yield state
            if len(ways) >= 2 * TRIED:
                return

    def merged(self) -> Iterator[NodeForms]:
        """Products of one tensor as one product."""
        scopes = {}
        for tensor in self.products():
            try:
                scopes[tensor] = expression_of(self.graph, tensor)
            except UsageError:
                continue
        for members in sharing(scopes):
            parts = [scopes[name] for name in members]
            joined = together(parts)
            if joined is None:
                continue
            general = [generalised(scope)[0] for scope in parts]
            shown = together(general)
            checked = shown is not None and all(Check(*general).holds(part, at) for at, part in enumerate(shown))
            try:
                steps = (("expression merging", f"{len(members)} products of one tensor"),)
                form = self.form(joined, steps, may_be_loops=False)
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
        return Form(scopes, graph, us or tuple(planned_us(graph, request) for request in self.requests), steps)

    def constants(self, scopes: Sequence[Scope]) -> dict[str, Any]:
        """Numbers of the constants that some expressions read."""
        read_tensors = {name: tensor for scope in scopes for name, tensor in tensors(scope).items()}
        return {
            name: self.graph.constants[name]
            for name, tensor in read_tensors.items()
            if tensor.constant and self.graph.constants[name].size <= MOST_WEIGHT
        }


def planned_us(graph: Graph, request: Mapping[str, int]) -> float:
    """Expected microseconds of a graph in greedy fusion's plan for a request."""
    return PricesOfForms([request]).plan_us(Greedy(graph))


def _neutral(scope: Scope) -> tuple[Scope, dict[str, str]]:
    """The expression with tensors ``X0``, ``X1`` …, and the names that these stand for."""
    names = {name: f"X{at}" for at, name in enumerate(tensors(scope))}
    return _named(scope, names), {new: old for old, new in names.items()}


def _named(scope: Scope, names: Mapping[str, str]) -> Scope:
    def renamed_read(read: Read) -> Read:
        source = read.source
        new = _named(source, names) if isinstance(source, Scope) else replace(source, name=names[source.name])
        return Read(new, read.index)

    return replace(scope, body=with_reads(scope.body, renamed_read))
