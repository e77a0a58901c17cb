"""Plans by times: whatever kernels take and whenever time ends, a plan takes no longer than the plans it was chosen over."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haotuner.graph.graph import Graph
from haotuner.partition import profiled_costs
from haotuner.partition.costs import Prices, kernel_of
from haotuner.partition.greedy_fusion import Greedy, Loops, Step
from haotuner.partition.group_times import NamedGroup
from haotuner.partition.ilp_partition import ERROR, IlpPartitioner
from haotuner.partition.profiled_costs import BOUND, ProfiledPrices
from tests.partition.test_program_brute_force import REQUESTS, drawn_graph

SEEDS = st.integers(0, 10_000)
ENDLESS = 10_000


class DrawnTimes(ProfiledPrices):
    """Times by chance, from a hundredth of what is expected to a hundred times that; time is over behind some of them."""

    def __init__(self, seed: int, groups: int, factor: float = 0.0) -> None:
        """``groups``: number of those that get times. ``factor``: of all over what is expected; 0: by chance."""
        super().__init__(REQUESTS, 1e6)
        self.seed, self.left, self.factor = seed, groups, factor
        self.times: dict[str, list[float]] = {}  # equal groups may be expected to take different times
        if not groups:
            self._until = 0.0

    def actual_us(self, graph: Graph) -> float:
        """Mean time of a group over the requests, with its step."""
        return float(np.mean([self.rates.step_us + us for us in self._drawn(NamedGroup(graph))]))

    def _drawn(self, group: NamedGroup) -> list[float]:
        factor = self.factor or 10 ** random.Random(f"{self.seed} {group.name}").uniform(-2, 2)
        return self.times.setdefault(group.name, [factor * us for us in Prices.each_us(self, group.graph)])

    def _answers(self, groups: Sequence[NamedGroup], tasks: Sequence[Mapping[str, Any]]) -> list[str]:
        timed = groups[: self.left]
        self.left -= len(timed)
        if not self.left:
            self._until = 0.0
        return [
            json.dumps([task["group"], task["request"], self._drawn(groups[task["group"]])[task["request"]]])
            for task in tasks if task["group"] < len(timed)
        ]  # fmt: skip


def actual_us(prices: DrawnTimes, steps: Sequence[Step]) -> float:
    return sum(prices.actual_us(step.graph) for step in steps if isinstance(step, Loops))


def different(*plans: Sequence[Step]) -> int:
    """Number of different groups of some plans."""
    return len({NamedGroup(step.graph).name for steps in plans for step in steps if isinstance(step, Loops)})


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(0, 40))
def test_a_plan_takes_no_longer_than_greedy_fusions_wherever_that_was_timed(seed, groups):
    graph, prices = drawn_graph(seed), DrawnTimes(seed, groups)
    plan, greedy = IlpPartitioner(graph, prices), Greedy(graph)
    assert plan.steps
    for window in plan.windows:
        chosen = [kernel for kernels in plan.solved for kernel in kernels if kernel.nodes <= window.inside]
        of_greedy = [kernel for kernel in window.greedy_plan if not kernel.alias]
        if all(prices.knows(kernel.key) for kernel in of_greedy):
            own = [kernel for kernel in chosen if not kernel.alias]
            assert all(prices.knows(kernel.key) for kernel in own), "a kernel without a time beside a plan of times"
            us = [sum(prices.actual_us(plan.subgraph(*kernel.key)) for kernel in some) for some in (own, of_greedy)]
            assert us[0] <= us[1] * (1 + 1e-9)
    if groups >= different(greedy.steps):
        assert actual_us(prices, plan.steps) <= actual_us(prices, greedy.steps) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(0, 20))
def test_a_plan_takes_no_longer_than_the_predicted_one_once_both_plans_were_timed(seed, more):
    graph = drawn_graph(seed)
    plans = [Greedy(graph).steps, IlpPartitioner(graph, Prices(REQUESTS)).steps]
    prices = DrawnTimes(seed, different(*plans) + more)
    us = actual_us(prices, IlpPartitioner(graph, prices).steps)
    assert us <= min(actual_us(prices, steps) for steps in plans) * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_with_time_enough_every_kernel_has_a_time_and_none_that_counts_is_below_its_bound(seed):
    graph, prices = drawn_graph(seed), DrawnTimes(seed, ENDLESS)
    plan = IlpPartitioner(graph, prices)
    groups = [step.graph for step in plan.steps if isinstance(step, Loops)]
    assert all(prices.knows(kernel_of(group)) for group in groups) and prices.by_bounds
    assert plan.report.bound_us <= plan.report.chosen_us * (1 + 1e-6) <= plan.report.greedy_us * (1 + 1e-6) ** 2
    assert plan.report.chosen_us == pytest.approx(actual_us(prices, plan.steps))


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_without_any_time_the_plan_is_the_predicted_one(seed):
    graph = drawn_graph(seed)
    plan, predicted = IlpPartitioner(graph, DrawnTimes(seed, 0)), IlpPartitioner(graph, Prices(REQUESTS))
    kernels = [
        [(step.graph.outputs, len(step.graph.nodes)) for step in steps if isinstance(step, Loops)]
        for steps in (plan.steps, predicted.steps)
    ]
    assert kernels[0] == kernels[1] and plan.report.measured == 0
    assert plan.report.chosen_us == pytest.approx(predicted.report.chosen_us)


def test_expectations_are_corrected_by_kernels_that_share_primitives_and_never_downwards():
    graph = drawn_graph(3)
    greedy = [step.graph for step in Greedy(graph).steps if isinstance(step, Loops) and len(step.graph.nodes) > 1]
    timed, usual = greedy[0], [1.0, 2.0]
    key = kernel_of(timed)
    neighbour = (key[0], key[1] - {sorted(key[1] - set(key[0]))[0]})
    stranger = (("other",), frozenset({"other"}))
    for factor in (20.0, 0.05):
        prices = DrawnTimes(0, ENDLESS, factor)
        assert list(prices.each_of(neighbour, usual)) == usual, "nothing is timed"
        prices.measure([timed])
        share = len(neighbour[1]) / len(key[1])
        mean_error = np.mean(np.log(np.array(prices.each_of(key, ())) / np.array(Prices.each_us(prices, timed))))
        corrected = max(1.0, float(np.exp(share * mean_error / (share + profiled_costs.PRIOR))))
        assert list(prices.each_of(neighbour, usual)) == pytest.approx([corrected * us for us in usual])
        assert (corrected > 1.5) == (factor > 1) and list(prices.each_of(stranger, usual)) == usual
        prices.by_bounds = True
        assert list(prices.each_of(neighbour, usual)) == pytest.approx([BOUND * us for us in usual])


def test_beside_times_a_kernel_without_one_must_save_more_than_expectations_are_off_by():
    """Time ends within greedy fusion's kernels: its other ones count as expected, those of other plans as more."""
    some = 0
    for seed in range(40):
        graph, prices = drawn_graph(seed), DrawnTimes(seed, 1)
        plan = IlpPartitioner(graph, prices)
        assert plan.steps
        for window, kernels in zip(plan.windows, plan.solved, strict=True):
            known = [prices.knows(item.key) for item in window.greedy_plan if not item.alias]
            if any(known) and not all(known):
                some += 1
                by_key = {
                    item.key: item.us * (1.0 if item.alias or prices.knows(item.key) or item.key in window.greedy else ERROR)
                    for item in window.candidates
                }
                own, greedy = (sum(by_key[item.key] for item in plan) for plan in (kernels, window.greedy_plan))
                assert own <= greedy * (1 + 1e-9)
    assert some >= 5


def test_what_time_ended_before_is_timed_in_the_next_turn():
    """A group without an answer is to blame only where the process ended by itself, and then the first of them alone."""
    graph = drawn_graph(4)
    groups = [step.graph for step in Greedy(graph).steps if isinstance(step, Loops)]
    assert len(groups) > 2
    prices = DrawnTimes(0, 1)
    prices.measure(groups)
    assert [prices.knows(kernel_of(group)) for group in groups] == [True] + [False] * (len(groups) - 1)
    prices.left = ENDLESS
    prices.allow(60.0)
    assert prices.measure(groups) and all(prices.knows(kernel_of(group)) for group in groups)

    class Crashing(DrawnTimes):
        def _answers(self, groups: Sequence[NamedGroup], tasks: Sequence[Mapping[str, Any]]) -> list[str]:
            lines, bad = super()._answers(groups, tasks), NamedGroup(crashes).name
            at = next((n for n, task in enumerate(tasks) if groups[task["group"]].name == bad), len(lines))
            return lines[:at]

    crashes = groups[1]
    prices = Crashing(0, ENDLESS)
    prices.measure(groups)
    assert [prices.knows(kernel_of(group)) for group in groups] == [
        NamedGroup(group).name != NamedGroup(crashes).name for group in groups
    ]
