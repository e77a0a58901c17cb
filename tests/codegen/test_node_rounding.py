"""No compiler changes what a node computes: generated loops, bit by bit, against numpy node by node.

For each instruction set of this host and each C compiler that it has. Sums are compared within their rounding.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cpu.compile import RUNTIME_SOURCES
from haotuner.backends.cpu.pack_source import GROUP_FLAGS
from haotuner.codegen.loops.c_loops import loops_of
from haotuner.codegen.loops.c_math import head_of
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension, evaluate
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.graph.types import numpy_dtype

N = dimension("n")
TO_WHOLE = 1.5 * 2.0**23  # float32 numbers of this size have no fractions
WHOLE_TYPES = ("int64", "int32", "int16", "int8", "uint8", "uint32")
ARCHITECTURES = {"x86-64": "sse2", "x86-64-v2": "sse4_2", "x86-64-v3": "avx2", "x86-64-v4": "avx512vl"}

Made = Callable[..., str]


def two_sum(f: Made, x: str, y: str) -> str:
    """What the sum of two numbers loses (Knuth)."""
    s = f("add", x, y)
    b = f("sub", s, x)
    return f("add", f("sub", x, f("sub", s, b)), f("sub", y, b))


def split(f: Made, x: str, y: str) -> str:
    """The low half of a number's digits (Veltkamp)."""
    c = f("mul", x, 4097.0)
    return f("sub", x, f("sub", c, f("sub", c, x)))


def two_product(f: Made, x: str, y: str) -> str:
    """What a product loses (Dekker)."""
    low_x, low_y, p = split(f, x, y), split(f, y, x), f("mul", x, y)
    high_x, high_y = f("sub", x, low_x), f("sub", y, low_y)
    rest = f("sub", f("mul", high_x, high_y), p)
    rest = f("add", f("add", rest, f("mul", high_x, low_y)), f("mul", low_x, high_y))
    return f("add", rest, f("mul", low_x, low_y))


def kahan(f: Made, x: str, y: str) -> str:
    """A step of a compensated sum."""
    total = f("add", x, y)
    return f("sub", f("sub", total, x), y)


REALS: Mapping[str, Callable[[Made, str, str], str]] = {
    "two_sum": two_sum,
    "split": split,
    "two_product": two_product,
    "kahan": kahan,
    "whole": lambda f, x, y: f("sub", f("add", x, TO_WHOLE), TO_WHOLE),
    "whole_scaled": lambda f, x, y: f("sub", f("add", f("mul", x, 4096.0), TO_WHOLE), TO_WHOLE),
    "one_more": lambda f, x, y: f("sub", f("add", x, 1.0), 1.0),
    "one_less": lambda f, x, y: f("add", f("sub", x, 1e8), 1e8),
    "zero_times": lambda f, x, y: f("mul", x, 0.0),
    "times_zero_more": lambda f, x, y: f("add", f("mul", x, 0.0), y),
    "zero_over": lambda f, x, y: f("div", f("mul", y, 0.0), x),
    "itself_less": lambda f, x, y: f("sub", x, x),
    "itself_over": lambda f, x, y: f("div", x, x),
    "zero_more": lambda f, x, y: f("add", x, 0.0),
    "from_zero": lambda f, x, y: f("sub", f("mul", x, 0.0), x),
    "other_back": lambda f, x, y: f("sub", f("add", x, y), x),
    "factor_back": lambda f, x, y: f("div", f("mul", x, y), y),
    "thirds": lambda f, x, y: f("mul", f("div", x, 3.0), 3.0),
    "tenth": lambda f, x, y: f("div", x, 0.1),
    "two_tenths": lambda f, x, y: f("mul", f("mul", x, 0.1), 0.2),
    "two_thirds": lambda f, x, y: f("div", f("div", x, 3.0), 0.7),
    "inverse": lambda f, x, y: f("mul", x, f("reciprocal", y)),
    "double_inverse": lambda f, x, y: f("reciprocal", f("reciprocal", x)),
    "sign_of_zero": lambda f, x, y: f("reciprocal", f("mul", f("abs", x), -0.0)),
    "neg_difference": lambda f, x, y: f("neg", f("sub", x, y)),
    "neg_twice": lambda f, x, y: f("neg", f("neg", x)),
    "crossed": lambda f, x, y: f("sub", f("mul", x, y), f("mul", y, x)),
    "squares_apart": lambda f, x, y: f("sub", f("mul", x, x), f("mul", y, y)),
    "root_of_apart": lambda f, x, y: f("sqrt", f("sub", f("mul", x, x), f("mul", f("abs", x), f("abs", x)))),
    "scaled_moved": lambda f, x, y: f("add", f("mul", x, 1.1), y),
    "common_factor": lambda f, x, y: f("add", f("mul", x, 0.3), f("mul", y, 0.3)),
    "square_root": lambda f, x, y: f("sqrt", f("mul", x, x)),
    "root_twice": lambda f, x, y: f("mul", f("sqrt", f("abs", x)), f("sqrt", f("abs", x))),
    "inverse_root": lambda f, x, y: f("rsqrt", f("abs", x)),
    "less": lambda f, x, y: f("select", f("less", x, y), x, y),
    "not_less": lambda f, x, y: f("select", f("not", f("less", x, y)), x, y),
    "not_less_equal": lambda f, x, y: f("select", f("not", f("less_equal", x, y)), 1.0, 2.0),
    "equal_itself": lambda f, x, y: f("select", f("equal", x, x), 1.0, 2.0),
    "difference_equal": lambda f, x, y: f("select", f("equal", f("sub", x, y), 0.0), 1.0, 2.0),
    "is_nan": lambda f, x, y: f("select", f("isnan", x), y, x),
    "is_infinite": lambda f, x, y: f("select", f("isinf", x), y, x),
    "sign": lambda f, x, y: f("sign", x),
    "sign_of_difference": lambda f, x, y: f("sign", f("sub", x, y)),
    "largest": lambda f, x, y: f("max", x, y),
    "smallest": lambda f, x, y: f("min", x, f("max", y, -1.0)),
    "rectified": lambda f, x, y: f("mul", f("max", x, 0.0), y),
    "rounded": lambda f, x, y: f("sub", f("round", x), f("floor", x)),
    "ceiling": lambda f, x, y: f("ceil", f("sub", x, 0.5)),
    "remainder": lambda f, x, y: f("fmod", x, y),
}
WHOLE: Mapping[str, Callable[[Made, str, str], str]] = {
    "wraps": lambda f, x, y: f("sub", f("add", x, 100), 100),
    "wraps_more": lambda f, x, y: f("select", f("less", f("add", x, 1), x), x, y),
    "product": lambda f, x, y: f("mul", x, y),
    "square": lambda f, x, y: f("mul", f("mul", x, x), x),
    "difference": lambda f, x, y: f("select", f("less", f("sub", x, y), 0), x, y),
    "negative": lambda f, x, y: f("neg", f("neg", x)),
    "magnitude": lambda f, x, y: f("abs", x),
    "quotient": lambda f, x, y: f("floordiv", f("mul", x, y), 3),
    "bits": lambda f, x, y: f("bitxor", f("bitand", x, y), f("bitor", x, y)),
    "sign": lambda f, x, y: f("sign", x),
}
REDUCED: Mapping[str, Callable[[GraphBuilder, str, str], str]] = {
    "sum": lambda g, x, y: total(g, x),
    "sum_of_squares": lambda g, x, y: total(g, g.map("mul", x, x)),
    "sum_of_products": lambda g, x, y: total(g, g.map("mul", x, y)),
    "sum_of_whole": lambda g, x, y: total(g, g.map("sub", g.map("add", g.map("mul", x, 4096.0), TO_WHOLE), TO_WHOLE)),
    "sum_of_two_sums": lambda g, x, y: total(g, two_sum(g.map, x, y)),
    "product": lambda g, x, y: g.add("reduce", x, how="prod", axes=(0,), keepdims=True),
    "softmax": lambda g, x, y: decompositions.softmax(g, x),
    "normalised": lambda g, x, y: decompositions.normalise(g, x, (0,), 1e-5),
}


@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 9, 15, 16, 17, 70, 255, 256, 257])
def test_rows_of_any_fixed_width(width: int, tmp_path: Path) -> None:
    """Sums of few terms are loops, of more a function's; terms that are read again wait in the row either way."""
    every = {}
    for name in ("softmax", "log_softmax", "mean"):
        g = GraphBuilder()
        x = g.input("x", (N, width))
        every[name] = g.finish(decompositions.mean(g, x, (1,)) if name == "mean" else getattr(decompositions, name)(g, x))
    library = built(every, compilers()[0], "x86-64", tmp_path)
    rows = np.random.default_rng(width).standard_normal((5, width)).astype(np.float32)
    for name, graph in every.items():
        (expected,) = interpret(graph, {"x": rows}).values()
        output = called(library, name, graph, {"x": rows}, 5)
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6, err_msg=name)


def total(g: GraphBuilder, x: str) -> str:
    return g.add("reduce", x, how="sum", axes=(0,), keepdims=True)


def graphs(reals: Sequence[str], wholes: Sequence[str]) -> dict[str, Graph]:
    by_name = {}
    for dtype in reals:
        for name, build in REALS.items():
            g = GraphBuilder()
            by_name[f"{dtype}_{name}"] = g.finish(build(g.map, g.input("x", (N,), dtype), g.input("y", (N,), dtype)))
        for name, reduced in REDUCED.items():
            g = GraphBuilder()
            by_name[f"{dtype}_reduced_{name}"] = g.finish(reduced(g, g.input("x", (N,), dtype), g.input("y", (N,), dtype)))
    for dtype in wholes:
        for name, build in WHOLE.items():
            g = GraphBuilder()
            by_name[f"{dtype}_{name}"] = g.finish(build(g.map, g.input("x", (N,), dtype), g.input("y", (N,), dtype)))
    return by_name


def compilers() -> list[str]:
    """One path of each compiler: names that lead to the same program are one."""
    names = {str(Path(path).resolve()): name for name in ("clang", "gcc", "cc") if (path := shutil.which(name))}
    return sorted(names.values())


def here(arch: str) -> bool:
    return ARCHITECTURES[arch] in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()


def drawn(dtype: str, count: int, seed: int) -> Any:
    """Numbers of every size, the special ones among them."""
    draw, kind = np.random.default_rng(seed), numpy_dtype(dtype)
    if kind.kind != "f":
        ends = np.iinfo(kind)
        special = np.array([ends.min, ends.max, 0, 1, ends.min + 1, ends.max // 2], kind)
        values = draw.integers(ends.min, ends.max, count, kind, endpoint=True)
    else:
        tiny = np.finfo(kind).tiny
        special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny / 8, 1.5, -2.5, 3e38, 16777217.0, 0.1], kind)
        values = (draw.standard_normal(count) * 10.0 ** draw.integers(-6, 6, count)).astype(kind)
    return np.where(draw.random(count) < 0.2, draw.choice(special, count), values).astype(kind)


@dataclass(frozen=True)
class Built:
    """A library of groups, and the tensors that a call passes each."""

    library: ctypes.CDLL
    tensors: Mapping[str, Sequence[str]]


def built(every: Mapping[str, Graph], compiler: str, arch: str, folder: Path) -> Built:
    source, library = folder / "g.c", folder / "g.so"
    groups = {name: loops_of(graph, f"ht_{name}", lambda extent: 0) for name, graph in every.items()}
    text = "\n".join(group.source.replace("static void", "void", 1) for group in groups.values())
    source.write_text(f"{head_of([text])}\n{text}\n", encoding="utf-8")
    flags = ("-std=c11", "-O3", "-w", f"-march={arch}", *GROUP_FLAGS, "-fPIC", "-shared", "-I", str(RUNTIME_SOURCES))
    subprocess.run([compiler, *flags, str(source), "-o", str(library), "-lm"], check=True, capture_output=True)
    return Built(ctypes.CDLL(str(library)), {name: group.tensors for name, group in groups.items()})


def called(library: Built, name: str, graph: Graph, feeds: Mapping[str, Any], count: int) -> Any:
    out = graph.types[graph.outputs[0]]
    shape = tuple(evaluate(extent, {"n": count}) for extent in out.shape)
    output = np.full(shape, 77, numpy_dtype(out.dtype))
    tensors = library.tensors[name]
    pointers = (ctypes.c_void_p * len(tensors))(
        *({**feeds, graph.outputs[0]: output}[tensor].ctypes.data for tensor in tensors)
    )
    sizes, low = (ctypes.c_int64 * 1)(count), (ctypes.c_int64 * len(shape))()
    high = (ctypes.c_int64 * len(shape))(*shape)
    getattr(library.library, f"ht_{name}")(sizes, pointers, low, high)
    return output


def same_bits(output: Any, expected: Any, what: str) -> None:
    """NaN has many bits; which of two zeros a maximum is, numpy does not say."""
    np.testing.assert_array_equal(output, expected, what)
    if output.dtype.kind == "f" and "largest" not in what and "smallest" not in what and "rectified" not in what:
        known = ~np.isnan(output)
        np.testing.assert_array_equal(np.signbit(output[known]), np.signbit(expected[known]), what)


CASES = [
    pytest.param(compilers()[0], "x86-64-v3" if here("x86-64-v3") else "x86-64", ("fp32",), ("int32",)),
    *(
        pytest.param(compiler, arch, ("fp32", "fp64"), WHOLE_TYPES, marks=pytest.mark.slow)
        for compiler in compilers()
        for arch in ARCHITECTURES
        if here(arch)
    ),
]


@pytest.mark.parametrize(("compiler", "arch", "reals", "wholes"), CASES)
def test_every_node_rounds_its_own_result(
    compiler: str, arch: str, reals: Sequence[str], wholes: Sequence[str], tmp_path: Path
) -> None:
    every = graphs(reals, wholes)
    library = built(every, compiler, arch, tmp_path)
    for name, graph in every.items():
        reduced, dtype = "_reduced_" in name, name.split("_")[0]
        for count in (*range(1, 71), 257, 1000) if reduced else (*range(1, 19), 33, 70):
            x, y = drawn(dtype, count, count), drawn(dtype, count, count + 1000)
            if reduced:
                draw = np.random.default_rng(count)
                x, y = (draw.uniform(0.5, 1.5, count).astype(x.dtype) for _ in range(2))
            else:
                y[::5] = x[::5]
            feeds = {"x": x, "y": y}
            with np.errstate(all="ignore"):
                (expected,) = interpret(graph, {operand: feeds[operand] for operand in graph.inputs}).values()
            output = called(library, name, graph, feeds, count)
            if reduced:
                digits = 1e-12 if dtype == "fp64" else 3e-5
                np.testing.assert_allclose(output, expected, rtol=digits, atol=digits, err_msg=f"{name} {count}")
            else:
                same_bits(output, expected, f"{name} of {count}")


def test_sums_hand_nan_and_infinity_on(tmp_path: Path) -> None:
    """From any place: of whole vectors, of what is left, of a block of terms."""
    every = {name: graph for name, graph in graphs(("fp32",), ()).items() if name.startswith("fp32_reduced_sum_of_")}
    library = built(every, compilers()[0], "x86-64", tmp_path)
    for (name, graph), special in product(every.items(), (np.nan, np.inf, -np.inf)):
        for count in (1, 5, 31, 70, 300):
            for at in (0, count // 2, count - 1):
                x, y = np.ones(count, np.float32), np.full(count, 2, np.float32)
                x[at] = special
                feeds = {"x": x, "y": y}
                with np.errstate(all="ignore"):
                    (expected,) = interpret(graph, {operand: feeds[operand] for operand in graph.inputs}).values()
                np.testing.assert_array_equal(called(library, name, graph, feeds, count), expected, f"{name} {count} {at}")


@pytest.mark.parametrize("compiler", compilers())
@pytest.mark.parametrize(("arch", "vector"), [("x86-64", "\taddps"), ("x86-64-v3", "ymm"), ("x86-64-v4", "ymm")])
def test_sums_are_made_in_vectors(compiler: str, arch: str, vector: str, tmp_path: Path) -> None:
    """Whatever a compiler may not do by itself."""
    every = graphs(("fp32",), ())
    for name in ("sum", "sum_of_products", "sum_of_whole"):
        graph = every[f"fp32_reduced_{name}"]
        group = loops_of(graph, "made", lambda extent: 0)
        source, assembly = tmp_path / "g.c", tmp_path / "g.s"
        source.write_text(head_of([group.source]) + group.source.replace("static void", "\nvoid", 1), encoding="utf-8")
        words = ["-O3", "-w", f"-march={arch}", *GROUP_FLAGS, "-S", str(source), "-o", str(assembly)]
        subprocess.run([compiler, *words], check=True, capture_output=True)
        added = [line for line in assembly.read_text(encoding="utf-8").splitlines() if "addps" in line and vector in line]
        assert len(added) >= 4, name
