"""Rewrites of primitives: right within their bounds on drawn graphs, and only where their conditions hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from haotuner.graph import decompositions
from haotuner.graph.error_bounds import bounded, wide
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.graph.rewrites import COLUMN, DIVISION, PRODUCT, SPLIT, Site, rewritten, sites

B = dimension("b")
LABELS = ("bmk,kn->bmn", "bmk,bkn->bmn", "bmk,bkn->bnm", "bkm,kn->mbn", "kbm,knm->mnb")


def drawn_graph(seed: int) -> Graph:
    """A softmax, a product of it, and reductions over axes of fixed extents."""
    draw, g = random.Random(seed), GraphBuilder()
    labels = draw.choice(LABELS)
    first_labels, second_labels = labels.partition("->")[0].split(",")
    extents: dict[str, Any] = {"b": B, "m": draw.choice([1, 5]), "k": draw.choice([64, 72, 7]), "n": draw.choice([2, 6])}
    x, v = (g.input(name, [extents[label] for label in word]) for name, word in (("x", first_labels), ("v", second_labels)))
    weights = decompositions.softmax(g, x, first_labels.index("k"))
    product = g.add("contract", weights, v, labels=labels)
    axes = draw.choice([(first_labels.index("k"),), (first_labels.index("k"), first_labels.index("m"))])
    how = draw.choice(["sum", "max", "min"])
    reduced = g.add("reduce", g.map("neg", x), how=how, axes=axes, keepdims=draw.random() < 0.5)
    return g.finish(g.map("neg", product), reduced)


def arrays(graph: Graph, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {name: [2 if extent == B else extent for extent in graph.types[name].shape] for name in graph.inputs}
    return {name: rng.standard_normal(shape).astype(np.float32) * 3 for name, shape in shapes.items()}


@pytest.mark.parametrize("seed", range(0, 60, 20))
def test_a_rewritten_graph_is_within_the_bounds_of_both_forms(seed: int) -> None:
    rules = set[str]()
    for number in range(seed, seed + 20):
        graph = drawn_graph(number)
        inputs = arrays(graph, number)
        exact = interpret(wide(graph), {name: value.astype(np.float64) for name, value in inputs.items()})
        for site in sites(graph):
            rules.add(site.rule)
            other = rewritten(graph, [site])
            assert other.outputs == graph.outputs and other != graph
            assert all(other.types[name] == graph.types[name] for name in graph.outputs)
            values = interpret(other, inputs)
            bounds = bounded(wide(other), {name: value.astype(np.float64) for name, value in inputs.items()})
            for name in graph.outputs:
                off = np.abs(values[name].astype(np.float64) - exact[name])
                assert (off <= bounds[name][1]).all(), (site, off.max())
                assert bounds[name][1].max() < 0.1, "a bound that says nothing"
    assert rules == {DIVISION, COLUMN, PRODUCT, SPLIT}


def test_all_sites_of_a_graph_at_once() -> None:
    graph = drawn_graph(3)
    all_sites = list({site.tensor: site for site in sites(graph)}.values())
    assert len(all_sites) > 2
    inputs = arrays(graph, 3)
    values, before = interpret(rewritten(graph, all_sites), inputs), interpret(graph, inputs)
    for name in graph.outputs:
        np.testing.assert_allclose(values[name], before[name], rtol=1e-4, atol=1e-5)


def _division(g: GraphBuilder, numerator: str, total: str, v: str) -> list[Site]:
    product = g.add("contract", g.map("div", numerator, total), v, labels="mk,kn->mn")
    return [site for site in sites(g.finish(product)) if site.rule == DIVISION]


def test_a_division_moves_only_where_nothing_can_overflow() -> None:
    def powers(g: GraphBuilder, x: str, axes: tuple[int, ...]) -> str:
        return g.map("exp", g.map("sub", x, g.add("reduce", x, how="max", axes=axes, keepdims=True)))

    def total(g: GraphBuilder, e: str, axes: tuple[int, ...]) -> str:
        return g.add("reduce", e, how="sum", axes=axes, keepdims=True)

    def built() -> tuple[GraphBuilder, str, str]:
        g = GraphBuilder()
        return g, g.input("x", (B, 8)), g.input("v", (8, 3))

    g, x, v = built()
    e = powers(g, x, (1,))
    assert len(_division(g, e, total(g, e, (1,)), v)) == 1
    g, x, v = built()
    assert not _division(g, x, total(g, x, (1,)), v), "sums of any sign may be 0"
    g, x, v = built()
    e = g.map("exp", x)
    assert not _division(g, e, total(g, e, (1,)), v), "powers without a maximum overflow"
    g, x, v = built()
    e = powers(g, x, (0,))
    assert not _division(g, e, total(g, e, (0,)), v), "the sum differs from term to term"
    g, x, v = built()
    e = powers(g, x, (1,))
    assert not _division(g, e, total(g, x, (1,)), v), "the sum of something else"


def test_a_division_that_others_read_stays() -> None:
    g = GraphBuilder()
    x, v = g.input("x", (B, 8)), g.input("v", (8, 3))
    weights = decompositions.softmax(g, x)
    product = g.add("contract", weights, v, labels="mk,kn->mn")
    assert not [site for site in sites(g.finish(product, weights)) if site.rule == DIVISION]


def test_terms_of_unknown_number_and_integers_are_left() -> None:
    g = GraphBuilder()
    x, y = g.input("x", (B, 100)), g.input("y", (4, 100), "int64")
    graph = g.finish(*(g.add("reduce", t, how="sum", axes=axes) for t, axes in ((x, (0,)), (y, (1,)))))
    assert [(site.rule, site.tensor) for site in sites(graph)] == [(SPLIT, graph.outputs[1])], "whole numbers are exact"
    g = GraphBuilder()
    prime = g.finish(g.add("reduce", g.input("x", (B, 127)), how="max", axes=(1,)))
    assert not list(sites(prime)), "127 terms are no whole number of parts"


def test_extremes_in_two_keep_nan() -> None:
    g = GraphBuilder()
    graph = g.finish(g.add("reduce", g.input("x", (2, 64)), how="max", axes=(1,)))
    (site,) = sites(graph)
    x = np.ones((2, 64), np.float32)
    x[0, 5] = np.nan
    (value,) = interpret(rewritten(graph, [site]), {"x": x}).values()
    np.testing.assert_array_equal(value, [np.nan, 1.0])
