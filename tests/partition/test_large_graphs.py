"""What choosing kernels looks at: for a kernel of a large graph only what lies near it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from haotuner.codegen import mixed_radix
from haotuner.codegen.expressions import index
from haotuner.graph.extents import dimension, same
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.partition.convex_sets import ConvexSets
from haotuner.partition.greedy_fusion import Greedy


class Walked(tuple[Any, ...]):
    """Nodes of a graph that count how often all of them are walked."""

    walks = 0

    def __iter__(self) -> Iterator[Any]:
        type(self).walks += 1
        return super().__iter__()

    def __reversed__(self) -> Iterator[Any]:
        type(self).walks += 1
        return iter(self[::-1])


def layers(count: int) -> Graph:
    """Products with an activation between them."""
    g = GraphBuilder()
    x = g.input("x", (dimension("rows"), 16))
    for _ in range(count):
        x = g.map("tanh", g.add("contract", x, g.constant(np.ones((16, 16), np.float32)), labels="mk,kn->mn"))
        x = g.map("sin", g.map("mul", x, 0.5))
    return g.finish(x)


def chain(count: int) -> Graph:
    g = GraphBuilder()
    x = g.input("x", (dimension("rows"), 16))
    for _ in range(count):
        x = g.map("tanh", x)
    return g.finish(x)


def test_groups_of_a_plan_are_found_without_a_walk_over_the_graph_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def walks(count: int) -> int:
        graph = layers(count)
        plan = Greedy(replace(graph, nodes=Walked(graph.nodes)))
        monkeypatch.setattr(Walked, "walks", 0)
        assert len(plan.chosen[1]) >= count
        return Walked.walks

    assert walks(20) == walks(5) > 0


def test_a_set_is_made_convex_by_what_lies_between_its_ends() -> None:
    graph = chain(60)
    names = [node.output for node in graph.nodes]
    sets = ConvexSets(names, {node.output: node for node in graph.nodes}, set(), set())
    assert sets.nodes(sets.closed(sets.mask([names[1], names[4]]))) == frozenset(names[1:5])


def test_axes_of_a_reshape_are_matched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []

    def counted(extent: Any, other: Any) -> bool:
        compared.append(extent)
        return same(extent, other)

    monkeypatch.setattr(mixed_radix, "same", counted)
    before, after = (dimension("large"), 6, 35), (dimension("large"), 2, 3, 5, 7)
    places = tuple(index(0) for _ in after)
    first = mixed_radix.MixedRadix().reshaped(before, after, places)
    many = len(compared)
    assert mixed_radix.MixedRadix().reshaped(before, after, places) == first
    assert len(compared) - many < many // 2, "what is left compares digits, not axes"
