"""Rewrites in plans: chosen where their kernels are cheaper, and as cheap as the best of all forms and partitions."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest

from haotuner.graph import decompositions
from haotuner.graph.extents import dimension, evaluate
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.graph.rewrites import COLUMN, DIVISION, MERGED, PRODUCT, SPLIT, Site, rewritten, sites
from haotuner.partition.costs import CORE, GPU, Prices
from haotuner.partition.greedy_fusion import Loops
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.loop_counts import REDUCTION
from haotuner.partition.products import Product
from haotuner.partition.rewrites import MOST_SITES, Rewrites, with_rewrites
from tests.partition.test_program_brute_force import Drawn, least_us
from tests.runtime.test_parts_of_rows import separate

B = dimension("batch")
REQUESTS = [{"batch": 3}, {"batch": 40}]
DEAR_SUMS = replace(
    CORE, loops_ns={**CORE.loops_ns, REDUCTION: 2e3}
)  # a device on which a reduction takes as long as 1e4 terms


def softmax_product(terms: int, columns: int, after: bool = True) -> Graph:
    """A product of a softmax of ``terms`` by a matrix of so many columns."""
    g = GraphBuilder()
    x, v = g.input("x", (B, 64, terms)), g.input("v", (B, terms, columns))
    product = g.add("contract", decompositions.softmax(g, x), v, labels="bmk,bkn->bmn")
    return g.finish(g.map("tanh", product) if after else product)


def rules(plan: IlpPartitioner) -> list[str]:
    assert plan.steps
    return [item["rule"] for item in plan.report.rewrites]


@pytest.mark.parametrize("after", [True, False])
def test_a_division_moves_behind_a_product_that_is_smaller(after: bool) -> None:
    graph = softmax_product(1024, 8, after)
    before = IlpPartitioner(graph, Prices(REQUESTS, DEAR_SUMS))
    plan = with_rewrites(before)
    assert rules(plan) == [COLUMN]
    (item,) = plan.report.rewrites
    assert item["us"] < item["without_us"]
    assert sum(isinstance(step, Product) for step in plan.steps) == 1
    last = plan.steps[-1]
    assert isinstance(last, Loops) and any(node.attributes.get("function") == "div" for node in last.graph.nodes)
    wider = with_rewrites(IlpPartitioner(softmax_product(16, 1000, after), Prices(REQUESTS, DEAR_SUMS)))
    assert not {DIVISION, COLUMN} & {*rules(wider)}, "the product is larger than what was divided"


def test_what_is_chosen_computes_the_graph() -> None:
    graph = softmax_product(256, 8)
    plan = with_rewrites(IlpPartitioner(graph, Prices(REQUESTS, DEAR_SUMS)))
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((2, 64, 256)).astype(np.float32),
              "v": rng.standard_normal((2, 256, 8)).astype(np.float32)}  # fmt: skip
    (value,), (before,) = (tuple(interpret(item, inputs).values()) for item in (plan.graph, graph))
    assert rules(plan) == [COLUMN]
    np.testing.assert_allclose(value, before, rtol=1e-5, atol=1e-6)


class SumsFree(Prices):
    """Kernels of one primitive, or of a sum with what it is of, take 1 us, all others 10."""

    def usual_us(self, graph: Graph) -> tuple[float, ...]:
        names = [node.attributes.get("function", node.primitive) for node in graph.nodes]
        return (1.0 if "div" not in names or names[-1] != "div" or len(names) == 1 else 10.0,) * len(self.requests)


def test_a_division_alone_moves_where_a_column_more_does_not_pay() -> None:
    plan = IlpPartitioner(softmax_product(64, 8), Prices(REQUESTS), tuned=False)
    forms = Rewrites(plan, SumsFree(REQUESTS))
    chosen = forms.cheapest()
    assert {site.rule for site in chosen} <= {DIVISION, COLUMN} and chosen
    least = min(forms.us(rewritten(plan.graph, [site])) for site in sites(plan.graph) if site.rule in (DIVISION, COLUMN))
    assert forms.us(rewritten(plan.graph, chosen)) == least < forms.us(plan.graph)


def _sum(terms: int) -> Graph:
    g = GraphBuilder()
    return g.finish(g.map("exp", g.add("reduce", g.input("x", (B, terms)), how="sum", axes=(1,), keepdims=True)))


class Preferring(Prices):
    """Kernels that hold one primitive with an attribute are dear, all others cheap."""

    def __init__(self, dear: str) -> None:
        super().__init__(REQUESTS, replace(CORE, step_us=0.0, bytes_moved=1e30, bytes_far=1e30, simple=1e30, function=1e30))
        self.dear = dear

    def usual_us(self, graph: Graph) -> tuple[float, ...]:
        long = (node for node in graph.nodes if node.primitive == "reduce" and graph.types[node.inputs[0]].shape[-1] == 256)
        dear = {"reduce": any(node.primitive == "reduce" for node in graph.nodes), "long": any(long)}[self.dear]
        return (100.0 if dear else 1.0,) * len(self.requests)


def test_a_sum_becomes_a_product_where_that_is_cheaper() -> None:
    plan = IlpPartitioner(_sum(256), Prices(REQUESTS), tuned=False)
    assert [site.rule for site in Rewrites(plan, Preferring("reduce")).cheapest()] == [PRODUCT]
    assert [site.rule for site in Rewrites(plan, Preferring("long")).cheapest()] == [PRODUCT], "one kernel, not two"


def test_a_reduction_is_cut_in_two_where_that_is_cheaper() -> None:
    g = GraphBuilder()
    longest = g.finish(g.map("exp", g.add("reduce", g.input("x", (B, 256)), how="max", axes=(1,), keepdims=True)))
    plan = IlpPartitioner(longest, Prices(REQUESTS), tuned=False)
    assert [site.rule for site in Rewrites(plan, Preferring("long")).cheapest()] == [SPLIT]
    assert Rewrites(plan, Preferring("reduce")).cheapest() == []


def drawn_graph(seed: int) -> Graph:
    """A few maps, sums of 64 terms, and broadcasts of them."""
    draw, g = random.Random(seed), GraphBuilder()
    full, rows = [g.input("x", (B, 64)), g.input("y", (B, 64))], list[str]()
    for _ in range(draw.randint(3, 6)):
        kind = draw.choice(["map", "reduce", "broadcast"])
        if kind == "reduce" and len(rows) < 2:
            rows.append(g.add("reduce", draw.choice(full[-2:]), how=draw.choice(["sum", "max"]), axes=(1,), keepdims=True))
        elif kind == "broadcast" and rows:
            full.append(g.map("sub", draw.choice(full), rows[-1]))
        else:
            full.append(g.map(draw.choice(["exp", "neg"]), draw.choice(full[-2:])))
    outputs = dict.fromkeys([full[-1], *rows[-1:]])
    return g.finish(*(name for name in outputs if name not in ("x", "y")))


def test_the_cheapest_form_equals_brute_force_over_forms_and_partitions() -> None:
    rewritten_plans = 0
    for number in range(40):
        graph = drawn_graph(number)
        if not graph.nodes:
            continue
        prices = Drawn(number)
        plan = IlpPartitioner(graph, prices, tuned=False)
        forms = Rewrites(plan, prices)
        offered = list(forms.offered())
        assert len(offered) <= MOST_SITES
        chosen = forms.cheapest()
        best = min(
            least_us(IlpPartitioner(rewritten(graph, subset), prices, tuned=False))
            for count in range(len(offered) + 1)
            for subset in combinations(offered, count)
            if len({site.tensor for site in subset}) == count
        )
        chosen_plan = IlpPartitioner(rewritten(graph, chosen), prices, tuned=False)
        assert chosen_plan.steps and chosen_plan.report.chosen_us == pytest.approx(best, rel=1e-6)
        rewritten_plans += bool(chosen)
    assert rewritten_plans > 3


def test_of_many_sites_those_that_pay_are_taken_one_by_one() -> None:
    g = GraphBuilder()
    x = g.input("x", (B, 256))
    parts = [g.add("reduce", g.map("mul", x, float(index + 2)), how="max", axes=(1,), keepdims=True) for index in range(6)]
    total = parts[0]
    for part in parts[1:]:
        total = g.map("add", total, part)
    plan = IlpPartitioner(g.finish(total), Prices(REQUESTS), tuned=False)
    chosen: list[Site] = Rewrites(plan, Preferring("long")).cheapest()
    assert len(list(sites(plan.graph))) == 6 > MOST_SITES
    assert {site.rule for site in chosen} <= {SPLIT}
    assert list(chain.from_iterable(site.nodes for site in chosen)) == [site.tensor for site in chosen]


def test_layers_of_one_input_are_one_where_calls_are_a_share_of_what_they_take() -> None:
    graph = separate()
    few, many = ([{"batch": size, "seq": size, "past": 16}] for size in (1, 96))
    plan = with_rewrites(IlpPartitioner(graph, Prices(few)))
    assert rules(plan) == [MERGED]
    (item,) = plan.report.rewrites
    assert item["us"] < item["without_us"]
    merged = [step for step in plan.steps if isinstance(step, Product) and step.kind == "dense"]
    assert len(merged) == 1
    loops = [step for step in plan.steps if isinstance(step, Loops)]
    assert len(loops) <= sum(isinstance(step, Loops) for step in IlpPartitioner(graph, Prices(few)).steps), "no copies"
    assert MERGED not in rules(with_rewrites(IlpPartitioner(graph, Prices(many))))
    on_device = IlpPartitioner(graph, Prices(few, GPU), serves=lambda op: True)
    assert MERGED not in rules(with_rewrites(on_device)), "kernels of devices read no part of a row"


def test_merged_layers_compute_the_graph() -> None:
    graph, draw = separate(), np.random.default_rng(3)
    plan = with_rewrites(IlpPartitioner(graph, Prices([{"batch": 1, "seq": 1, "past": 16}])))
    assert plan.graph is not graph
    sizes = {"batch": 2, "seq": 3, "past": 5}
    inputs = {
        name: draw.standard_normal([evaluate(extent, sizes) for extent in graph.types[name].shape]).astype(np.float32)
        for name in graph.inputs
    }
    expected, answer = interpret(graph, inputs), interpret(plan.graph, inputs)
    for name in graph.outputs:
        np.testing.assert_allclose(answer[name], expected[name], rtol=1e-5, atol=1e-6)
