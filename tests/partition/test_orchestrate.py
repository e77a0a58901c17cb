"""What of a graph runs on tuned kernels, what goes together, and what a model's sizes are."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.codegen.loops import c_recurrent
from haotuner.codegen.loops.c_loops import loops_of
from haotuner.codegen.loops.cuda_loops import device_loops_of
from haotuner.codegen.loops.recompute import recomputed_reductions
from haotuner.errors import UsageError
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension, floor_division, largest
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.partition import candidate_search
from haotuner.partition import profiled_costs as measured_module
from haotuner.partition import windows as windows_module
from haotuner.partition.costs import CORE, GPU, Prices
from haotuner.partition.dim_ranges import shape_constraints, spans_of, unmet
from haotuner.partition.executable import executable_specializations
from haotuner.partition.greedy_fusion import Alias, Greedy, Loops, Specialization
from haotuner.partition.ilp_partition import IlpPartitioner, PartitionReport
from haotuner.partition.products import Product
from haotuner.partition.profiled_costs import ProfiledPrices
from haotuner.partition.segmented_model import SizeTable
from haotuner.partition.tasks import arrivals_of_models, check_draws, check_steps, model_task, ops_of
from haotuner.partition.window_ilp import WINDOW_S, Candidate, solve
from haotuner.runtime.schedule import ExecutionPlan, size_text
from haotuner.spec.op import Op
from tests.runtime.test_models_ordered import bytewise, recurrent

B, T = dimension("batch"), dimension("seq")


def attention() -> Graph:
    """Two heads of 16: q, k and v of one input, a mask, the output layer with its residual."""
    g = GraphBuilder()
    x, mask = g.input("x", (B, T, 32)), g.input("mask", (B, 1, 1, T))
    heads = []
    for index in range(3):
        w = g.constant(np.full((32, 32), 0.1 * index, np.float32))
        y = g.map("add", g.add("contract", x, w, labels="btk,kn->btn"), g.constant(np.zeros(32, np.float32)))
        heads.append(g.add("transpose", g.add("reshape", y, shape=(B, T, 2, 16)), order=(0, 2, 1, 3)))
    scores = g.map("mul", g.add("contract", heads[0], heads[1], labels="abmk,abnk->abmn"), 0.25)
    weights = decompositions.softmax(g, g.map("add", scores, mask))
    mixed = g.add("transpose", g.add("contract", weights, heads[2], labels="abmk,abkn->abmn"), order=(0, 2, 1, 3))
    flat = g.add("reshape", mixed, shape=(B, T, 32))
    out = g.add("contract", flat, g.constant(np.ones((32, 32), np.float32)), labels="btk,kn->btn")
    return g.finish(g.map("add", g.map("add", out, g.constant(np.ones(32, np.float32))), x))


class Apart(Greedy):
    """Takes no kernel of online sums."""

    def prefers(self, product, parts):
        return False


def test_attention_is_one_kernel_where_it_is_cheaper():
    graph = attention()
    prices = Prices([{"batch": 1, "seq": 4}, {"batch": 4, "seq": 64}])
    for plan in (Greedy(graph), IlpPartitioner(graph, prices)):
        (kernel,) = [step for step in plan.steps if isinstance(step, Product) and step.kind == "online"]
        assert kernel.op.name == "attention_d16_maskkeys_headsapart"
        assert [view.order for view in kernel.views.values()] == [(0, 2, 1, 3)] * 3 + [(0, 1)], (
            "heads are seen where they lie"
        )
        assert not any(isinstance(step, Loops) for step in plan.steps), "scores are stored nowhere"
    prices.product_us = lambda product, graph: 1000.0 if product.kind == "online" else 1.0  # type: ignore[method-assign]
    assert not any(isinstance(step, Product) and step.kind == "online" for step in IlpPartitioner(graph, prices).steps)


def test_attention_apart_is_products_and_one_group():
    steps = Apart(attention()).steps
    products = [step for step in steps if isinstance(step, Product)]
    names = [product.op.name for product in products]
    assert names[:3] == ["dense_n32_k32"] * 3
    assert names[3:] == ["batch_matmul_k16_nt", "batch_matmul_n16", "dense_n32_k32_bias_residual"]
    assert products[3].constants["scale"] == 0.25 and list(products[3].passed) == ["mask"]
    loops = [step for step in steps if isinstance(step, Loops)]
    assert len(loops) == 1, "softmax alone; heads are seen where they lie"
    assert {node.primitive for node in loops[0].graph.nodes} == {"map", "reduce"}


def test_convolutions_are_found_with_strides_pads_groups_and_bias():
    g = GraphBuilder()
    h, w = dimension("h"), dimension("w")
    x = g.input("x", (B, 8, h, w))
    padded = g.add("pad", x, before=(0, 0, 1, 0), after=(0, 0, 1, 2), mode="constant", value=0.0)
    slid = g.add("window", padded, axes=(2, 3), sizes=(3, 3), strides=(2, 1), dilations=(1, 1))
    y = g.add("contract", slid, g.constant(np.ones((4, 8, 3, 3), np.float32)), labels="bcpquv,fcuv->bfpq")
    y = g.map("add", y, g.constant(np.ones((4, 1, 1), np.float32)))
    (product,) = Greedy(g.finish(y)).products.values()
    assert product.op == Op.parse("conv2d:c=8,f=4,r=3,s=3,stride=2.1,pad=1.0.1.2")
    assert product.output == y and "bias" in product.constants


def test_no_step_makes_what_nobody_reads():
    """A pad that a convolution does by itself was stored, too: a tenth of the time of Piper's voice."""
    g = GraphBuilder()
    x = g.map("max", g.input("x", (B, 8, T)), 0.0)
    padded = g.add("pad", x, before=(0, 0, 1), after=(0, 0, 1), mode="constant", value=0.0)
    slid = g.add("window", padded, axes=(2,), sizes=(3,), strides=(1,), dilations=(1,))
    y = g.add("contract", slid, g.constant(np.ones((4, 8, 3), np.float32)), labels="bcpu,fcu->bfp")
    graph = g.finish(g.map("exp", y))
    for steps in (Greedy(graph).steps, IlpPartitioner(graph, Prices([{"batch": 2, "seq": 9}])).steps):
        reads = {name for step in steps for name in (step.graph.inputs if isinstance(step, Loops) else step.reads)}  # type: ignore[union-attr]
        assert [type(step) for step in steps] == [Loops, Product, Loops]
        assert {step.output for step in steps[:-1]} <= reads  # type: ignore[union-attr]


def test_a_norm_over_channels_is_not_computed_for_every_channel():
    g = GraphBuilder()
    x = g.input("x", (B, 8, T))
    steps = Greedy(g.finish(decompositions.normalise(g, x, (1,), 1e-5))).steps
    assert len(steps) > 1, "the mean lies in memory, for the channels' loop is outside of that of the tokens"


def test_sizes_are_a_table_that_python_alone_evaluates():
    table = SizeTable()
    extent = floor_division(T - 1, 2) * 3 + B
    index = table.index(extent)
    schedule = ExecutionPlan(
        "m", ("batch", "seq"), tuple(map(tuple, table.lines)), {"y": ("fp32", (index,))}, {}, (), (), ()
    )
    assert schedule.values({"batch": 2, "seq": 9})[index] == 14
    with pytest.raises(UsageError, match="takes no such request"):
        schedule.values({"batch": 0, "seq": 0})


def test_sizes_that_must_be_equal_are_named_with_how_they_follow_from_the_request():
    table = SizeTable()
    places = (table.index(floor_division(T - 1, 2) * 3 + B), table.index(largest([T, 2 * B])))
    lines = tuple(map(tuple, table.lines))
    schedule = ExecutionPlan("m", ("batch", "seq"), lines, {}, {}, (), (), (), equal=(places,))
    with pytest.raises(UsageError, match=r"= 14 and max\(.*seq.*\) = 9, which must be equal"):
        schedule.values({"batch": 2, "seq": 9})
    long: list[list[Any]] = [["dim", "batch"], *(["+", line, line] for line in range(200))]
    assert len(size_text(long, 200)) < 100, "each line holds the one before it twice"


def test_an_op_gets_the_shapes_that_requests_bring_it():
    model = model_task("m", attention(), "batch=1..4;seq=2..64", Path("m.onnx"), rewrites=lambda plan: plan)
    names = [op.name for op in ops_of([model])]
    assert names[0] == "dense_n32_k32" and len(names) == 3
    rows = arrivals_of_models([model], "text").rows
    assert set(rows) == set(names)
    assert {shape["m"] for shape in rows["dense_n32_k32"]} >= {2, 256}
    assert all(shape["t"] == shape["s"] and shape["h"] == 2 for shape in rows["attention_d16_maskkeys_headsapart"])
    assert model.uses["dense_n32_k32"] == 3


def test_windows_larger_than_their_image_are_no_calls():
    g = GraphBuilder()
    x = g.input("x", [1, 8, dimension("h"), 9], "fp32")
    windows = g.add("window", x, axes=(2, 3), sizes=(3, 3), strides=(1, 1), dilations=(1, 1))
    filters = g.constant(np.ones((8, 8, 3, 3), np.float32))
    graph = g.finish(g.add("contract", windows, filters, labels="bchwij,fcij->bfhw"))
    rows = arrivals_of_models([model_task("m", graph, "h=1..20", Path("m.onnx"))], "text").rows
    assert min(shape["h"] for shapes in rows.values() for shape in shapes) >= 3
    with pytest.raises(UsageError, match="no request of h=1..2 gives conv2d"):
        arrivals_of_models([model_task("m", graph, "h=1..2", Path("m.onnx"))], "text")


BAD: dict[str, tuple[str, str]] = {
    "unknown": ("batch=1;tokens=3", "the model has the dimensions batch, seq"),
    "lacking": ("batch=1..4", "says nothing of seq"),
    "axes": ("x=1..4x8", "2 axes, the model has"),
    "fixed": ("x=1..4x8x31", "has 32 where 31 is asked"),
    "none": ("batch=0..4;seq=1", "--shapes batch=0..4: expected a size"),
    "unsaid": ("dynamic", "how large the model's dimensions may be .batch, seq., for example batch=1..8; seq=1..8"),
    "twice": ("x=1..4x8x32;mask=1..4x1x1x9", "seq is 8 in one place and 9"),
    "name_twice": ("batch=1..4;seq=1;batch=1..2", "says batch twice; write it once"),
}


@pytest.mark.parametrize("name", BAD)
def test_shapes_that_do_not_fit_the_model_are_refused(name):
    text, words = BAD[name]
    with pytest.raises(UsageError, match=words):
        spans_of(attention(), text)


def test_a_model_that_only_the_host_computes_is_refused_in_words():
    g = GraphBuilder()
    places = g.add("nonzero", g.input("x", (B,)), extent=dimension("count_0"))
    with pytest.raises(UsageError, match="m computes nothing but"):
        model_task("m", g.finish(places), f"{B}=1..4", Path("m.onnx"))


def test_shapes_may_be_given_by_input():
    spans: Any = spans_of(attention(), "x=1..4x2..64x32;mask=1..4x1x1x2..64")
    assert {name: str(span) for name, span in spans.items()} == {"batch": "1..4", "seq": "2..64"}
    g = GraphBuilder()
    assert spans_of(g.finish(g.map("exp", g.input("x", (2, 3)))), "dynamic") == {}  # no dimension, nothing to say


def test_an_ordered_primitive_is_a_group_of_its_own_with_its_operands_in_memory():
    g = GraphBuilder()
    x = g.input("x", (B, 4))
    graph = g.finish(g.map("add", g.add("arg_sort", g.map("exp", x), axis=1), 1))
    steps: Any = IlpPartitioner(graph, Prices([{"batch": 3}])).steps
    assert [[node.primitive for node in step.graph.nodes] for step in steps] == [["map"], ["arg_sort"], ["map"]]


def softmax_of_rows() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (B, T))
    return g.finish(decompositions.softmax(g, g.map("mul", x, 0.5)))


REQUESTS = [{"batch": 64, "seq": 512}, {"batch": 2, "seq": 30}]


def every_plan_us(graph: Graph) -> float:
    """The cheapest plan by trying every set of tensors in memory, without the program."""
    prices, greedy = Prices(REQUESTS), Greedy(graph)
    names = [node.output for node in graph.nodes if node.output not in graph.outputs]
    best = np.inf
    for chosen in product([False, True], repeat=len(names)):
        stored = {*graph.outputs, *(name for name, is_stored in zip(names, chosen, strict=True) if is_stored)}
        groups = [greedy._group(name, stored) for name in stored]
        if all(recomputed_reductions(group) is None for group in groups):
            best = min(best, sum(prices.loops_us(group) for group in groups))
    return best


def test_the_exact_plan_is_the_best_of_all():
    exact = IlpPartitioner(softmax_of_rows(), Prices(REQUESTS))
    assert len(exact.steps) >= 1
    report = exact.report
    assert report.status == "optimal" and report.windows == 1
    assert report.bound_us <= report.chosen_us * (1 + 1e-9) and report.chosen_us <= report.greedy_us
    assert np.isclose(report.chosen_us, every_plan_us(softmax_of_rows()))


def test_a_reshaped_input_that_a_kernel_reads_is_there():
    g = GraphBuilder()
    x, mask = g.input("x", (B, T, 8)), g.input("mask", (B, T))
    shown = g.add("reshape", mask, shape=(B, T, 1))
    total = g.add("reduce", g.map("mul", x, shown), how="sum", axes=(1,))
    count = g.map("max", g.add("reduce", shown, how="sum", axes=(1,)), 1e-9)
    steps = IlpPartitioner(g.finish(g.map("div", total, count)), Prices(REQUESTS)).steps
    there = {"x", "mask"}
    for step in steps:
        if isinstance(step, Alias):
            there.add(step.tensor)
        elif isinstance(step, Loops):
            assert set(step.graph.inputs) <= there, "everything that a step reads was made before it"
            there.add(step.output)


def test_what_is_left_out_is_not_called_optimal(monkeypatch):
    monkeypatch.setattr(windows_module, "EAGER", 0)
    monkeypatch.setattr(candidate_search, "MOST_PRICED", 0)
    exact = IlpPartitioner(softmax_of_rows(), Prices(REQUESTS))
    assert exact.steps and exact.report.status.startswith("feasible (1 of 1")
    assert exact.report.bound_us <= exact.report.chosen_us <= exact.report.greedy_us


def test_a_plan_above_greedy_fusions_or_under_its_bound_is_not_called_optimal():
    in_order = PartitionReport(windows=1, bound_us=2.0, chosen_us=2.0, greedy_us=3.0)
    assert in_order.status == "optimal"
    for report in (replace(in_order, chosen_us=3.1), replace(in_order, bound_us=2.1)):
        assert report.status.startswith("feasible (bound") and "not in this order" in report.status
    assert replace(in_order, unproved=1).status == "feasible (1 of 1 windows not proved)"


def test_a_reshape_of_what_a_kernel_stores_costs_nothing():
    """The program took a copy of a norm for its two-dimensional product, beside the norm itself, for the residual."""
    g = GraphBuilder()
    turned = g.add("transpose", g.input("x", (T, B, 32)), order=(1, 0, 2))
    norm = decompositions.normalise(g, turned, (2,), 1e-5)
    flat = g.add("reshape", norm, shape=(B * T, 32))
    activated = g.map("max", g.add("contract", flat, g.constant(np.ones((32, 32), np.float32)), labels="mk,kn->mn"), 0.0)
    back = g.add("reshape", activated, shape=(B, T, 32))
    graph = g.finish(decompositions.normalise(g, g.map("add", g.map("mul", back, back), norm), (2,), 1e-5))
    plan = IlpPartitioner(graph, Prices(REQUESTS))
    assert any(step == Alias(flat, norm) for step in plan.steps)
    assert all(flat not in step.graph.outputs for step in plan.steps if isinstance(step, Loops)), "nobody copies it"
    assert plan.report.status == "optimal" and plan.report.chosen_us <= plan.report.greedy_us
    assert all(kernel["primitives"] != "reshape" for region in plan.report.regions for kernel in region["chosen"])


def test_an_output_is_memory_of_its_own():
    g = GraphBuilder()
    exponential = g.map("exp", g.input("x", (B, T)))
    graph = g.finish(exponential, g.add("reshape", exponential, shape=(B * T,)))
    assert not any(isinstance(step, Alias) for step in IlpPartitioner(graph, Prices(REQUESTS)).steps)


def residual_stack(blocks: int) -> Graph:
    """Residual blocks of norms over channels whose sums are padded for the next convolution, as Candy's are."""
    g = GraphBuilder()
    h = dimension("seq")
    x = g.map("exp", g.input("x", (B, 8, h, 16)))
    for _ in range(blocks):
        padded = g.add("pad", x, before=(0, 0, 1, 1), after=(0, 0, 1, 1), mode="reflect")
        taps = g.add("window", padded, axes=(2, 3), sizes=(3, 3), strides=(1, 1), dilations=(1, 1))
        y = g.add("contract", taps, g.constant(np.ones((8, 8, 3, 3), np.float32)), labels="bcpquv,fcuv->bfpq")
        y = decompositions.normalise(g, y, (2, 3), 1e-5)
        scale, bias = (g.constant(np.full((8, 1, 1), value, np.float32)) for value in (0.5, 2.0))
        y = g.map("add", g.map("mul", y, scale), bias)
        x = g.map("add", x, y)
    return g.finish(g.map("tanh", x))


def test_windows_of_any_size_are_proved():
    plan = IlpPartitioner(residual_stack(4), Prices(REQUESTS))
    assert plan.steps and plan.report.status == "optimal" and plan.report.chosen_us <= plan.report.greedy_us * (1 + 1e-9)
    assert max(len(window.nodes) for window in plan.windows) <= 2 * windows_module.LARGE
    stored = {name for step in plan.steps if isinstance(step, Loops) for name in step.graph.outputs}
    cut = plan._cut.required - plan.required()
    assert cut and cut <= stored & plan.chosen[0], "where it is cut greedy fusion stores, too"


def test_of_a_window_that_is_too_large_the_best_plan_known_is_kept(monkeypatch):
    monkeypatch.setattr(windows_module, "LARGE", 1000)
    monkeypatch.setattr(candidate_search, "MOST_PRICED", 50)
    plan = IlpPartitioner(residual_stack(4), Prices(REQUESTS))
    assert plan.steps and plan.report.status.startswith("feasible (1 of")
    assert plan.report.bound_us <= plan.report.chosen_us <= plan.report.greedy_us * (1 + 1e-9)


def test_the_program_allows_to_compute_again_and_refuses_what_nobody_makes():
    def one(output: str, nodes: str, reads: str, us: float) -> Candidate:
        return Candidate((output,), frozenset(nodes), frozenset(reads), us)

    apart = [one("x", "x", "", 5.0), one("y", "y", "x", 1.0), one("z", "z", "x", 1.0)]
    again = [one("y", "xy", "", 2.0), one("z", "xz", "", 2.5)]
    chosen, bound, proved = solve([*apart, *again], ["y", "z"])
    assert chosen is not None and proved and bound == pytest.approx(4.5)
    assert sorted(candidate.output for candidate in chosen) == ["y", "z"]
    assert solve(apart[1:], ["y", "z"])[0] is None, "x has no maker"


def test_a_request_whose_extents_do_not_meet_is_refused_before_anything_is_read():
    g = GraphBuilder()
    x, y = g.input("x", (T,)), g.input("y", (dimension("other"),))
    graph = g.finish(g.map("add", x, g.map("mul", y, 2.0)))
    model = executable_specializations("m", graph, [Specialization(tuple(Greedy(graph).steps))])
    schedule = ExecutionPlan.of(model.schedule, "m")
    assert schedule.values({"seq": 5, "other": 5})
    with pytest.raises(UsageError, match="which must be equal"):
        schedule.values({"seq": 5, "other": 4})
    pairs = shape_constraints(graph)
    assert not unmet(pairs, {"seq": 5, "other": 5}) and "seq = 5" in unmet(pairs, {"seq": 5, "other": 4})


@pytest.mark.long
def test_prices_are_measured_where_a_plan_wants_them_and_nowhere_else():
    prices = ProfiledPrices([{"batch": 3, "seq": 17}, {"batch": 8, "seq": 300}], 60.0)
    plan = IlpPartitioner(softmax_of_rows(), prices)
    steps = [step for step in plan.steps if isinstance(step, Loops)]
    assert plan.report.status == "optimal" and 0 < plan.report.measured <= plan.report.candidates
    assert plan.report.longest_s > 0 and WINDOW_S <= 60, "a window's program is given a minute at most"
    for step in steps:
        nodes = frozenset(node.output for node in step.graph.nodes)
        assert prices.knows((step.graph.outputs, nodes)) and min(prices.expected_us(step.graph)) > 0
    assert plan.report.chosen_us <= plan.report.greedy_us


def test_a_kernel_that_cannot_be_timed_keeps_what_it_is_expected_to_take(monkeypatch):
    monkeypatch.setattr(measured_module, "head_of", lambda _: "this is no C")
    prices = ProfiledPrices([{"batch": 3, "seq": 17}], 60.0)
    plan = IlpPartitioner(softmax_of_rows(), prices)
    assert plan.steps and plan.report.measured == 0 and prices.ratios == []


def test_what_no_gpu_computes_is_named(monkeypatch):
    def noise(dtype: str) -> Graph:
        g = GraphBuilder()
        random = g.add("random", shape=(B, 8), dtype=dtype, law="normal", number=0, low=0.0, high=1.0)
        return g.finish(g.map("add", g.input("x", (B, 8), dtype), random))

    with pytest.raises(UsageError, match=r"m cannot run on a GPU.*\n  .*: random numbers of float16; those of float32 and"):
        check_draws("m", noise("fp16"))
    check_draws("m", noise("fp32"))
    check_steps("m", Greedy(softmax_of_rows()).steps)
    layer = Greedy(recurrent("lstm", ("sigmoid", "tanh", "tanh"), width=6, reverse=False)).steps
    monkeypatch.setattr(c_recurrent, "SHARED_BYTES", 4 * 6 * 4)
    check_steps("m", layer)
    rounded = Greedy(bytewise(width=6)).steps
    with pytest.raises(UsageError, match="of 6 states fit no block"):  # the state as bytes lies there, too
        check_steps("m", rounded)
    monkeypatch.setattr(c_recurrent, "SHARED_BYTES", 4 * 6 * 4 - 1)
    with pytest.raises(UsageError, match=r"m cannot run on a GPU.*\n  .*: the gates of a layer \(lstm\) of 6 states"):
        check_steps("m", layer)


def test_a_gpu_computes_again_what_a_core_stores():
    g = GraphBuilder()
    graph = g.finish(decompositions.softmax(g, g.input("x", (B, T))))
    requests = [{"batch": 8, "seq": size} for size in (16, 256)]
    steps = {name: IlpPartitioner(graph, Prices(requests, rates)).steps for name, rates in (("core", CORE), ("gpu", GPU))}
    (step,) = steps["gpu"]
    assert isinstance(step, Loops) and steps["core"]
    launch = device_loops_of(step.graph, "softmax", SizeTable().index)
    assert (launch.points, launch.lanes) == (1, 32), "a warp a row"
    assert launch.source.count("__shfl_xor_sync") == 2 and "restrict p0" in launch.source


def test_terms_that_wait_in_the_row_count_once():
    """Loops of a core compute each exp of a softmax once; a launch computes it for the sum and for the element."""
    g = GraphBuilder()
    graph = g.finish(decompositions.softmax(g, g.input("x", (B, T))))
    (reused,), (again,) = (
        Prices([{"batch": 8, "seq": 256}], replace(CORE, reuses_row=reuses_row, bytes_moved=1e9, bytes_far=1e9)).each_us(
            graph
        )
        for reuses_row in (True, False)
    )
    assert again - reused == pytest.approx(8 * 256 / CORE.function + 8 * 256 / CORE.simple), (
        "an exp and the difference in it"
    )


def test_what_has_no_elements_is_not_read_by_a_concatenation():
    g = GraphBuilder()
    x, y = g.input("x", (B, 4)), g.input("y", (B, 8))
    none = g.add("slice", y, axes=(1,), starts=(8,), stops=(8,), steps=(1,))
    graph = g.finish(g.map("neg", g.add("concat", x, none, axis=1)))
    group = loops_of(graph, "joined", SizeTable().index)
    assert group.tensors[:-1] == ("x",), "an element behind the last row of y would be read"


def test_products_meet_no_subnormal_weights():
    """Trained nets hold hundreds of thousands of them (PP-OCR's detector); some CPUs take 100 cycles for each."""
    weight = np.array([[0.0, 1e-39, -1e-40, 1.2e-38], [2.0, -1.2e-38, np.nan, -np.inf]], np.float32)
    g = GraphBuilder()
    x = g.input("x", (B, 4))
    graph = g.finish(g.add("contract", x, g.constant(weight.T.copy()), labels="bk,kn->bn"))
    model = executable_specializations("net", graph, [Specialization(tuple(Greedy(graph).steps))])
    entry = model.document["weights"][model.document["steps"][0]["weight"]]
    stored = np.frombuffer(model.weights, np.float32, 8, entry["offset"]).reshape(entry["shape"])
    expected = weight.copy()
    expected[0, 1:3] = 0
    np.testing.assert_array_equal(stored, expected)
