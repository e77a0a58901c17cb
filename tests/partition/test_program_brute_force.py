"""The program of small random graphs beside every plan that the rules of candidates allow, tried one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations

import pytest

from haotuner.codegen.loops.recompute import recomputed_reductions
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.partition import windows as windows_module
from haotuner.partition.costs import CORE, Prices
from haotuner.partition.greedy_fusion import Alias, Loops
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.window_ilp import Candidate, circle_of

B, T = dimension("batch"), dimension("seq")
REQUESTS = [{"batch": 3, "seq": 40}, {"batch": 64, "seq": 128}]
SHAPE, FLAT = (B, T, 4), (B, T * 4)


def drawn_graph(seed: int) -> Graph:
    """At most 14 primitives: maps, sums of a row and broadcasts of them, reshapes, turned axes; one to three outputs."""
    draw, g = random.Random(seed), GraphBuilder()
    full, rows, flat = [g.input("x", SHAPE), g.input("y", SHAPE)], list[str](), list[str]()
    for _ in range(draw.randint(4, 9)):
        kind = draw.choice(["map", "binary", "reduce", "broadcast", "reshape", "flat", "back", "transpose"])
        recent = full[-3:]
        if kind == "reduce":
            rows.append(g.add("reduce", draw.choice(recent), how="sum", axes=(2,), keepdims=True))
        elif kind == "broadcast" and rows:
            full.append(g.map("sub", draw.choice(recent), rows[-1]))
        elif kind == "reshape":
            flat.append(g.add("reshape", draw.choice(recent), shape=FLAT))
        elif kind == "flat" and flat:
            flat.append(g.map("exp", flat[-1]))
        elif kind == "back" and flat:
            full.append(g.add("reshape", flat[-1], shape=SHAPE))
        elif kind == "transpose":
            turned = g.add("transpose", draw.choice(recent), order=(0, 2, 1))
            full.append(g.add("transpose", g.map("neg", turned), order=(0, 2, 1)))
        elif kind == "map":
            full.append(g.map(draw.choice(["exp", "neg"]), draw.choice(recent)))
        else:
            full.append(g.map("mul", draw.choice(recent), draw.choice(full)))
    computed = [*full[2:], *rows, *flat]
    outputs = {computed[-1], full[-1], *draw.sample(computed, min(len(computed), draw.randint(0, 2)))} & set(computed)
    return g.finish(*sorted(outputs, key=computed.index))


FREE = replace(CORE, step_us=0.0, bytes_moved=1e30, bytes_far=1e30, simple=1e30, quotient=1e30, function=1e30)


class Drawn(Prices):
    """A price by chance for each kernel, the same for those that differ in names alone; bounds under them are 0."""

    def __init__(self, seed: int) -> None:
        super().__init__(REQUESTS[:1], FREE)
        self.seed = seed

    def usual_us(self, graph: Graph) -> tuple[float, ...]:
        index = {node.output: position for position, node in enumerate(graph.nodes)}
        text = [f"{node.primitive} {node.attributes} {[index.get(name) for name in node.inputs]}" for node in graph.nodes]
        outputs = [index[name] for name in graph.outputs]
        return (random.Random(f"{self.seed} {outputs} {text}").uniform(0.5, 2.0 + len(text)),)


def convex(plan: IlpPartitioner, nodes: frozenset[str], inside: frozenset[str]) -> frozenset[str]:
    """With every primitive that a member leads to and that leads to a member."""

    def reached(up: bool) -> set[str]:
        result, waiting = set[str](), list(nodes)
        while waiting:
            name = waiting.pop()
            near = plan.producers[name].inputs if up else [node.output for node in plan.finder.readers.get(name, [])]
            waiting += [item for item in near if item in inside and item not in result]
            result |= {item for item in near if item in inside}
        return result

    return nodes | (reached(up=True) & reached(up=False))


def singles(plan: IlpPartitioner, inside: frozenset[str]) -> Iterator[Candidate]:
    """Every set with one output that the rules allow, and every alias."""
    passing, required = plan._cut._passing, plan._cut.required

    def closed(nodes: frozenset[str]) -> frozenset[str]:
        result = convex(plan, nodes, inside)
        while more := {item for name in result for item in plan.producers[name].inputs if item in passing & inside} - result:
            result |= more
        return result

    for root in inside - passing:
        above, waiting = set[str](), [root]
        while waiting:
            new = {item for item in plan.producers[waiting.pop()].inputs if item in inside} - above
            above |= new
            waiting += new
        free = sorted(above - required)
        sets = {
            closed(frozenset({root, *some}))
            for some in chain.from_iterable(combinations(free, count) for count in range(len(free) + 1))
        }
        for nodes in sets:
            grown, before = closed(frozenset({root})), frozenset[str]()
            while grown != before:  # each step reads what it adds, which need not lie in memory
                before = grown
                for tensor in sorted(
                    {item for name in grown for item in plan.producers[name].inputs} & nodes - required - grown
                ):
                    grown = closed(grown | {tensor})
            of = plan.producers[root].inputs[0] if plan.producers[root].primitive == "reshape" else None
            alias = nodes == {root} and of in inside and root not in plan.graph.outputs
            graph = plan.subgraph((root,), nodes)
            if grown == nodes and (alias or recomputed_reductions(graph) is None):
                us = 0.0 if alias else plan.prices.price_of(((root,), nodes), plan.prices.usual_us(graph))
                yield Candidate((root,), nodes, plan._cut._reads(graph.inputs, inside), us)


def least_us(plan: IlpPartitioner) -> float:
    """The cheapest plan of all: for every set of tensors in memory every way to make them, windows by themselves."""
    total = 0.0
    for window in plan.windows:
        several = [candidate for candidate in window.candidates if len(candidate.outputs) > 1]
        greedy = [candidate for candidate in window.greedy_plan if not candidate.alias]
        makers: dict[str, list[Candidate]] = {}
        for candidate in (*singles(plan, window.inside), *greedy):
            makers.setdefault(candidate.output, []).append(candidate)
        free = [name for name in window.nodes if name in makers and name not in window.outputs]
        best = float("inf")
        for some in chain.from_iterable(combinations(free, count) for count in range(len(free) + 1)):
            best = min(best, _cheapest({*window.outputs, *some}, makers, several))
        total += best
    return total


def _cheapest(stored: set[str], makers: dict[str, list[Candidate]], several: Sequence[Candidate]) -> float:
    """The cheapest way to make these tensors and no other ones, in some order."""
    own = {
        name: min((item for item in makers.get(name, []) if item.reads <= stored), key=lambda item: item.us, default=None)
        for name in stored
    }
    unions = [candidate for candidate in several if {*candidate.outputs} | candidate.reads <= stored]
    best = float("inf")

    def visit(left: list[str], kernels: list[Candidate], us: float) -> None:
        nonlocal best
        if us >= best:
            return
        if not left:
            best = best if circle_of(kernels) else us
            return
        first, alone = left[0], own[left[0]]
        for kernel in (item for item in unions if first in item.outputs and {*item.outputs} <= {*left}):
            visit([name for name in left if name not in kernel.outputs], [*kernels, kernel], us + kernel.us)
        if alone is not None:
            visit(left[1:], [*kernels, alone], us + alone.us)

    visit(sorted(stored), [], 0.0)
    return best


def check(graph: Graph, prices: Prices) -> IlpPartitioner:
    plan = IlpPartitioner(graph, prices, tuned=False)
    steps, report = plan.steps, plan.report
    assert report.status == "optimal", report
    assert report.bound_us <= report.chosen_us * (1 + 1e-6) and report.chosen_us <= report.greedy_us * (1 + 1e-6)
    assert report.chosen_us == pytest.approx(least_us(plan), rel=1e-6)
    kernels = [step.graph for step in steps if isinstance(step, Loops)]
    keys = [(kernel.outputs, frozenset(node.output for node in kernel.nodes)) for kernel in kernels]
    served = sum(prices.price_of(key, prices.usual_us(kernel)) for key, kernel in zip(keys, kernels, strict=True))
    assert served == pytest.approx(report.chosen_us), "what is written is what was priced"
    return plan


@pytest.mark.parametrize("seed", range(0, 200, 25))
def test_the_program_equals_brute_force_at_drawn_prices(seed: int) -> None:
    for number in range(seed, seed + 25):
        graph = drawn_graph(number)
        assert len(graph.nodes) <= 14
        check(graph, Drawn(number))


def test_graphs_that_are_drawn_have_aliases_and_kernels_of_several_outputs() -> None:
    plans = [IlpPartitioner(drawn_graph(number), Drawn(number), tuned=False) for number in range(40)]
    assert sum(any(isinstance(step, Alias) for step in plan.steps) for plan in plans) > 5
    assert sum(any(len(item.outputs) > 1 for window in plan.windows for item in window.candidates) for plan in plans) > 5


@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "expected"])
def test_candidates_found_on_the_way_are_all_that_matter(drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_module, "EAGER", 0)
    for number in range(300, 330):
        graph = drawn_graph(number)
        prices = Drawn(number) if drawn else Prices(REQUESTS)
        plan = check(graph, prices)
        assert any(window.searches for window in plan.windows)
