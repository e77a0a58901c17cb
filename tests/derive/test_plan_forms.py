"""Derived forms in plans: chosen where they are expected to be shorter, with the numbers of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from haotuner.derive.model import Derivation, Form
from haotuner.derive.plan_forms import DerivedForms, chain, unfit
from haotuner.derive.search import Limits
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.partition.costs import Prices
from haotuner.partition.dim_ranges import shape_constraints
from haotuner.partition.ilp_partition import IlpPartitioner
from tests.derive.test_graphs import H, N, W, convolution, drawn

REQUESTS = [{"n": 1, "h": 24, "w": 32}, {"n": 2, "h": 100, "w": 90}]


def layer(channels: int, features: int, window: int, count: int = 1) -> Graph:
    """Layers of one window each with a bias and a ReLU, as models of super-resolution have them."""
    g = GraphBuilder()
    x = g.input("x", (N, channels, H, W))
    for _ in range(count):
        bias = g.constant(drawn((features, 1, 1)))
        x = g.map("max", g.map("add", convolution(g, x, features, window), bias), 0.0)
    return g.finish(x)


def numbers(graph: Graph, shape: tuple[int, ...]) -> Any:
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    (result,) = interpret(graph, {"x": x}).values()
    return result


@pytest.fixture(scope="module")
def derived() -> tuple[Graph, DerivedForms, IlpPartitioner]:
    """A layer of one feature, the derivation, and the plan that it gives."""
    graph, forms = layer(6, 1, 5), DerivedForms(60.0)
    return graph, forms, forms(IlpPartitioner(graph, Prices(REQUESTS)))


def test_a_layer_of_one_feature_is_served_in_a_derived_form(derived: tuple[Graph, DerivedForms, IlpPartitioner]) -> None:
    _, forms, plan = derived
    assert plan.steps
    (item,) = plan.report.rewrites
    assert item["rule"].startswith("derived: ") and "summation splitting" in item["rule"]
    assert item["us"] < item["without_us"]
    assert str(forms).startswith("derivation: 1 forms chosen")


@pytest.mark.parametrize("shape", [(1, 6, 5, 9), (2, 6, 1, 1), (3, 6, 12, 7), (0, 6, 4, 4), (1, 6, 0, 4)])
def test_the_derived_form_computes_the_layer(derived: tuple[Graph, DerivedForms, IlpPartitioner], shape: Any) -> None:
    graph, _, plan = derived
    expected = numbers(graph, shape)
    np.testing.assert_allclose(numbers(plan.graph, shape), expected, rtol=1e-4, atol=1e-4)
    assert {*map(str, shape_constraints(plan.graph))} <= {*map(str, shape_constraints(graph))}, "no request is refused"


def test_a_layer_whose_lanes_are_full_stays() -> None:
    before = IlpPartitioner(layer(32, 32, 3), Prices(REQUESTS))
    forms = DerivedForms(60.0)
    assert forms(before) is before
    assert "derivation: 0 forms chosen" in str(forms)


def test_without_time_nothing_is_derived() -> None:
    before = IlpPartitioner(layer(6, 1, 5), Prices(REQUESTS))
    forms = DerivedForms(0.0)
    assert forms(before) is before
    assert "1 products left out: the time is over" in str(forms)


def test_equal_layers_are_searched_once() -> None:
    forms = DerivedForms(60.0)
    plan = IlpPartitioner(layer(32, 32, 3, count=3), Prices(REQUESTS))
    assert list(forms.sites(plan)) == []
    assert len(forms.derived) == 1 and forms.count["products"] == 3


def form_of(graph: Graph) -> tuple[str, Form]:
    tensor = next(node.output for node in graph.nodes if node.primitive == "contract")
    return tensor, Derivation(graph, REQUESTS, Limits(explorative=1)).forms_of(tensor).others[0]


def test_a_form_that_does_not_fit_says_why() -> None:
    graph = layer(2, 1, 3)
    tensor, form = form_of(graph)
    assert unfit(graph, tensor, form, set()) == ""
    g = GraphBuilder()
    x = g.input("x", (N, 2, H, W))
    shifted = g.add("slice", g.add("pad", x, before=(0, 0, 1, 0), after=(0, 0, 0, 0), mode="constant", value=0.0),
                    axes=(1, 2), starts=(0, 0), stops=(1, H), steps=(1, 1))  # fmt: skip
    assert unfit(graph, tensor, replace(form, graph=g.finish(shifted)), set()) == "with other numbers"
    assert unfit(graph, tensor, replace(form, graph=g.finish(x)), set()) == "of another shape"
    sums = g.add("slice", x, axes=(1, 2), starts=(0, 0), stops=(1, 7), steps=(1, 1))
    back = g.add("pad", sums, before=(0, 0, 0, 0), after=(0, 0, H - 7, 0), mode="constant", value=0.0)
    assert unfit(graph, tensor, replace(form, graph=g.finish(back)), set()) == "with conditions on requests"


def test_a_chain_counts_rules_that_follow_each_other() -> None:
    _, form = form_of(layer(2, 1, 3))
    steps = (("split", "a"), ("merge", "b"), ("merge", "c"), ("split", "d"))
    assert chain(replace(form, steps=steps)) == "split, merge x 2, split"
