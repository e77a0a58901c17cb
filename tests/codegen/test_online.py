"""Online sums: found by algebra, and right in every schedule, whatever the extents; no tensor of rows x keys is made."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from haotuner.codegen.cycles import Core, counted, cycles, estimated, of_one_point
from haotuner.codegen.kinds import attention, graph_of, has_graph
from haotuner.codegen.online_softmax import OnlineSoftmax, match_online_softmax
from haotuner.codegen.online_softmax_schedule import DEPTH, ROWS, OnlineSchedule, online_plan, schedules
from haotuner.codegen.op_counter import count_ops, register_bytes
from haotuner.graph.decompositions import softmax
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.microkernels.cpu.online_softmax import COVERED, CpuOnline
from haotuner.ops.attention import ATTENTION
from haotuner.ops.index import KINDS
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.codegen.interpreter import run
from tests.codegen.tvm_programs import compiled
from tests.cost.cost_examples import BIG_CORE

OPTIONS: tuple[dict[str, str], ...] = (
    {"d": "9"},
    {"d": "6", "causal": "end", "mask": "keys"},
    {"d": "8", "causal": "start", "mask": "full", "scale": "one"},
    {"d": "5", "heads": "apart", "mask": "keys"},
)
LITTLE = (
    OnlineSchedule(lanes=4, along=ROWS, rows=2, block=3, keys=4, out_rows=4),
    OnlineSchedule(lanes=4, along=ROWS, rows=1, block=2, keys=8, out_rows=2),
    OnlineSchedule(lanes=4, along=DEPTH, rows=2, block=2, keys=4, out_rows=2),
    OnlineSchedule(lanes=4, along=DEPTH, rows=1, block=1, keys=8, out_rows=1),
    OnlineSchedule(lanes=4, along=DEPTH, rows=2, block=2, keys=4, out_rows=2, parts=3),
)
SIZES = ((2, 5, 7), (1, 1, 9), (1, 11, 3), (1, 9, 1))  # heads, queries, keys


def sums_of(graph: Graph) -> OnlineSoftmax:
    sums = match_online_softmax(graph)
    assert sums is not None
    return sums


def drawn(graph: Graph, sizes: dict[str, int], rng: np.random.Generator) -> dict[str, Any]:
    def extent(axis: Any) -> int:
        return axis if isinstance(axis, int) else sizes[str(axis)]

    return {
        name: rng.standard_normal([extent(axis) for axis in graph.types[name].shape], dtype=np.float32)
        for name in graph.inputs
    }


@pytest.mark.parametrize(("options", "schedule"), [*product(OPTIONS, LITTLE)])
def test_every_schedule_computes_what_the_graph_says(options: dict[str, str], schedule: OnlineSchedule) -> None:
    graph, rng = attention(options), np.random.default_rng(0)
    plan = online_plan(sums_of(graph), schedule)
    for b, t, s in SIZES:
        arrays = drawn(graph, {"b": b, "h": 3, "t": t, "s": s}, rng)
        if "mask" in arrays:
            arrays["mask"][..., 0] = -np.inf
        expected = interpret(graph, arrays)[graph.outputs[0]]
        output, machine = run(plan, arrays)
        assert np.array_equal(np.isnan(output), np.isnan(expected))
        assert np.nanmax(np.abs(output - expected), initial=0.0) < 2e-6
        assert max(len(array) for name, array in machine.arrays.items() if " " in name) <= plan.scratch_bytes // 4


def test_bytes_are_those_of_the_machine_that_counts() -> None:
    graph, sizes = attention({"d": "8"}), {"b": 2, "t": 8, "s": 12}
    arrays = drawn(graph, sizes, np.random.default_rng(0))
    for schedule in LITTLE:
        plan = online_plan(sums_of(graph), schedule)
        _, machine = run(plan, arrays)
        loaded, stored = register_bytes(count_ops(plan, sizes))
        exact = schedule.along == ROWS and sizes["s"] % schedule.keys == 0
        for name in (*graph.inputs, plan.output):
            assert loaded.get(name, 0) == machine.loaded.get(name, 0) or not exact
            assert stored.get(name, 0) == machine.stored.get(name, 0)


def test_an_estimate_is_near_what_is_counted() -> None:
    sizes = {"b": 3, "t": 100, "s": 77}
    for causal in ("none", "end"):
        sums = sums_of(attention({"d": "16", "causal": causal}))
        for schedule in list(schedules(sums, 8))[::7]:
            plan = online_plan(sums, schedule)
            point = counted(plan, of_one_point(plan, sizes), 32)
            estimate, registers, (least, *_) = estimated(plan, sizes, (16_000, 1 << 20), point)
            top = count_ops(plan, sizes)
            loaded, stored = register_bytes(top)
            assert abs(estimate / cycles(top, Core(32)) - 1) < 0.02
            assert abs(registers / (sum(loaded.values()) + sum(stored.values())) - 1) < 0.02
            assert least == 4 * 3 * 16 * (100 + 77 + 77 + 100)


def grouped_query(g: GraphBuilder) -> str:
    """Several heads of queries share their keys, and the division comes after the second product."""
    b, h, t, s = (dimension(axis) for axis in "bhts")
    q, k, v = g.input("q", (b, t, h, 8)), g.input("k", (b, s, 8)), g.input("v", (b, s, 4))
    heads = g.add("transpose", q, order=(0, 2, 1, 3))
    x = g.map("add", g.add("contract", heads, k, labels="bhtd,bsd->bhts"), 1.0)
    e = g.map("exp", g.map("sub", x, g.add("reduce", x, how="max", axes=(3,), keepdims=True)))
    total = g.add("reduce", e, how="sum", axes=(3,), keepdims=True)
    return g.map("div", g.add("contract", e, v, labels="bhts,bse->bhte"), total)


def test_the_rule_asks_for_algebra_and_no_name() -> None:
    g = GraphBuilder()
    graph = g.finish(grouped_query(g))
    sums = sums_of(graph)
    assert [str(extent) for _, extent in (*sums.outer, sums.row, sums.key)] == ["b", "h", "t", "s"]
    arrays = drawn(graph, {"b": 2, "h": 3, "t": 5, "s": 7}, np.random.default_rng(0))
    for schedule in LITTLE:
        assert np.allclose(
            run(online_plan(sums, schedule), arrays)[0], interpret(graph, arrays)[graph.outputs[0]], atol=1e-6
        )


def another_maximum(g: GraphBuilder, x: str, v: str) -> str:
    """The exponent moves by the maximum of something else."""
    y = g.map("mul", x, 2.0)
    e = g.map("exp", g.map("sub", x, g.add("reduce", y, how="max", axes=(2,), keepdims=True)))
    return g.add(
        "contract", g.map("div", e, g.add("reduce", e, how="sum", axes=(2,), keepdims=True)), v, labels="bts,bsd->btd"
    )


def squared(g: GraphBuilder, x: str, v: str) -> str:
    """Weights enter twice."""
    w = softmax(g, x)
    return g.add("contract", g.map("mul", w, w), v, labels="bts,bsd->btd")


@pytest.mark.parametrize("make", [another_maximum, squared])
def test_what_is_no_online_sum_is_left_alone(make: Any) -> None:
    g = GraphBuilder()
    b, t, s = (dimension(axis) for axis in "bts")
    q, k, v = g.input("q", (b, t, 8)), g.input("k", (b, s, 8)), g.input("v", (b, s, 8))
    assert match_online_softmax(g.finish(make(g, g.add("contract", q, k, labels="btd,bsd->bts"), v))) is None


def test_every_point_of_the_space_has_a_name_that_is_read_back() -> None:
    op, family = Op.parse("attention:d=64,causal=end"), CpuOnline(ATTENTION)
    points = list(family.points(op, BIG_CORE))
    space = family.space(op, BIG_CORE)
    assert len({kernel.name for kernel in points}) == len(points) == len(space.points)
    assert {family.kernel_of(space.schedule(point), op) for point in space.points} == set(points)
    assert all(family._known_plan(kernel).scratch_bytes < 192 << 10 for kernel in points)
    assert not list(schedules(family._sums(family._of(Op.parse("attention:d=512"))), 16))[0].rows > 1


@pytest.mark.parametrize("spec", ["attention:d=20", "attention:d=8,causal=end,mask=full"])
def test_compiled_programs_agree_with_the_reference(spec: str) -> None:
    op, family, rng = Op.parse(spec), CpuOnline(ATTENTION), np.random.default_rng(0)
    chosen = [family.kernel_of(schedule, op) for schedule in (LITTLE[0], LITTLE[2])]
    library = compiled(family.schedule(kernel, kernel.name) for kernel in chosen)
    assert "AllocWorkspace" not in library.inspect_source("ll")  # a served call asks nobody for memory
    for (b, t, s), kernel in product(((2, 13, 9), (1, 1, 70), (3, 40, 5)), chosen):
        inputs = numerics.draw(op, Shape.of(b=b, t=t, s=s), rng)
        out = numerics.Guarded((b, t, op.meaning.output.shape(op.extents(Shape.of(b=b, t=t, s=s)), {})[-1]))
        views = [numerics.spaced(inputs[operand.name], 3) for operand in op.meaning.inputs]
        library[kernel.name](*(tvm_ffi.from_dlpack(array) for array in (*views, out.inner)))
        verdict = numerics.check(op, inputs, out.inner)
        assert not verdict.wrong and not out.touched(), f"{kernel.name} {b}x{t}x{s}: {verdict}"


def test_the_kinds_that_are_known_to_be_covered_are_those_of_the_rule():
    ruled = []
    for name, kind in KINDS.items():
        if (
            has_graph(kind)
            and match_online_softmax(graph_of(kind, {word: option.default for word, option in kind.options.items()}))
            is not None
        ):
            ruled.append(name)
    assert ruled == [name for name, kind in KINDS.items() if CpuOnline.covers(kind)] == list(COVERED)
