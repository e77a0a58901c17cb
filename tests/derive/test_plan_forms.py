"""Derived forms in plans: chosen where they are expected to be shorter, with the numbers of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from haotuner.derive.model import Derivation, Form
from haotuner.derive.plan_forms import FULL, SEARCHING, DerivedForms, chain, unfit
from haotuner.derive.search import Check, Limits
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.graph.rewrites import MERGED, rewritten
from haotuner.graph.rewrites import sites as rewrite_sites
from haotuner.partition.costs import Prices
from haotuner.partition.dim_ranges import shape_constraints
from haotuner.partition.form_choice import FormPlans
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
    """A layer of one feature, the derivation, and the plan in derived form that it gives."""
    graph, forms = layer(6, 1, 5), DerivedForms(60.0)
    plan = IlpPartitioner(graph, Prices(REQUESTS))
    result = forms(plan, plan, lambda item: item)
    assert len(result.plans) == 1 and not result.settled
    (item,) = result.rules[0]
    assert item["rule"].startswith("derived: ") and "summation splitting" in item["rule"]
    assert item["us"] < item["without_us"]
    assert result.us[1] < result.us[0], "by what is expected at each request"
    return graph, forms, result.plans[0]


def test_a_layer_of_one_feature_has_a_derived_form(derived: tuple[Graph, DerivedForms, IlpPartitioner]) -> None:
    _, forms, plan = derived
    assert plan.steps
    assert str(forms).startswith("derivation: 1 forms may pay")


@pytest.mark.parametrize("shape", [(1, 6, 5, 9), (2, 6, 1, 1), (3, 6, 12, 7), (0, 6, 4, 4), (1, 6, 0, 4)])
def test_the_derived_form_computes_the_layer(derived: tuple[Graph, DerivedForms, IlpPartitioner], shape: Any) -> None:
    graph, _, plan = derived
    expected = numbers(graph, shape)
    np.testing.assert_allclose(numbers(plan.graph, shape), expected, rtol=1e-4, atol=1e-4)
    assert {*map(str, shape_constraints(plan.graph))} <= {*map(str, shape_constraints(graph))}, "no request is refused"


def test_a_layer_whose_lanes_are_full_stays() -> None:
    before = IlpPartitioner(layer(32, 32, 3), Prices(REQUESTS))
    forms = DerivedForms(60.0)
    assert forms(before, before, lambda item: item) == FormPlans()
    assert "derivation: 0 forms may pay" in str(forms)
    assert forms.count[FULL] == 1 and not forms.results.searches, "nothing is searched that no form can improve"


@pytest.mark.parametrize("dtype", ["int32", "int64", "fp64"])
def test_products_of_other_numbers_stay(dtype: str) -> None:
    g = GraphBuilder()
    weight = g.constant(np.ones((1, 16), {"fp64": np.float64}.get(dtype, dtype)))
    graph = g.finish(g.add("contract", g.input("x", (N, 16), dtype), weight, labels="ak,nk->an"))
    plan = IlpPartitioner(graph, Prices([{"n": 2}, {"n": 9}]))
    assert DerivedForms(60.0)(plan, plan, lambda item: item) == FormPlans()


def test_without_time_nothing_is_derived() -> None:
    before = IlpPartitioner(layer(6, 1, 5), Prices(REQUESTS))
    forms = DerivedForms(0.0)
    assert forms(before, before, lambda item: item) == FormPlans()
    assert "1 products left out: the time is over" in str(forms)


CHECK_S, PRICE_S = 1.0, 2.0
PRICE_AND_CHECK_S = CHECK_S + PRICE_S


@dataclass
class Clock:
    """A clock that only checks of states and prices of forms move."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    result, holds, planned_us = Clock(), Check.holds, Derivation.planned_us

    def checked(self: Check, *arguments: Any) -> bool:
        result.now += CHECK_S
        return holds(self, *arguments)

    def priced(self: Derivation, graph: Graph) -> tuple[float, ...]:
        result.now += PRICE_S
        return planned_us(self, graph)

    monkeypatch.setattr(Check, "holds", checked)
    monkeypatch.setattr(Derivation, "planned_us", priced)
    for module in ("search", "model", "plan_forms"):
        monkeypatch.setattr(f"haotuner.derive.{module}.time", result)
    return result


@pytest.mark.parametrize("seconds", [4.0, 20.0])
def test_search_and_prices_of_a_product_share_its_time(seconds: float, clock: Clock) -> None:
    graph = layer(6, 1, 5)
    (tensor,) = (node.output for node in graph.nodes if node.primitive == "contract")
    forms = Derivation(graph, REQUESTS, Limits(explorative=2, seconds=seconds)).forms_of(tensor)
    assert clock.now <= seconds + PRICE_AND_CHECK_S, "and what is begun in time"
    assert "stopped" in forms.statistics


@pytest.mark.parametrize("seconds", [5.0, 30.0, 60.0])
def test_derivation_of_many_products_ends_in_time(seconds: float, clock: Clock) -> None:
    g = GraphBuilder()
    x = g.input("x", (N, 3, H, W))
    graph = g.finish(*(convolution(g, x, features, window) for window in (3, 5, 7) for features in range(1, 5)))
    plan, forms = IlpPartitioner(graph, Prices(REQUESTS)), DerivedForms(seconds)
    list(forms.sites(plan))
    assert clock.now <= SEARCHING * seconds + PRICE_AND_CHECK_S
    assert forms.count["products left out: the time is over"] > 0
    assert forms.count["merges left out: the time is over"] == 1 and not forms.count["merged products"]


def test_of_several_plans_the_first_is_made_whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = IlpPartitioner(layer(6, 1, 5), Prices(REQUESTS))
    forms = DerivedForms(60.0)
    offers = list(forms.offers(plan))
    monkeypatch.setattr("haotuner.derive.plan_forms._sets", lambda _: [(offers[0],), (offers[-1],)])
    monkeypatch.setattr(DerivedForms, "offers", lambda *_: iter(offers))
    assert len(forms(plan, plan, lambda item: item).plans) == 2
    late = DerivedForms(0.0)
    result = late(plan, plan, lambda item: item)
    assert len(result.plans) == len(result.rules) == len(result.region_us) == 1 and len(result.us) == 2
    assert "1 plans left out: the time is over" in str(late)


def test_equal_layers_are_searched_once() -> None:
    forms = DerivedForms(60.0)
    plan = IlpPartitioner(layer(28, 28, 3, count=3), Prices(REQUESTS))
    assert list(forms.sites(plan)) == []
    assert len(forms.results.searches) == 1 and forms.count["products"] == 3


def form_of(graph: Graph) -> tuple[str, Form]:
    tensor = next(node.output for node in graph.nodes if node.primitive == "contract")
    return tensor, Derivation(graph, REQUESTS, Limits(explorative=1)).forms_of(tensor).others[0]


def test_a_form_that_does_not_fit_says_why() -> None:
    graph = layer(2, 1, 3)
    tensor, form = form_of(graph)
    assert unfit(graph, (tensor,), form, set()) == ""
    g = GraphBuilder()
    x = g.input("x", (N, 2, H, W))
    shifted = g.add("slice", g.add("pad", x, before=(0, 0, 1, 0), after=(0, 0, 0, 0), mode="constant", value=0.0),
                    axes=(1, 2), starts=(0, 0), stops=(1, H), steps=(1, 1))  # fmt: skip
    assert unfit(graph, (tensor,), replace(form, graph=g.finish(shifted)), set()) == "with other numbers"
    assert unfit(graph, (tensor,), replace(form, graph=g.finish(x)), set()) == "of another shape"
    sums = g.add("slice", x, axes=(1, 2), starts=(0, 0), stops=(1, 7), steps=(1, 1))
    back = g.add("pad", sums, before=(0, 0, 0, 0), after=(0, 0, H - 7, 0), mode="constant", value=0.0)
    assert unfit(graph, (tensor,), replace(form, graph=g.finish(back)), set()) == "with conditions on requests"


def test_a_form_of_windows_without_pads_is_compared_where_they_have_a_place() -> None:
    g = GraphBuilder()
    image, weight = g.input("x", (N, 2, H, W)), drawn((1, 2, 7, 7))
    windows = g.add("window", image, axes=(2, 3), sizes=(7, 7), strides=(1, 1), dilations=(1, 1))
    product, other = (
        g.add("contract", windows, g.constant(w), labels="bcpquv,fcuv->bfpq") for w in (weight, np.zeros_like(weight))
    )
    graph, wrong = g.finish(product), g.finish(other)
    assert unfit(graph, (product,), Form((), graph, ()), set()) == ""
    assert unfit(graph, (product,), Form((), wrong, ()), set()) == "with other numbers"


def test_forms_of_strided_windows_take_empty_images() -> None:
    g = GraphBuilder()
    graph = g.finish(convolution(g, g.input("x", (N, 6, H, W)), 1, window=3, stride=3))
    (tensor,) = (node.output for node in graph.nodes if node.primitive == "contract")
    forms = Derivation(graph, REQUESTS, Limits(explorative=1)).forms_of(tensor).others
    assert forms and not any(unfit(graph, (tensor,), form, set()) for form in forms)


def test_a_chain_counts_rules_that_follow_each_other() -> None:
    _, form = form_of(layer(2, 1, 3))
    steps = (("split", "a"), ("merge", "b"), ("merge", "c"), ("split", "d"))
    assert chain(replace(form, steps=steps)) == "split, merge x 2, split"


def branches(count: int, window: int, features: int) -> Graph:
    """Convolutions of one image, each with a ReLU."""
    g = GraphBuilder()
    x = g.input("x", (N, 3, H, W))
    return g.finish(*(g.map("max", convolution(g, x, features + at, window), 0.0) for at in range(count)))


def heads(count: int, width: int) -> Graph:
    """Dense layers of one input, as an attention has them for its queries, keys and values."""
    g = GraphBuilder()
    x, ends = g.input("x", (N, H, 64)), []
    for at in range(count):
        y = g.add("contract", x, g.constant(drawn((width * (1 + at), 64))), labels="abk,nk->abn")
        ends.append(g.map("add", y, g.constant(drawn((width * (1 + at),)))))
    return g.finish(*ends)


@pytest.mark.parametrize("graph", [branches(2, 3, 4), branches(2, 1, 4)], ids=["3x3", "1x1"])
def test_products_of_one_tensor_are_a_site_of_several_tensors(graph: Graph) -> None:
    plan = IlpPartitioner(graph, Prices([dict.fromkeys(graph.dimensions, size) for size in (20, 40)]))
    forms = DerivedForms(60.0)
    sites = [site for site in forms.sites(plan) if site.beside]
    assert [site.rule for site in sites] == ["derived: expression merging"]
    assert len(sites[0].tensors) == len(graph.outputs)
    merged = rewritten(plan.graph, sites)
    assert sum(node.primitive == "contract" for node in merged.nodes) == 1
    assert merged.nodes[-1].primitive == "slice", "biases and functions stand before the cut, so a kernel takes them along"
    for size in (1, 2, 5):
        x = np.random.default_rng(1).normal(size=[size if not isinstance(e, int) else e for e in graph.types["x"].shape])
        inputs = {"x": x.astype(np.float32)}
        for expected, answer in zip(interpret(graph, inputs).values(), interpret(merged, inputs).values(), strict=True):
            np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-4)


def test_products_with_weights_too_large_to_lay_out_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their forms have zeros for weights, and of large results of fixed sizes no numbers are compared."""
    monkeypatch.setattr("haotuner.derive.model.MOST_WEIGHT", 8)
    monkeypatch.setattr("haotuner.derive.plan_forms.MOST_COMPARED", 1)
    forms = DerivedForms(60.0)
    assert not list(forms.sites(IlpPartitioner(branches(2, 3, 4), Prices(REQUESTS))))
    assert forms.count["merged products with weights too large to lay out"] == 1


def test_products_of_two_branches_stay_apart() -> None:
    graph = branches(2, 3, 4)
    first, other = Derivation(graph, REQUESTS).products()
    apart = replace(graph, guards={first: (("branch", 1),), other: (("branch", 0),)})
    assert list(Derivation(graph, REQUESTS).merged()) and not list(Derivation(apart, REQUESTS).merged())


@pytest.mark.parametrize("graph", [heads(3, 16), heads(2, 40), branches(2, 3, 4), branches(2, 1, 4)])
def test_products_of_one_tensor_are_merged_by_one_rule(graph: Graph) -> None:
    """Dense layers are merged by a rewrite of the plan, all other products by derivation; none by both."""
    plan = IlpPartitioner(graph, Prices([dict.fromkeys(graph.dimensions, size) for size in (20, 40)]))
    by_rewrite = [site for site in rewrite_sites(plan.graph) if site.rule == MERGED]
    by_derivation = [site for site in DerivedForms(60.0).sites(plan) if site.beside]
    assert len(by_rewrite) + len(by_derivation) == 1
    assert bool(by_rewrite) == (graph.types["x"].rank == 3), "images have four axes"


def test_merged_products_stand_before_the_first_of_them() -> None:
    """A product of what another one makes cannot be merged with it, whatever both read."""
    g = GraphBuilder()
    x, ends = g.input("x", (N, 16, H)), []
    for _ in range(2):
        ends.append(g.map("exp", g.add("contract", x, g.constant(drawn((16, 16))), labels="akh,nk->anh")))
    later = g.map("add", *ends)
    graph = g.finish(g.add("contract", later, g.constant(drawn((4, 16))), labels="akh,nk->anh"), ends[0])
    plan = IlpPartitioner(graph, Prices([{"n": 2, "h": 4}, {"n": 9, "h": 5}]))
    (site,) = (site for site in DerivedForms(60.0).sites(plan) if site.beside)
    merged = rewritten(plan.graph, [site])
    inputs = {"x": np.random.default_rng(1).normal(size=(3, 16, 5)).astype(np.float32)}
    for expected, answer in zip(interpret(graph, inputs).values(), interpret(merged, inputs).values(), strict=True):
        np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-4)
