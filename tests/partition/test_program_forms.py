"""Forms of a model's groups: programs of the searched space beside plain loops, at any sizes and in parts."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cpu.compile import RUNTIME_SOURCES, object_code
from haotuner.backends.cpu.group_timer import AXES
from haotuner.backends.index import own_device
from haotuner.backends.toolchain import Toolchain
from haotuner.codegen.loops.c_math import head_of
from haotuner.graph import decompositions
from haotuner.graph.error_bounds import bounded, wide
from haotuner.graph.extents import dimension, evaluate, floor_division
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.host.processor import missing_flags
from haotuner.partition import costs
from haotuner.partition.costs import Prices, kernel_of
from haotuner.partition.greedy_fusion import Loops, Specialization
from haotuner.partition.group_times import NamedGroup
from haotuner.partition.profiled_costs import ProfiledPrices, TimedForm, WaitingGroup
from haotuner.partition.program_forms import ExpressedGroup, ProgramForm, ProgramSpace, prefers_program
from haotuner.partition.tasks import with_forms
from haotuner.spec.device import Device

B, T = dimension("b"), dimension("t")
REQUESTS = ({"b": 2, "t": 33}, {"b": 1, "t": 200})
SIZES = (*REQUESTS, {"b": 3, "t": 2}, {"b": 7, "t": 67})


def device(name: str = "cpu") -> Device:
    return own_device(name, measure=False, cache_dir=None)


def softmax() -> Graph:
    g = GraphBuilder()
    return g.finish(decompositions.softmax(g, g.input("x", (B, T)), 1))


def moments() -> Graph:
    """A centred tensor and, beside it, the mean of each row: two outputs."""
    g = GraphBuilder()
    x = g.input("x", (B, T))
    mean = g.map("div", g.add("reduce", x, how="sum", axes=(1,), keepdims=True), g.constant(np.float32(7)))
    return g.finish(g.map("exp", g.map("sub", x, mean)), mean)


def biased(half: Any = floor_division(T, 2)) -> Graph:  # noqa: B008
    """A bias along an extent that is no dimension but follows from one, then a function, transposed."""
    g = GraphBuilder()
    x, bias = g.input("x", (B, half)), g.input("bias", (half,))
    return g.finish(g.add("transpose", g.map("tanh", g.map("add", x, bias)), order=(1, 0)))


def elementwise() -> Graph:
    g = GraphBuilder()
    x, y = g.input("x", (B, T, 3)), g.input("y", (B, T, 3))
    return g.finish(g.map("mul", g.map("sigmoid", x), y))


GRAPHS: Mapping[str, Callable[[], Graph]] = {
    "softmax": softmax, "moments": moments, "biased": biased, "elementwise": elementwise,
}  # fmt: skip


def library(graphs: Mapping[str, Graph], cpu: Device, folder: Path) -> dict[str, tuple[NamedGroup, Any]]:
    """By name a group in its program, and its function."""
    space = ProgramSpace(cpu, REQUESTS)
    forms = {name: space.best(graph) for name, graph in graphs.items()}
    groups = {name: NamedGroup(graphs[name], form) for name, form in forms.items() if form is not None}
    assert groups.keys() == graphs.keys()
    text = [head_of([]), "#include <stdlib.h>", '#include "programs.h"', *(g.source(f"ht_{n}") for n, g in groups.items())]
    (folder / "groups.c").write_text("\n".join(text) + "\n")
    object_code([form.kernel for form in forms.values() if form is not None], cpu.arch, folder / "kernels.o")
    toolchain = Toolchain.find()
    sources = [folder / "groups.c", *(RUNTIME_SOURCES / name for name in ("programs.c", "tvm_ffi_stubs.c"))]
    words: list[str | Path] = [
        toolchain.compiler,
        "-std=c11",
        "-O1",
        "-fPIC",
        "-shared",
        "-I",
        RUNTIME_SOURCES,
        "-I",
        toolchain.include,
    ]
    subprocess.run([*words, *sources, folder / "kernels.o", "-o", folder / "groups.so", "-lm"], check=True)
    loaded = ctypes.CDLL(str(folder / "groups.so"))
    return {name: (group, getattr(loaded, f"ht_{name}")) for name, group in groups.items()}


def called(
    group: NamedGroup, function: Any, sizes: Mapping[str, int], inputs: Mapping[str, Any], parts: int, loop: int
) -> dict[str, Any]:
    """Outputs of a call that ``parts`` of a loop share."""
    graph, values = group.graph, group.sizes.values(sizes)
    shapes = {tensor: [evaluate(extent, sizes) for extent in graph.types[tensor].shape] for tensor in group.group.tensors}
    arrays = {t: inputs.get(t, np.full(shapes[t], np.nan, np.float32)) for t in group.group.tensors}
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays.values()))
    table = np.array(values, np.int64)
    function.argtypes = [ctypes.c_void_p] * 4
    extents = [values[line] for line in group.loops]
    for part in range(parts):
        low, high = np.zeros(AXES, np.int64), np.zeros(AXES, np.int64)
        high[: len(extents)] = extents
        if parts > 1:
            low[loop], high[loop] = extents[loop] * part // parts, extents[loop] * (part + 1) // parts
        if low[loop] < high[loop]:
            function(table.ctypes.data, ctypes.addressof(pointers), low.ctypes.data, high.ctypes.data)
    return {tensor: arrays[tensor] for tensor in graph.outputs}


@pytest.mark.parametrize("level", ["sse", "avx2", "avx512"])
def test_programs_of_groups_compute_what_the_graph_means_at_any_sizes_and_in_parts(level, tmp_path):
    cpu = device(f"cpu:{level}")
    if missing_flags(cpu.arch):
        pytest.skip(f"this host does not run {cpu.arch}")
    graphs = {name: graph() for name, graph in GRAPHS.items()}
    rng = np.random.default_rng(0)
    for name, (group, function) in library(graphs, cpu, tmp_path).items():
        graph, form = group.graph, group.form
        assert form is not None
        for sizes in SIZES:
            inputs = {
                tensor: rng.standard_normal([evaluate(e, sizes) for e in graph.types[tensor].shape], np.float32)
                for tensor in graph.inputs
            }
            meaning = wide(biased(T) if name == "biased" else graph)  # whose dimensions are the inputs' own
            exact = bounded(meaning, {tensor: array.astype(np.float64) for tensor, array in inputs.items()})
            outputs = called(group, function, sizes, inputs, 1, 0)
            for tensor, array in outputs.items():
                value, error = exact[tensor]
                assert (abs(array - value) <= error).all(), (name, sizes, tensor)
            for loop in range(len(group.loops)):
                if form.shared >> loop & 1:
                    for tensor, array in called(group, function, sizes, inputs, 3, loop).items():
                        np.testing.assert_array_equal(array, outputs[tensor], err_msg=f"{name} {sizes} loop {loop}")


def shared_loops(graph: Graph) -> int:
    form = ProgramSpace(device("cpu:avx2"), REQUESTS).best(graph)
    assert form is not None
    return form.shared


def test_threads_share_only_loops_of_which_parts_are_calls():
    assert shared_loops(softmax()) == 0b01, "rows, but never the axis that is summed"
    assert shared_loops(elementwise()) == 0b1, "all axes as one"
    assert shared_loops(moments()) == 0b01


def test_equal_groups_are_one_program_whatever_their_tensors_are_called():
    def scaled(name: str, axis: Any) -> Graph:
        g = GraphBuilder()
        return g.finish(g.map("exp", g.map("mul", g.input(name, (axis, 8)), 2.0)))

    space = ProgramSpace(device("cpu:avx2"), REQUESTS)
    first, second = space.best(scaled("x", T)), space.best(scaled("hidden_state", T))
    assert first is not None and second is not None and first.kernel == second.kernel
    assert first.tensors != second.tensors


def turned() -> Graph:
    g = GraphBuilder()
    return g.finish(g.add("transpose", g.map("tanh", g.input("x", (B, T))), order=(1, 0)))


EVERYWHERE = tuple({"b": b, "t": t} for b in (1, 4, 64) for t in (2, 30, 500))


@pytest.mark.parametrize(
    ("graph", "axis", "split"),
    [
        (softmax, "t", True),
        (softmax, "b", False),  # the bits of a row would depend on how many rows there are
        (moments, "b", False),
        (turned, "b", True),
        (turned, "t", True),
    ],
)
def test_a_second_program_serves_what_is_small_along_the_axis_of_the_folds(monkeypatch, graph, axis, split):
    """Two schedules of which one takes half where an axis is short, the other where it is long."""

    def expected(group: ExpressedGroup, kernels: Sequence[Any], cpu: Device, shapes: Sequence[Any]) -> Any:
        extents = {name: extent for name, extent in group._extents.items() if str(extent) == axis}
        short = np.array([all(shape[name] < 20 for name in extents) for shape in shapes])
        us = np.full((len(kernels), len(shapes)), 4.0)
        us[0], us[1] = np.where(short, 1.0, 2.0), np.where(short, 2.0, 1.0)
        return us

    monkeypatch.setattr(ExpressedGroup, "_expected", expected)
    form = ProgramSpace(device("cpu:avx2"), EVERYWHERE).best(graph())
    assert form is not None and (form.small is not None) == split
    if form.small is None:
        assert set(form.us) == {1.0, 2.0} and len(form.kernels) == 1
    else:
        assert set(form.us) == {1.0} and str(form.small.extent) == axis
        assert f"where {axis} is at most {form.small.most}" in form.words
        assert (4 if axis == "b" else 2) <= form.small.most < (64 if axis == "b" else 30)


def test_the_program_of_small_requests_runs_where_their_extent_is_at_most_its_bound(tmp_path):
    """Both functions of a table in C, called at sizes on either side of the bound."""
    table = """
#include "programs.h"
static int calls;
static int large(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) { calls += 100; return 0; }
static int small(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) { calls += 1; return 0; }
static const ht_program_tensor tensors[] = {{1, 2, 32}};
static const int32_t shapes[] = {1};
static const int8_t loops[] = {-1};
static const ht_program both = {large, tensors, shapes, loops, small, 8, 1}, single = {large, tensors, shapes, loops};
int run(int64_t size, int alone) {
  const int64_t s[] = {3, size}, none[1] = {0};
  float x[16];
  void* t[] = {x};
  calls = 0;
  return ht_program_run(alone ? &single : &both, 1, s, t, none, none) + calls;
}
"""
    (tmp_path / "table.c").write_text(table)
    toolchain = Toolchain.find()
    words = [toolchain.compiler, "-std=c11", "-fPIC", "-shared", "-I", str(RUNTIME_SOURCES), "-I", str(toolchain.include)]
    words += [str(tmp_path / "table.c"), *(str(RUNTIME_SOURCES / name) for name in ("programs.c", "tvm_ffi_stubs.c"))]
    subprocess.run([*words, "-o", str(tmp_path / "table.so")], check=True)
    run = ctypes.CDLL(str(tmp_path / "table.so")).run
    run.argtypes = [ctypes.c_int64, ctypes.c_int]
    assert [run(size, 0) for size in (1, 8, 9, 16)] == [1, 1, 100, 100]
    assert [run(size, 1) for size in (1, 16)] == [100, 100]


def without_program() -> dict[str, Graph]:
    graphs = {}
    g = GraphBuilder()
    graphs["whole numbers"] = g.finish(g.map("add", g.input("x", (B, T), "int64"), 1))
    g = GraphBuilder()
    graphs["truths"] = g.finish(g.map("less", g.input("x", (B, T)), 0.0))
    g = GraphBuilder()
    graphs["no dimension"] = g.finish(g.map("exp", g.input("x", (3, 4))))
    g = GraphBuilder()
    graphs["a scalar"] = g.finish(g.add("reduce", g.input("x", (B,)), how="sum", axes=(0,)))
    g = GraphBuilder()
    x = g.input("x", (T, T))
    graphs["a dimension twice"] = g.finish(g.add("reduce", x, how="max", axes=(1,)))
    return graphs


@pytest.mark.parametrize("name", without_program())
def test_what_the_space_cannot_express_stays_plain_loops(name):
    assert ProgramSpace(device("cpu:avx2"), REQUESTS).best(without_program()[name]) is None


def test_without_times_programs_are_made_of_what_is_expected_to_take_longest(monkeypatch):
    monkeypatch.setattr(costs, "MOST_PROGRAMS", 1)
    cpu = device("cpu:avx2")
    small, large = softmax(), elementwise()
    prices = Prices(REQUESTS, programs=ProgramSpace(cpu, REQUESTS))
    us = {graph.outputs[0]: prices.loops_us(graph) for graph in (small, large)}
    monkeypatch.setattr(costs, "LEAST_US", 0.0)
    forms = prices.forms_of([small, large])
    assert [max(us, key=us.__getitem__)] == [kernel[0][0] for kernel in forms]
    monkeypatch.setattr(costs, "LEAST_US", 1e9)
    assert prices.forms_of([small, large]) == {}
    assert Prices(REQUESTS).forms_of([small, large]) == {}, "without a device no program is made"


def test_a_plan_says_the_form_of_each_group(monkeypatch):
    monkeypatch.setattr(costs, "LEAST_US", 0.0)
    prices = Prices(REQUESTS, programs=ProgramSpace(device("cpu:avx2"), REQUESTS))
    ((step,),) = (way.steps for way in with_forms([Specialization((Loops(softmax()),))], prices))
    assert isinstance(step, Loops) and isinstance(step.form, ProgramForm)
    assert step.form.words.startswith("generated, schedule vl8_")


@pytest.mark.parametrize(("mode", "program"), [("reflect", True), ("constant", False)])
def test_what_is_reflected_is_a_program(mode, program):
    g = GraphBuilder()
    value: dict[str, Any] = {"value": 0.0} if mode == "constant" else {}
    padded = g.add("pad", g.input("x", (B, T)), before=(0, 1), after=(0, 1), mode=mode, **value)
    assert prefers_program(g.finish(g.map("max", padded, 0.0))) == program
    g = GraphBuilder()
    joined = g.add("concat", g.input("x", (B, T)), g.input("y", (B, T)), axis=0)
    assert prefers_program(g.finish(g.map("tanh", joined))) and not prefers_program(g.finish(g.map("neg", joined)))


def test_plain_loops_keep_what_they_do_better():
    g = GraphBuilder()
    x = g.input("x", (B, T))
    centred = g.map("sub", x, g.add("reduce", x, how="sum", axes=(1,), keepdims=True))
    assert not prefers_program(g.finish(g.add("transpose", centred, order=(1, 0))))
    assert prefers_program(softmax()) and prefers_program(biased())
    g = GraphBuilder()
    assert not prefers_program(g.finish(g.map("add", g.input("x", (B, T)), 1.0))), "a compiler's loops are as fast"


def transposed(order: tuple[int, ...], bias: tuple[int, ...] = ()) -> Graph:
    g = GraphBuilder()
    x = g.input("x", (B, 24, 40))
    value = g.map("add", x, g.input("bias", bias)) if bias else g.map("neg", x)
    return g.finish(g.add("transpose", value, order=order))


def test_transposes_are_programs_where_squares_turn_or_rows_stay() -> None:
    assert prefers_program(transposed((0, 2, 1))) and prefers_program(transposed((1, 0, 2)))
    assert not prefers_program(transposed((0, 2, 1), bias=(24, 1))), "the bias has no neighbours along the lanes"


def test_a_program_that_can_turn_squares_does() -> None:
    form = ProgramSpace(device("cpu:avx2"), [{"b": 1}, {"b": 50}]).best(transposed((0, 2, 1)))
    assert form is not None and all("_tr" in kernel.name for kernel in form.kernels)


class FakeTimes(ProfiledPrices):
    """Prices whose kernels take what a table says by the first word of their names, in us."""

    table: Mapping[str, float] = {}
    built: list[str]

    def _answers(self, groups: Sequence[NamedGroup], tasks: Sequence[Mapping[str, Any]]) -> list[str]:
        self.built = [*getattr(self, "built", []), *(group.name.partition("_")[0] for group in groups)]
        words = [groups[task["group"]].name.partition("_")[0] for task in tasks]
        rows = zip(tasks, words, strict=True)
        return [json.dumps([task["group"], task["request"], self.table[word]]) for task, word in rows]


@pytest.mark.parametrize(
    ("table", "form", "built"),
    [
        ({"loops": 50.0, "program": 20.0}, True, ["loops", "program"]),
        ({"loops": 50.0, "program": 60.0}, False, ["loops", "program"]),
        ({"loops": 1.0}, False, ["loops"]),  # too short for a second of compiling
    ],
    ids=["the program is faster", "plain loops are faster", "no program is built"],
)
def test_a_group_counts_with_the_form_that_took_less(monkeypatch, table, form, built):
    monkeypatch.setattr(FakeTimes, "table", table)
    prices, graph = FakeTimes(REQUESTS, 60.0, programs=ProgramSpace(device("cpu:avx2"), REQUESTS)), softmax()
    assert prices.measure([graph])
    assert prices.built == built
    least = prices.rates.step_us + min(table.values())
    assert prices.each_us(graph) == pytest.approx([least, least])
    assert (kernel_of(graph) in prices.forms_of([graph])) == form
    assert not prices.measure([graph]), "both forms have a time"


def test_without_time_for_its_program_a_group_counts_with_plain_loops_until_there_is_time_again(monkeypatch):
    monkeypatch.setattr(FakeTimes, "table", {"loops": 50.0, "program": 20.0})
    prices, graph = FakeTimes(REQUESTS, 60.0, programs=ProgramSpace(device("cpu:avx2"), REQUESTS)), softmax()
    answers = FakeTimes._answers

    def last(self: FakeTimes, *arguments: Any) -> list[str]:
        self.allow(0.0)
        return answers(self, *arguments)

    monkeypatch.setattr(FakeTimes, "_answers", last)
    prices.measure([graph])
    assert prices.each_us(graph) == pytest.approx([50.0 + prices.rates.step_us] * 2) and prices.built == ["loops"]
    monkeypatch.setattr(FakeTimes, "_answers", answers)
    prices.allow(60.0)
    assert prices.measure([graph]) and prices.built == ["loops", "program"]
    assert prices.each_us(graph) == pytest.approx([20.0 + prices.rates.step_us] * 2)


def test_both_forms_are_built_and_timed_on_this_host():
    prices, graph = ProfiledPrices(REQUESTS, 120.0, programs=ProgramSpace(device(), REQUESTS)), softmax()
    waiting = WaitingGroup(kernel_of(graph), graph, REQUESTS, prices.expected_us(graph))
    waiting.forms.append(TimedForm.of(graph, REQUESTS, prices.programs.best(graph) if prices.programs else None))
    prices._time(waiting.forms)
    assert all(len(prices._times(form)) == len(REQUESTS) for form in waiting.forms)
