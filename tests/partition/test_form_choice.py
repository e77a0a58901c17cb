"""Forms of a model: which requests are served in which, by times of both at some requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.rewrites import Site, rewritten
from haotuner.partition.costs import Prices
from haotuner.partition.form_choice import MEASURED, MOST_INTERVALS, WORST, FormPlans, ways_of_forms
from haotuner.partition.ilp_partition import IlpPartitioner, PartitionReport
from tests.derive.test_graphs import H, N, W

REQUESTS = [{"n": 1, "h": size, "w": size} for size in (8, 16, 32, 64, 128)]
RULES = [{"rule": "derived: a", "tensor": "y", "us": 1.0, "without_us": 2.0}]


def doubled() -> Graph:
    g = GraphBuilder()
    return g.finish(g.map("exp", g.map("add", g.input("x", (N, H, W)), 1.0)))


@lru_cache
def plans() -> tuple[IlpPartitioner, IlpPartitioner]:
    """A plan, and one of the same graph in another form."""
    g = GraphBuilder()
    form = g.finish(g.map("sub", g.input("x", (N, H, W)), -1.0))
    plan = IlpPartitioner(doubled(), Prices(REQUESTS))
    tensor = plan.graph.nodes[0].output
    site = Site("derived: a", tensor, frozenset({tensor}), form)
    return plan, plan.of(rewritten(plan.graph, [site]), Prices(REQUESTS))


def forms(own: Sequence[float], other: Sequence[float]) -> FormPlans:
    return FormPlans((plans()[1],), (RULES,), (tuple(own), tuple(other)), basis=MEASURED)


def taken(item: FormPlans) -> tuple[list[int], PartitionReport]:
    """By request the form that serves it, and the report."""
    plan, other = plans()
    ways, report = ways_of_forms(plan, item)
    graphs = [next(way.graph for way in ways if way.serves(request)) for request in REQUESTS]
    return [int(graph is other.graph) for graph in graphs], report


def test_a_form_that_is_faster_for_small_requests_serves_those():
    served, report = taken(forms([10, 20, 30, 40, 50], [5, 10, 40, 60, 90]))
    assert served == [1, 1, 0, 0, 0]
    first, last = report.ways
    assert (first["form"], last["form"], first["times"]) == ("a derived", "the model's own", MEASURED)
    assert first["us"] == 15 < first["one_plan_us"] == 30 and last["us"] == last["one_plan_us"]
    assert first["requests"] == REQUESTS[:2] and report.rewrites == RULES
    assert len(report.regions) == len({tuple(region["outputs"]) for region in report.regions}) > 0


def test_a_form_that_is_slower_everywhere_serves_nothing():
    plan, _ = plans()
    served, report = taken(forms([10, 20, 30, 40, 50], [11, 21, 31, 41, 51]))
    assert served == [0] * 5 and report.rewrites == [] and report.ways == []
    assert all(way.graph is None for way in ways_of_forms(plan, forms([1] * 5, [2] * 5))[0])


def test_a_form_that_is_faster_everywhere_serves_everything():
    plan, other = plans()
    served, report = taken(forms([10, 20, 30, 40, 50], [9, 10, 20, 30, 40]))
    assert served == [1] * 5 and report.rewrites == RULES and report.regions == other.report.regions
    assert ways_of_forms(plan, forms([2] * 5, [1] * 5))[0][-1].steps == other.steps


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=5, max_size=5))
def test_no_request_loses_more_than_the_bound_where_intervals_suffice(pairs):
    item = forms([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    us, (chosen, _) = np.array(item.us), taken(item)
    lost = us[chosen, range(5)] / us.min(axis=0) - 1
    best = us.argmin(axis=0)
    if 1 + int(np.abs(np.diff(best)).sum()) <= MOST_INTERVALS:
        assert lost.max() <= WORST + 1e-9
    assert lost.mean() <= min((row / us.min(axis=0) - 1).mean() for row in us) + 0.05 * MOST_INTERVALS


def test_a_form_must_save_a_share_of_what_it_computes_otherwise():
    item = replace(forms([10] * 5, [8] * 5), region_us=((3.0,) * 5,))
    less = item.less_sure(np.array(item.us), 0.5)
    np.testing.assert_allclose(less, [[10] * 5, [11] * 5])
