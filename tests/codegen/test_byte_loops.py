"""Loops that round to bytes and back: their C becomes vectors, and NaN stays what it was."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cpu.pack_source import GROUP_FLAGS
from haotuner.codegen.loops.c_loops import loops_of
from haotuner.codegen.loops.c_math import head_of
from haotuner.codegen.loops.loop_nest import collapsed
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.partition import ilp_partition as exact_module
from haotuner.partition.costs import Prices
from haotuner.partition.executable import executable_specializations
from haotuner.partition.greedy_fusion import Alias, Greedy, Loops, Specialization
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.multi_output_fusion import plain
from haotuner.partition.window_ilp import solve
from haotuner.partition.windows import Windows


def rounded(times: int) -> Graph:
    """To bytes and back, again and again, bytes at the end."""
    g = GraphBuilder()
    x = g.input("x", (dimension("n"),))
    for index in range(times):
        quantized = g.map("add", g.map("round", g.map("div", x, 0.1 + index)), 100.0)
        stored = g.add("cast", g.map("min", g.map("max", quantized, 0.0), 255.0), dtype="uint8")
        x = g.map("mul", g.map("sub", g.add("cast", stored, dtype="fp32"), 100.0), 0.1 + index)
    return g.finish(stored)


def weighed(layers: int = 1) -> Graph:
    """A softmax from bytes to bytes, and behind a product one of bytes of another scale."""
    g = GraphBuilder()
    x = g.input("x", (dimension("n"), 40), "uint8")
    for index in range(layers):
        real = g.map("mul", g.map("sub", g.add("cast", x, dtype="fp32"), 9.0 + index), 0.1 + index)
        rounded = g.map("round", g.map("div", decompositions.softmax(g, real), 0.004))
        x = g.add("cast", g.map("min", g.map("max", rounded, 0.0), 255.0), dtype="uint8")
        if index < layers - 1:
            weight = g.constant(np.full((40, 40), 1 + index, np.int32))
            sums = g.add("contract", g.add("cast", x, dtype="int32"), weight, labels="bk,kn->bn")
            near = g.map("round", g.map("div", g.map("mul", g.add("cast", sums, dtype="fp32"), 0.01), 0.02))
            x = g.add("cast", g.map("min", g.map("max", near, 0.0), 255.0), dtype="uint8")
    return g.finish(x)


def test_layers_that_differ_in_scales_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[int] = []

    def counted(candidates: Any, *others: Any) -> Any:
        solved.append(len(candidates))
        return solve(candidates, *others)

    monkeypatch.setattr(exact_module, "solve", counted)
    exact = IlpPartitioner(weighed(3), Prices([{"n": 200}, {"n": 3}]))
    assert len(exact.windows) == 3 and exact.steps
    assert len(solved) == 1, "one program, whose plan the other layers have, too"


def test_tensors_on_the_way_to_bytes_are_in_memory_in_no_better_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan() -> tuple[float, int]:
        exact = IlpPartitioner(weighed(), Prices([{"n": 200}, {"n": 3}]))
        assert exact.steps and exact.report.status == "optimal"
        return exact.report.chosen_us, exact.report.candidates

    us, candidates = plan()
    monkeypatch.setattr(Windows, "_passing", frozenset())
    every_us, every = plan()
    assert us == every_us and candidates < every / 2


def to_bytes(g: GraphBuilder, x: str) -> str:
    return g.add("cast", g.map("min", g.map("max", g.map("round", g.map("div", x, 0.1)), 0.0), 255.0), dtype="uint8")


def test_heads_are_put_side_by_side_row_by_row() -> None:
    """Rows of 64 bytes are written as they are read; that they are one row of 384 is said of the memory alone."""
    g, n = GraphBuilder(), dimension("n")
    turned = g.add("transpose", to_bytes(g, g.input("x", (n, 6, 9, 64))), order=(0, 2, 1, 3))
    whole = g.add("reshape", turned, shape=(n, 9, 384))
    weight = g.constant(np.ones((384, 8), np.int32))
    sums = g.add("contract", g.add("cast", whole, dtype="int32"), weight, labels="btk,kn->btn")
    steps = Greedy(g.finish(g.map("mul", g.add("cast", sums, dtype="fp32"), 0.1))).steps
    assert [step.output for step in steps if isinstance(step, Loops)] == [turned]
    assert [(step.tensor, step.of) for step in steps if isinstance(step, Alias)] == [(whole, turned)]


@pytest.mark.parametrize(("channels", "groups"), [(3, 2), (1, 1), (32, 1)])
def test_short_rows_are_turned_when_they_are_bytes(channels: int, groups: int) -> None:
    g = GraphBuilder()
    x = g.input("x", (dimension("n"), channels, 20, 30))
    graph = g.finish(g.add("transpose", to_bytes(g, x), order=(0, 2, 3, 1)))
    assert len(Greedy(graph).steps) == groups


def test_what_is_looked_up_has_loops_of_its_own() -> None:
    g = GraphBuilder()
    x = to_bytes(g, g.input("x", (dimension("n"),)))
    gathered = g.add("gather", g.input("table", (256,), "uint8"), x, axis=0)
    graph = g.finish(gathered, x)
    assert not plain(graph) and plain(g.finish(x))


@pytest.mark.parametrize("turned", [False, True])
def test_tensors_of_one_order_are_one_row(turned: bool, tmp_path: Path) -> None:
    g, n = GraphBuilder(), dimension("n")
    x, y = g.input("x", (n, 5, 24)), g.input("y", (n, 5, 24))
    if turned:
        y = g.add("transpose", g.input("z", (5, n, 24)), order=(1, 0, 2))
    graph = g.finish(to_bytes(g, g.map("add", x, y)))
    collapsed_graph = collapsed(graph)
    assert (collapsed_graph is graph) == turned and [
        str(extent) for extent in collapsed_graph.types[graph.outputs[0]].shape
    ] == (["n", "5", "24"] if turned else ["120*n"])
    if not turned:
        (function,) = executable_specializations("m", graph, [Specialization(tuple(Greedy(graph).steps))]).functions
        assert (len(function.extents), [len(shape) for shape in function.shapes]) == (1, [3]), (
            "a loop; a tensor of three axes"
        )
        library, _ = built(collapsed_graph, tmp_path)
        draw, group = np.random.default_rng(0), loops_of(collapsed_graph, "made", lambda extent: 0)
        feeds = {name: draw.standard_normal((3, 5, 24)).astype(np.float32) for name in "xy"}
        (expected,) = interpret(graph, feeds).values()
        out = np.empty_like(expected)
        tensors = (ctypes.c_void_p * 3)(*({**feeds, graph.outputs[0]: out}[name].ctypes.data for name in group.tensors))
        sizes, low, high = (np.array([value], np.int64) for value in (360, 0, 360))
        places = [ctypes.c_void_p(array.ctypes.data) for array in (sizes, low, high)]
        library.made(places[0], tensors, *places[1:])
        np.testing.assert_array_equal(out, expected)


def clipped() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (dimension("n"),))
    return g.finish(g.map("min", g.map("max", x, -1.5), 2.0))


def built(graph: Graph, folder: Path) -> tuple[ctypes.CDLL, str]:
    group = loops_of(graph, "made", lambda extent: 0)
    source = folder / "made.c"
    source.write_text(head_of([group.source]) + group.source.replace("static void", "\nvoid", 1))
    flags = ("-O3", "-march=x86-64-v3", *GROUP_FLAGS, "-fopt-info-vec-optimized", "-shared", "-fPIC")
    command = ["cc", *flags, str(source), "-lm", "-o", str(folder / "made.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return ctypes.CDLL(str(folder / "made.so")), done.stderr


def run(library: ctypes.CDLL, x: Any, out: Any) -> None:
    sizes, low, high = (np.array([value], np.int64) for value in (x.size, 0, x.size))
    tensors = (ctypes.c_void_p * 2)(x.ctypes.data, out.ctypes.data)
    places = [ctypes.c_void_p(array.ctypes.data) for array in (sizes, low, high)]
    library.made(places[0], tensors, *places[1:])


@pytest.mark.parametrize("times", [1, 4])
def test_rounding_to_bytes_and_back_is_done_in_vectors(times: int, tmp_path: Path) -> None:
    graph = rounded(times)
    library, remarks = built(graph, tmp_path)
    assert "loop vectorized using 32 byte vectors" in remarks, remarks
    x = np.linspace(-30, 30, 1003, dtype=np.float32)
    out = np.empty(x.size, np.uint8)
    run(library, x, out)
    (expected,) = interpret(graph, {"x": x}).values()
    np.testing.assert_array_equal(out, expected)


def test_bounds_that_are_constants_keep_nan_and_zeros(tmp_path: Path) -> None:
    library, _ = built(clipped(), tmp_path)
    x = np.array([np.nan, -np.inf, np.inf, -1.5, -1.6, 2.0, 2.1, -0.0, 0.0, 1.0] * 3, np.float32)
    out = np.empty_like(x)
    run(library, x, out)
    (expected,) = interpret(clipped(), {"x": x}).values()
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_byte_is_looked_up_as_it_is(dtype: str, tmp_path: Path) -> None:
    """Every byte has a row: an unsigned one's place is not asked for, one with a sign counts from the end."""
    g = GraphBuilder()
    x = g.input("x", (dimension("n"),), dtype)
    table = g.input("table", (256,), dtype)
    graph = g.finish(g.add("gather", table, x, axis=0))
    library, _ = built(graph, tmp_path)
    assert ("?" in loops_of(graph, "made", lambda extent: 0).source) == (dtype == "int8")
    draw = np.random.default_rng(0)
    rows, places = (draw.permutation(256).astype(np.uint8).view(dtype) for _ in range(2))
    out = np.empty(256, dtype)
    sizes, low, high = (np.array([value], np.int64) for value in (256, 0, 256))
    by_name = {"x": places, "table": rows, graph.outputs[0]: out}
    group = loops_of(graph, "made", lambda extent: 0)
    tensors = (ctypes.c_void_p * 3)(*(by_name[name].ctypes.data for name in group.tensors))
    library.made(*(ctypes.c_void_p(array.ctypes.data) for array in (sizes,)), tensors,
                 *(ctypes.c_void_p(array.ctypes.data) for array in (low, high)))  # fmt: skip
    (expected,) = interpret(graph, {"x": places, "table": rows}).values()
    np.testing.assert_array_equal(out, expected)
