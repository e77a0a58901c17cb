"""Groups of several outputs: what the program makes of them, circles, and the loops that write them all."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cpu.pack_source import GROUP_FLAGS
from haotuner.backends.toolchain import Toolchain
from haotuner.codegen.loops.c_math import head_of
from haotuner.codegen.loops.cuda_loops import device_loops_of
from haotuner.codegen.loops.loop_nest import elements_of, lies_beside, rows_before
from haotuner.codegen.loops.recompute import recomputed_reductions
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension, evaluate
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.partition import window_ilp
from haotuner.partition.costs import CORE, GPU, Prices
from haotuner.partition.greedy_fusion import Greedy, Loops
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.multi_output_fusion import Ways, plain
from haotuner.partition.products import Product
from haotuner.partition.segmented_model import SizeTable
from haotuner.partition.window_ilp import Candidate, circle_of, solve
from tests.codegen.test_plain_loops import of

B, T = dimension("batch"), dimension("seq")
REQUESTS = [{"batch": 1, "seq": 3}, {"batch": 8, "seq": 400}]


def scaled_residual(g: GraphBuilder) -> tuple[str, ...]:
    """A layer's scale and residual, and the norm of the sum: the sum is read by the norm, and after the next layer."""
    x, y, scale = g.input("x", (B, T, 32)), g.input("y", (B, T, 32)), g.input("scale", (32,))
    total = g.map("add", x, g.map("mul", y, scale))
    return g.map("mul", decompositions.normalise(g, total, (2,), 1e-5), 0.5), total


def statistics(g: GraphBuilder) -> tuple[str, ...]:
    """Two numbers of each row beside what is made of it."""
    x = g.input("x", (B, T, 32))
    mean = decompositions.mean(g, x, (2,))
    most = g.add("reduce", x, how="max", axes=(2,), keepdims=False)
    return g.map("exp", g.map("sub", x, mean)), mean, most


def siblings(g: GraphBuilder) -> tuple[str, ...]:
    x = g.input("x", (B, T))
    return g.map("exp", x), g.map("max", x, 0.0), g.map("mul", x, x)


CASES: Mapping[str, Callable[[GraphBuilder], tuple[str, ...]]] = {
    build.__name__: build for build in (scaled_residual, statistics, siblings)
}


def graph_of(name: str) -> Graph:
    g = GraphBuilder()
    return g.finish(*CASES[name](g))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("several")
    text = "\n".join(of(graph_of(name), f"ht_{name}")[0].source.replace("static void", "void", 1) for name in CASES)
    source, library = folder / "g.c", folder / "g.so"
    source.write_text(f"{head_of([text])}\n{text}\n")
    flags = ("-std=c11", "-O2", "-march=native", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-fPIC", "-shared")
    command = [Toolchain.find().compiler, *flags, *GROUP_FLAGS, str(source), "-o", str(library), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("name", CASES)
def test_one_nest_of_loops_writes_all_outputs_in_any_parts(name: str, compiled: Any) -> None:
    graph, draw = graph_of(name), np.random.default_rng(3)
    group, extents = of(graph, "again")
    assert group.tensors[-len(graph.outputs) :] == (*graph.outputs[1:], graph.outputs[0])
    for dims in ({"batch": 2, "seq": 5}, {"batch": 1, "seq": 1}):
        shapes = {tensor: [evaluate(extent, dims) for extent in graph.types[tensor].shape] for tensor in group.tensors}
        inputs = {tensor: draw.standard_normal(shapes[tensor]).astype(np.float32) for tensor in graph.inputs}
        expected = interpret(graph, inputs)
        loops = [evaluate(extent, dims) for extent in group.loops]
        sizes = (ctypes.c_int64 * 64)(*(evaluate(extent, dims) for extent in extents))
        for axis, extent in enumerate(loops):
            outputs = {tensor: np.full(shapes[tensor], 77.0, np.float32) for tensor in graph.outputs}
            for low, high in ((0, extent // 2), (extent // 2, extent)):  # as threads share it
                begin, end = [0] * len(loops), list(loops)
                begin[axis], end[axis] = low, high
                pointers = ((inputs | outputs)[tensor].ctypes.data for tensor in group.tensors)
                tensors = (ctypes.c_void_p * len(group.tensors))(*pointers)
                lo, hi = ((ctypes.c_int64 * len(loops))(*side) for side in (begin, end))
                getattr(compiled, f"ht_{name}")(sizes, tensors, lo, hi)
            for tensor in graph.outputs:
                np.testing.assert_allclose(
                    outputs[tensor], expected[tensor], rtol=1e-5, atol=1e-6, err_msg=f"{tensor} {dims} {axis}"
                )


def test_a_sum_is_made_once_a_row_and_read_there() -> None:
    """The norm's two sums and its elements read what was written; a call of parts of rows computes it for each."""
    graph = graph_of("scaled_residual")
    elements = rows_before(graph)
    assert (
        elements is not None
        and [element.tensor for element in elements.before] == [graph.outputs[1]]
        and not elements.beside
    )
    whole, parts = of(graph, "one")[0].source.split("return;")
    index = of(graph, "one")[0].tensors.index("y")
    assert f"t[{index}]" in whole
    pointer = whole.split(f" = (const float*)t[{index}]")[0].split()[-1]
    assert (whole.count(f"{pointer}["), parts.count(f"{pointer}[")) == (1, 3)
    with_row, again = (Prices(REQUESTS, replace(CORE, reuses_row=reuses)).each_us(graph) for reuses in (True, False))
    assert max(with_row) < max(again)
    assert rows_before(graph_of("statistics")) is None and rows_before(graph_of("siblings")) is None


def test_rows_in_another_order_than_sums_read_them_are_not_written_before() -> None:
    g = GraphBuilder()
    x = g.input("x", (B, 32, 32))
    total = g.map("exp", x)
    down = g.add("reduce", g.add("transpose", total, order=(0, 2, 1)), how="max", axes=(2,), keepdims=True)
    assert rows_before(g.finish(g.map("sub", total, down), total)) is None, "its sum is of a column of what is written"


def test_compilers_are_told_that_outputs_lie_apart() -> None:
    """Else gcc makes no vectors of a loop that stores to two of them."""
    last = [line for line in of(graph_of("scaled_residual"), "one")[0].source.splitlines() if " for (" in line][-1]
    assert last.strip().startswith('_Pragma("GCC ivdep") for (')
    assert "ivdep" not in of(graph_of("statistics"), "one")[0].source, "once a row is no loop"


def test_what_lies_beside_has_the_same_points_or_is_a_row_of_fixed_length() -> None:
    assert lies_beside((B, T, 32), (B, T, 32)) == [0, 1, 2]
    assert lies_beside((B, T), (B, T, 32)) == [0, 1] and lies_beside((B, T, 1), (B, T, 32)) == [0, 1, None]
    assert lies_beside((B, 1, T), (B, T, 32)) == [0, None, 1]
    assert lies_beside((B, 32), (B, T, 32)) is None, "no row of the loops"
    assert lies_beside((B, 1), (B, T)) is None, "a row may be empty, and then nobody would write"
    assert lies_beside((1,), (B, 32)) is None, "each part of the loops would compute it"
    graph = graph_of("statistics")
    assert [(output.tensor, output.axes) for output in elements_of(graph).beside] == [
        (output, 2) for output in graph.outputs[1:]
    ]


@pytest.mark.parametrize("rates", ["core", "gpu"])
def test_a_sum_and_its_norm_are_one_kernel(rates: str) -> None:
    graph = graph_of("scaled_residual")
    prices = Prices(REQUESTS, GPU) if rates == "gpu" else Prices(REQUESTS)
    plan = IlpPartitioner(graph, prices)
    (step,) = plan.steps
    assert isinstance(step, Loops) and set(step.graph.outputs) == set(graph.outputs)
    assert plan.report.status == "optimal" and plan.report.chosen_us < plan.report.greedy_us
    (region,) = plan.report.regions
    assert [kernel["beside"] for kernel in region["chosen"]] == [list(step.graph.outputs[1:])]
    parts = [Prices.each_us(prices, plan.subgraph((output,), [n.output for n in graph.nodes])) for output in graph.outputs]
    assert np.mean(prices.each_us(step.graph)) < np.mean(parts[0]) + np.mean(parts[1]), "what both read is read once"
    if rates == "gpu":
        launch = device_loops_of(step.graph, "both", SizeTable().index)
        assert (launch.points, launch.lanes) == (2, 32) and launch.source.count("__global__") == 1


def test_statistics_are_stored_by_a_lane_of_the_warp_that_has_the_row() -> None:
    source = device_loops_of(graph_of("statistics"), "rows", SizeTable().index).source
    assert source.count("if (lane == 0) p") == 2


def crossed(g: GraphBuilder) -> tuple[str, ...]:
    """x1 leads to x2 and y1 to y2 by way of turned rows; x1 and y2 read p, x2 and y1 read q."""
    p, q = g.input("p", (B, T)), g.input("q", (B, T))
    x1, y1 = g.map("exp", p), g.map("exp", q)
    behind = [g.add("reduce", tensor, how="sum", axes=(1,), keepdims=True) for tensor in (x1, y1)]
    x2 = g.map("mul", q, behind[0])
    y2 = g.map("mul", p, behind[1])
    return x1, y1, x2, y2


def test_kernels_that_would_wait_for_each_other_are_cut_out_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(outputs: str, reads: str, us: float) -> Candidate:
        return Candidate(tuple(outputs), frozenset(outputs), frozenset(reads), us)

    every = [one("aD", "B", 1.0), one("bC", "A", 1.0), one("A", "a", 0.1), one("B", "b", 0.1),
             *(one(name, read, 1.0) for name, read in (("a", ""), ("b", ""), ("C", "A"), ("D", "B")))]  # fmt: skip
    chosen, bound, proved = solve(every, list("aDbC"))
    assert chosen is not None and proved and circle_of(chosen) == []
    assert sum(candidate.us for candidate in chosen) == pytest.approx(3.2), "one of both, not both"
    assert bound == pytest.approx(3.2)
    monkeypatch.setattr(window_ilp, "circle_of", lambda _: [])
    uncut = solve(every, list("aDbC"))[0]
    assert uncut is not None and sum(candidate.us for candidate in uncut) == pytest.approx(2.2)
    assert len(circle_of(uncut)) == 4, "without cuts the program takes what nobody can run"


def test_a_plan_has_no_circle_where_the_cheapest_kernels_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    g = GraphBuilder()
    graph = g.finish(*crossed(g))
    x1, y1, x2, y2 = graph.outputs

    class Favoured(Prices):
        """The two kernels that wait for each other cost next to nothing."""

        def price_of(self, kernel: Any, usual_us: Any) -> float:
            return 1e-3 if set(kernel[0]) in ({x1, y2}, {y1, x2}) else super().price_of(kernel, usual_us)

    plan = IlpPartitioner(graph, Favoured(REQUESTS))
    kernels = [set(step.graph.outputs) for step in plan.steps if isinstance(step, Loops)]
    assert ({x1, y2} in kernels) != ({y1, x2} in kernels) and plan.report.status == "optimal"
    monkeypatch.setattr(window_ilp, "circle_of", lambda _: [])
    with pytest.raises(AssertionError, match="waits for itself"):
        _ = IlpPartitioner(graph, Favoured(REQUESTS)).steps


def test_outputs_behind_unlike_numbers_of_products_are_of_different_kernels() -> None:
    g = GraphBuilder()
    x = g.input("x", (B, T, 32))
    before = g.map("exp", x)
    product = g.add("contract", x, g.constant(np.ones((32, 32), np.float32)), labels="btk,kn->btn")
    more = g.add("contract", before, g.constant(np.ones((32, 32), np.float32)), labels="btk,kn->btn")
    behind = g.map("mul", g.map("mul", product, more), x)
    plan = IlpPartitioner(g.finish(before, behind), Prices(REQUESTS, GPU))
    assert all(len(step.graph.outputs) == 1 for step in plan.steps if isinstance(step, Loops))
    assert any(isinstance(step, Product) for step in plan.steps)
    ways = Ways.of(plan.graph, {*plan.products, *plan.inside})
    assert ways.products[before] == 0 < ways.products[behind]
    assert not ways.convex({before, behind}) and ways.convex({behind})


def test_loops_that_are_faster_alone_stay_alone() -> None:
    g = GraphBuilder()
    x = g.input("x", (B, 3, T))
    wide = g.add("pad", x, before=(0, 0, 1), after=(0, 0, 1), mode="constant", value=0.0)
    assert not plain(g.finish(wide, g.map("exp", wide))), "the middle of a row asks nothing of pads"
    down = g.add("reduce", x, how="sum", axes=(1,))
    both = g.finish(down, g.map("exp", down))
    assert not plain(both), "rows are summed a block at a time"
    assert plain(both, cores=False), "a launch has no such loops to lose"
    turned = g.add("transpose", g.input("z", (B, 16, T)), order=(0, 2, 1))
    assert not plain(g.finish(turned, g.map("exp", turned))), "what is read across is turned in squares"
    assert plain(graph_of("statistics"))


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_the_best_of_all_with_several_outputs(name: str) -> None:
    """Every way to store tensors, and every way to join the kernels that store them, priced one by one."""
    graph, prices = graph_of(name), Prices(REQUESTS)
    plan, greedy = IlpPartitioner(graph, prices), Greedy(graph)
    assert plan.report.status == "optimal" and plan.report.chosen_us <= least_us(greedy, prices) * (1 + 1e-9)


def least_us(greedy: Greedy, prices: Prices) -> float:
    """Of plans that store the outputs alone: the cheapest way to part them among kernels."""
    outputs = list(greedy.graph.outputs)

    def parted(left: list[str]) -> list[list[tuple[str, ...]]]:
        if not left:
            return [[]]
        rest = parted(left[1:])
        return [[(left[0],), *partition] for partition in rest] + [
            [*partition[:index], (*partition[index], left[0]), *partition[index + 1 :]]
            for partition in rest
            for index in range(len(partition))
        ]

    costs = []
    for parts in parted(outputs):
        us = 0.0
        for part in parts:
            width = {output: sum(extent != 1 for extent in greedy.graph.types[output].shape) for output in part}
            first, *others = sorted(part, key=lambda output: -width[output])
            needed, members = set(part), []
            for node in reversed(greedy.graph.nodes):
                if node.output in needed:
                    members.append(node.output)
                    needed.update(node.inputs)
            group = greedy.subgraph((first, *others), members)
            if (len(part) > 1 and not plain(group)) or recomputed_reductions(group) is not None:
                us = float("inf")
                break
            us += prices.loops_us(group)
        costs.append(us)
    return min(costs)
