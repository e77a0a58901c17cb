"""Plain loops, compiled: padded windows whose middle asks no questions, reshapes, and any part of the output's loops."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cpu.compile import RUNTIME_SOURCES
from haotuner.backends.cpu.pack_source import GROUP_FLAGS
from haotuner.backends.toolchain import Toolchain
from haotuner.codegen.expressions import Apply, Fold, Load, Variable, arithmetic, index, parts
from haotuner.codegen.loops.c_loops import loops_of
from haotuner.codegen.loops.c_math import head_of
from haotuner.codegen.loops.concat_loops import interleaved_part, interleaved_parts, pieces
from haotuner.codegen.loops.loop_nest import Group, elements_of
from haotuner.codegen.loops.loop_partition import clipped, interior_of
from haotuner.codegen.loops.recompute import recomputed_reductions
from haotuner.codegen.loops.strided_reads import BLOCK, ROWS, strided_loads
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension, evaluate
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret

B, H, W = (dimension(name) for name in "bhw")
INFINITY = float("inf")


def padded(g: GraphBuilder, x: str, before: tuple[int, ...], after: tuple[int, ...], **how: Any) -> str:
    return g.add("pad", x, before=(0, 0, *before), after=(0, 0, *after), **({"mode": "constant"} | how))


def windows(g: GraphBuilder, x: str, sizes: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]) -> str:
    return g.add("window", x, axes=(2, 3), sizes=sizes, strides=strides, dilations=dilations)


def max_pool(g: GraphBuilder, x: str) -> str:
    taps = windows(g, padded(g, x, (1, 1), (1, 1), value=-INFINITY), (3, 3), (2, 2), (1, 1))
    return g.add("reduce", taps, how="max", axes=(4, 5), keepdims=False)


def wide_pads(g: GraphBuilder, x: str) -> str:
    taps = windows(g, padded(g, x, (3, 5), (2, 4), value=0.0), (2, 3), (1, 3), (2, 2))
    return g.map("mul", g.add("reduce", taps, how="sum", axes=(4, 5), keepdims=False), 0.5)


def number_around(g: GraphBuilder, x: str) -> str:
    return g.map("exp", padded(g, x, (0, 2), (1, 3), value=-1.5))


def twice(g: GraphBuilder, x: str) -> str:
    return padded(g, padded(g, x, (1, 1), (1, 1), value=2.0), (0, 2), (0, 1), value=-2.0)


def mirrored(g: GraphBuilder, x: str) -> str:
    """A pad that asks nothing inside of one that does; the mirror needs two columns."""
    return padded(g, padded(g, x, (0, 1), (0, 1), mode="edge"), (1, 1), (1, 1), value=0.0)


def crop(g: GraphBuilder, x: str) -> str:
    return padded(g, x, (0, -1), (0, 1), value=3.0)


def group_norm(g: GraphBuilder, x: str) -> str:
    whole = g.add("reshape", g.map("mul", x, 2.0), shape=(B, 2, 2 * H * W))
    centred = g.map("sub", whole, decompositions.mean(g, whole, (2,)))
    return g.add("reshape", centred, shape=(B, 4, H, W))


def beside(g: GraphBuilder, x: str) -> str:
    return g.add("transpose", g.add("reshape", x, shape=(B, 4, H * W)), order=(0, 2, 1))


def interleaved(g: GraphBuilder, x: str) -> str:
    """What a transposed convolution that moves by two leaves to do."""
    apart = g.add("transpose", g.add("reshape", x, shape=(B, 1, 2, 2, H, W)), order=(0, 1, 4, 2, 5, 3))
    whole = g.add("reshape", apart, shape=(B, 1, 2 * H, 2 * W))
    return g.map("exp", whole)


def interleaved_from_one_on(g: GraphBuilder, x: str) -> str:
    whole = interleaved(g, x)
    return g.add("slice", whole, axes=(2, 3), starts=(1, 1), stops=(2 * H, 2 * W), steps=(1, 1))


def softmax(g: GraphBuilder, x: str) -> str:
    return decompositions.softmax(g, x)


def mean_of_tanh(g: GraphBuilder, x: str) -> str:
    """Two sums over a row, of which one has dear terms."""
    activation = g.map("tanh", g.map("sub", x, g.add("reduce", x, how="sum", axes=(3,), keepdims=True)))
    return g.map("sub", activation, g.add("reduce", activation, how="sum", axes=(3,), keepdims=True))


def gated(g: GraphBuilder, x: str) -> str:
    """x is read for an element again: nothing may lie where it is."""
    return g.map("mul", x, decompositions.softmax(g, x))


def rows_of_one(g: GraphBuilder, x: str) -> str:
    """An axis of one row, which no load asks for."""
    return decompositions.softmax(g, g.add("reshape", x, shape=(B * 4 * H, 1, W)))


def across_rows(g: GraphBuilder, x: str) -> str:
    e = g.map("exp", x)
    return g.map("div", e, g.add("reduce", e, how="sum", axes=(2,), keepdims=True))


def column_sums(g: GraphBuilder, x: str) -> str:
    return g.add("reduce", x, how="sum", axes=(2,), keepdims=False)


def turned_plane(g: GraphBuilder, x: str) -> str:
    """A plane turned, beside one that is read as it lies."""
    return g.map("sub", g.map("exp", g.add("transpose", x, order=(0, 1, 3, 2))), g.add("reshape", x, shape=(B, 4, W, H)))


def turned_apart(g: GraphBuilder, x: str) -> str:
    """The axis along which neighbours lie is not the one before the last."""
    return g.map("mul", g.add("transpose", x, order=(0, 3, 1, 2)), 0.5)


def turned_channels(g: GraphBuilder, x: str) -> str:
    """Pixels as rows, as after a convolution with channels first; a number for each channel."""
    wide = g.add("reshape", x, shape=(B, 1, 4 * H, W))
    return g.map("max", g.add("transpose", wide, order=(0, 3, 1, 2)), 0.0)


def whole_numbers(g: GraphBuilder, x: str) -> str:
    """By 0, and the least number by -1, at which a processor stops; products wrap around."""
    dividend, divisor = (g.add("cast", g.map("mul", x, scale), dtype="int64") for scale in (5.0, 1.5))
    dividend = g.map("select", g.map("greater", x, 0.7), g.constant(np.array(-(2**63))), dividend)
    mixed = g.map("mul", dividend, g.constant(np.array(2**62 + 3)))
    for function in ("floordiv", "mod", "fmod"):
        mixed = g.map("bitxor", mixed, g.map(function, dividend, divisor))
    return g.add("cast", g.map("mod", mixed, g.constant(np.array(997))), dtype="fp32")


def one_behind_another(g: GraphBuilder, x: str) -> str:
    """Rows of fixed extent, made of three tensors' rows and of one that has none."""
    last = g.add("transpose", x, order=(0, 2, 3, 1))
    parts = [g.add("slice", last, axes=(3,), starts=(a,), stops=(b,), steps=(1,)) for a, b in ((1, 4), (4, 4))]
    return g.map("exp", g.add("concat", g.map("neg", last), parts[0], parts[1], last, axis=3))


CASES: Mapping[str, Callable[[GraphBuilder, str], str]] = {
    build.__name__: build
    for build in (max_pool, wide_pads, number_around, twice, mirrored, crop, group_norm, beside, interleaved,
                  interleaved_from_one_on, softmax, mean_of_tanh, gated, rows_of_one, across_rows, column_sums, turned_plane,
                  turned_apart, turned_channels, whole_numbers, one_behind_another)
}  # fmt: skip
ASKED = ("max_pool", "wide_pads", "number_around", "twice", "mirrored", "crop")
SHAPES = ((1, 1, 1), (2, 1, 3), (1, 4, 2), (2, 7, 37), (1, 5, 64), (1, BLOCK + 6, ROWS + 2))


def graph_of(name: str) -> Graph:
    g = GraphBuilder()
    return g.finish(CASES[name](g, g.input("x", (B, 4, H, W))))


def of(graph: Graph, name: str) -> tuple[Group, list[Any]]:
    """The group, and its extents in the order of its sizes."""
    extents: list[Any] = []

    def size(extent: Any) -> int:
        if extent not in extents:
            extents.append(extent)
        return extents.index(extent)

    return loops_of(graph, name, size), extents


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, list[Any]]]:
    folder: Path = tmp_path_factory.mktemp("loops")
    groups = {name: of(graph_of(name), f"ht_{name}") for name in CASES}
    text = "\n".join(group.source.replace("static void", "void", 1) for group, _ in groups.values())
    source, library = folder / "g.c", folder / "g.so"
    source.write_text(f"{head_of([text])}\n{text}\n")
    flags = ("-std=c11", "-O2", "-march=native", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-fPIC", "-shared")
    command = [
        Toolchain.find().compiler,
        *flags,
        *GROUP_FLAGS,
        "-I",
        str(RUNTIME_SOURCES),
        str(source),
        "-o",
        str(library),
        "-lm",
    ]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(library)), {name: extents for name, (_, extents) in groups.items()}


@pytest.mark.parametrize("name", CASES)
def test_loops_compute_what_the_graph_says(name: str, compiled: tuple[Any, dict[str, list[Any]]]) -> None:
    library, every = compiled
    graph, draw = graph_of(name), np.random.default_rng(3)
    for b, h, w in SHAPES:
        dims = {"b": b, "h": h, "w": w}
        x = draw.standard_normal((b, 4, h, w)).astype(np.float32)
        x[..., 0] = np.where(draw.random(x[..., 0].shape) < 0.1, np.nan, x[..., 0]) if name == "max_pool" else x[..., 0]
        (expected,) = interpret(graph, {"x": x}).values()
        output = np.full(expected.shape, 77.0, np.float32)
        sizes = (ctypes.c_int64 * 64)(*(evaluate(extent, dims) for extent in every[name]))
        tensors = (ctypes.c_void_p * 2)(x.ctypes.data, output.ctypes.data)
        for axis in range(expected.ndim):  # in two parts, as threads share it
            for low, high in ((0, expected.shape[axis] // 2), (expected.shape[axis] // 2, expected.shape[axis])):
                bounds = [(0, extent) for extent in expected.shape]
                bounds[axis] = low, high
                lo, hi = ((ctypes.c_int64 * expected.ndim)(*side) for side in zip(*bounds, strict=True))
                getattr(library, f"ht_{name}")(sizes, tensors, lo, hi)
            np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5, err_msg=str(dims))
            halves = output.copy()
            output[:] = 77.0
        lo, hi = (ctypes.c_int64 * expected.ndim)(), (ctypes.c_int64 * expected.ndim)(*expected.shape)
        getattr(library, f"ht_{name}")(sizes, tensors, lo, hi)
        np.testing.assert_allclose(output, halves, rtol=1e-6, atol=1e-6, err_msg=str(dims))


def test_a_sum_of_many_terms_loses_no_digits(compiled: tuple[Any, dict[str, list[Any]]]) -> None:
    """One sum behind the other down 60,000 rows would be 10 units of fp32 and more away in many columns."""
    library, every = compiled
    x = np.random.default_rng(4).random((1, 4, 60_000, 8), np.float32)
    output, dims = np.zeros((1, 4, 8), np.float32), {"b": 1, "h": x.shape[2], "w": 8}
    sizes = (ctypes.c_int64 * 64)(*(evaluate(extent, dims) for extent in every["column_sums"]))
    tensors = (ctypes.c_void_p * 2)(x.ctypes.data, output.ctypes.data)
    library.ht_column_sums(sizes, tensors, (ctypes.c_int64 * 3)(), (ctypes.c_int64 * 3)(*output.shape))
    np.testing.assert_allclose(output, x.sum(axis=2, dtype=np.float64), rtol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_middle_of_a_row_asks_nothing(name: str) -> None:
    graph = graph_of(name)
    elements = elements_of(graph)
    variables, value = elements.variables, elements.value
    interior = interior_of(value, variables[-1], graph.types[graph.outputs[0]].shape[-1])
    assert (interior is not None) == (name in ASKED)
    if interior is not None and name not in (
        "twice",
        "mirrored",
    ):  # the inner pad's index is what the outer one clamps it to
        guards = {part.function for part in parts(interior.value) if isinstance(part, Apply)} & {
            "select",
            "less_equal",
            "and",
        }
        assert not guards and not any(part.nonempty for part in parts(interior.value) if isinstance(part, Load))


@pytest.mark.parametrize("name", CASES)
def test_woven_rows_divide_nothing_but_at_their_ends(name: str) -> None:
    graph = graph_of(name)
    elements = elements_of(graph)
    variables, value = elements.variables, elements.value
    count = interleaved_parts(value, variables[-1])
    assert count == (2 if name.startswith("interleaved") else None)
    for rest in range(count or 0):
        subexpressions = parts(interleaved_part(value, variables[-1], count or 0, rest, Variable("j")))
        loads = [load for load in subexpressions if isinstance(load, Load)]
        assert all(load.indices[-1] in (Variable("j"), arithmetic("add", Variable("j"), index(1))) for load in loads)


@pytest.mark.parametrize("name", CASES)
def test_rows_behind_one_another_are_read_as_they_lie(name: str) -> None:
    elements, shape = elements_of(graph_of(name)), graph_of(name).types[graph_of(name).outputs[0]].shape
    last = elements.variables[-1]
    segments = pieces(elements.value, last, shape[-1])
    assert [(segment.first, segment.end) for segment in segments] == (
        [(0, 4), (4, 7), (7, 11)] if name == "one_behind_another" else []
    )
    for segment in segments:
        assert not any(
            isinstance(part, Apply) and part.function in ("select", "min", "max") for part in parts(segment.value)
        )
    assert pieces(elements.value, last, H) == [], "a row of any extent"


def test_chosen_elements_are_summed_a_block_of_columns_at_a_time() -> None:
    g = GraphBuilder()
    x, chosen, factors = g.input("x", (B, 4, W)), g.input("chosen", (3, H), "int64"), g.input("factors", (3, H))
    weighted = g.map("mul", g.add("gather", x, chosen, axis=2, bounded=True), factors)
    source = of(g.finish(g.add("reduce", weighted, how="sum", axes=(2,), keepdims=False)), "ht_one")[0].source
    assert "_block" in source, "indices and factors lie side by side along the columns"
    assert "< 0LL" not in source, "nobody asks whether a bounded index is negative"


@pytest.mark.parametrize("name", ("max_pool", "wide_pads"))
def test_reductions_leave_out_what_a_pad_adds(name: str) -> None:
    folds = [part for part in parts(elements_of(graph_of(name)).value) if isinstance(part, Fold)]
    (clipped_fold,) = (clipped(fold) for fold in folds)
    assert clipped_fold is not None and not any(
        isinstance(part, Apply) and part.function == "select" for part in parts(clipped_fold.value)
    )
    g = GraphBuilder()
    counted = padded(g, g.input("x", (B, 4, H, W)), (1, 1), (1, 1), value=1.0)  # ones around count in a sum
    graph = g.finish(g.add("reduce", windows(g, counted, (3, 3), (1, 1), (1, 1)), how="sum", axes=(4, 5), keepdims=False))
    assert [clipped(part) for part in parts(elements_of(graph).value) if isinstance(part, Fold)] == [None]


def test_a_reduction_of_many_channels_is_not_repeated_for_each() -> None:
    assert recomputed_reductions(graph_of("group_norm")) is not None


@pytest.mark.parametrize(("shape", "extents"), [((B, 384), None), ((1, 384), ()), ((1, W), (1,)), ((B, 384), (1, 1))])
def test_a_reduction_of_a_whole_tensor_is_not_repeated_by_every_thread(shape: Any, extents: Any) -> None:
    """Of a short one, and of one that nothing but a number is made of, that is no loss."""
    g = GraphBuilder()
    x = g.input("x", shape)
    most = g.add("reduce", x, how="max", axes=(0, 1), keepdims=False)
    whole = g.map("mul", most, 2.0) if extents == () else g.map("div", x, most) if extents is None else None
    graph = g.finish(whole or g.add("reshape", g.map("mul", most, 2.0), shape=extents))
    assert recomputed_reductions(graph) == (most if extents is None else None)


@pytest.mark.parametrize(
    ("name", "stored"),
    [("softmax", True), ("mean_of_tanh", True), ("gated", False), ("rows_of_one", True), ("across_rows", False)],
)
def test_dear_terms_of_a_row_s_sum_wait_in_the_output(name: str, stored: bool) -> None:
    group, _ = of(graph_of(name), "ht_one")
    function = "tanh" if name == "mean_of_tanh" else "exp"
    assert group.source.count(f"ht_{function}(") == (3 if stored else 2), "whole rows once, parts of rows twice"
    assert ("return;" in group.source) == stored


@pytest.mark.parametrize("name", CASES)
def test_what_is_read_across_is_turned_in_squares(name: str) -> None:
    graph = graph_of(name)
    elements = elements_of(graph)
    loads = strided_loads(graph, elements.variables, elements.value)
    expected = {"turned_plane": 2, "turned_apart": 1, "turned_channels": 1}.get(name)
    assert (loads.index if loads is not None else None) == expected
    assert of(graph, "ht_one")[0].source.count("ht_turned(") == (expected is not None)


def test_a_comparison_of_real_numbers_is_no_guard_of_a_pad() -> None:
    """``w * 0.9 - 1 <= 0`` of a model looks as ``index <= last`` of a pad does, and holds for no row."""
    g = GraphBuilder()
    places = g.add("iota", extent=W, dtype="fp64")
    end = g.map("sub", g.map("mul", g.add("size", extent=W, dtype="fp64"), 0.9), 1.0)
    y = g.map("select", g.map("less_equal", end, 0.0), 0.0, places)
    graph = g.finish(y)
    elements = elements_of(graph)
    assert interior_of(elements.value, elements.variables[-1], W) is None
