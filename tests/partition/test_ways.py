"""Plans by region of sizes: when there are several, what they say of themselves, and when there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from haotuner.graph import decompositions
from haotuner.graph.extents import dimension, evaluate
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.partition import costs
from haotuner.partition.costs import Kernel, Prices, Rates
from haotuner.partition.executable import executable_specializations
from haotuner.partition.greedy_fusion import Loops, Specialization
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.specializations import ways_of
from haotuner.partition.windows import Windows
from haotuner.runtime.schedule import ExecutionPlan
from haotuner.spec.bytecode import schedule_words

B, T = dimension("batch"), dimension("seq")
REQUESTS = [{"batch": 1, "seq": 8}, {"batch": 2, "seq": 16}, {"batch": 8, "seq": 512}, {"batch": 4, "seq": 900}]
CORE = replace(costs.CORE, reuses_row=False)  # loops that compute each exp of a softmax twice
DEAR = replace(CORE, step_us=500.0)  # a step costs more than anything that is computed


def softmax_of_rows() -> Graph:
    g = GraphBuilder()
    return g.finish(decompositions.softmax(g, g.map("mul", g.input("x", (B, T)), 0.5)))


class Times(Prices):
    """Prices that count as times: of small requests by other rates than of large ones."""

    def __init__(self, requests: Sequence[Mapping[str, int]], small: Rates, known: bool = True) -> None:
        super().__init__(requests, CORE)
        self.are_times, self.known = True, known
        self.of = [small if request["batch"] * request["seq"] < 100 else CORE for request in requests]

    def each_us(self, graph: Graph) -> list[float]:
        return [Prices([request], rates).each_us(graph)[0] for request, rates in zip(self.requests, self.of, strict=True)]

    def each_of(self, kernel: Kernel, usual_us: Sequence[float]) -> Sequence[float]:
        steps = [own.step_us - self.rates.step_us for own in self.of]
        return [us + more for us, more in zip(usual_us, steps, strict=True)]

    def knows(self, kernel: Kernel) -> bool:
        return self.known


def kernels(way: Specialization) -> list[int]:
    return sorted(len(step.graph.nodes) for step in way.steps if isinstance(step, Loops))


def test_small_requests_have_a_plan_of_their_own_where_steps_cost_them_more():
    plan = IlpPartitioner(softmax_of_rows(), Times(REQUESTS, DEAR, known=True))
    plan.prices.of = [CORE] * 4  # type: ignore[attr-defined]  # the one plan is for large ones
    assert len(kernels(Specialization(plan.steps))) > 1
    plan.prices.of = [DEAR, DEAR, CORE, CORE]  # type: ignore[attr-defined]
    small, rest = ways_of(plan)
    assert len(kernels(small)) < len(kernels(rest)) and rest.steps == plan.steps
    assert rest.extent is None and small.extent is not None
    served = [evaluate(small.extent, request) <= small.most for request in REQUESTS]
    assert served == [small.serves(request) for request in REQUESTS] == [True, True, False, False]
    first, last = plan.report.ways
    assert first["where"].endswith(f"<= {small.most}") and last["where"] == "any sizes"
    assert first["us"] < first["one_plan_us"] and last["us"] == pytest.approx(last["one_plan_us"])
    assert (first["own_kernels"], last["own_kernels"]) == (1, 0) and first["requests"] == REQUESTS[:2]


@pytest.mark.parametrize("why", ["expected", "equal", "untimed", "alone"])
def test_there_is_one_plan_where_nothing_is_gained(why):
    """Prices that are no times; large requests alone; kernels without times; a single request."""
    requests = {"alone": REQUESTS[:1], "equal": REQUESTS[2:]}.get(why, REQUESTS)
    prices = Times(requests, DEAR, known=why != "untimed")
    prices.are_times = why != "expected"
    plan = IlpPartitioner(softmax_of_rows(), prices)
    assert plan.steps
    (only,) = ways_of(plan)
    assert only == Specialization(plan.steps) and plan.report.ways == []


def test_ways_share_inputs_and_weights_and_no_other_tensor():
    graph = softmax_of_rows()
    fused, apart = (IlpPartitioner(graph, Prices(REQUESTS, rates)).steps for rates in (DEAR, CORE))
    model = executable_specializations("m", graph, [Specialization(fused, B * T, 50), Specialization(apart)])
    schedule = ExecutionPlan.of(model.schedule, "m")
    small, rest = (schedule.steps[way.first : way.end] for way in schedule.ways)
    assert len(small) == 1 < len(rest)
    tensors = [{name for step in steps for name in step["tensors"]} for steps in (small, rest)]
    assert tensors[0] & tensors[1] == {"x"}
    assert schedule.way_of({"batch": 5, "seq": 10}).where == "batch*seq <= 50"
    assert schedule.way_of({"batch": 5, "seq": 11}).where == "any sizes"
    words = schedule_words(model.document, 0)
    assert len(words) > len(schedule_words({**model.document, "ways": []}, 0)), "a line, its most and outputs of the second"


def layers(count: int) -> Graph:
    """Softmaxes over rows, each followed by a matrix, the same but for names; the last scales by another number."""
    g = GraphBuilder()
    x, weight = g.input("x", (B, T, 8)), g.constant(np.ones((8, 8), np.float32))
    for index in range(count):
        x = decompositions.softmax(g, g.map("mul", x, 0.5 if index + 1 < count else 0.25), 1)
        x = g.add("contract", x, weight, labels="btk,kn->btn")
    return g.finish(x)


def test_windows_that_differ_in_names_alone_are_looked_at_once(monkeypatch):
    seen: list[str] = []
    own = Windows._candidates

    def counted(self: Windows, window: Any) -> Any:
        seen.append(window.nodes[0])
        return own(self, window)

    monkeypatch.setattr(Windows, "_candidates", counted)
    plan = IlpPartitioner(layers(5), Prices(REQUESTS))
    assert len(plan.windows) == 5 and len(seen) == 1, "of one kind, though one has another number"
    outputs = [{candidate.output for candidate in window.candidates} for window in plan.windows]
    assert all(outputs[index] == set(plan.windows[index].nodes) for index in range(5))
    assert len({len(window.candidates) for window in plan.windows}) == 1
    apart = IlpPartitioner(layers(5), Prices(REQUESTS))
    monkeypatch.setattr("haotuner.partition.windows.structural_hash", lambda *_: object())  # no two are the same
    assert apart.steps and len(seen) == 6
    assert kernels(Specialization(plan.steps)) == kernels(Specialization(apart.steps))
    assert plan.report.chosen_us == pytest.approx(apart.report.chosen_us)
    assert [region["outputs"] for region in plan.report.regions] == [region["outputs"] for region in apart.report.regions]


def test_segments_of_a_model_share_what_is_known_of_their_windows():
    kinds: dict[Any, Any] = {}
    plans = [IlpPartitioner(layers(2), Prices(REQUESTS), kinds=kinds) for _ in range(2)]
    assert all(plan.steps for plan in plans) and len(kinds) == 2, "windows, and what they are together"
