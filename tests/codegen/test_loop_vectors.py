"""Loops of models are vectors: none calls a function of the C library for each float, and all have packed instructions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from haotuner.backends.cpu.compile import RUNTIME_SOURCES
from haotuner.backends.cpu.pack_source import GROUP_FLAGS
from haotuner.codegen.loops.c_loops import loops_of
from haotuner.codegen.loops.c_math import head_of
from haotuner.codegen.vector_functions import OF_TWO
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.ops.formula import TRANSCENDENTAL
from tests.codegen.test_node_rounding import ARCHITECTURES, compilers, here
from tests.replay import cases, subject

N = dimension("n")
OTHERS = ("div", "fmod", "mod", "max", "min", "neg", "abs", "sign", "sqrt", "rsqrt", "reciprocal", "floor", "ceil", "round")
OF_TWO_ALL = (*OF_TWO, "div", "max", "min")
PACKED = re.compile(r"\tv?(add|sub|mul|div|min|max|and|or|xor|sqrt|fn?m(add|sub)\d*|round|rndscale|cmp\w*)p[sd]\t")
MEMORY = {"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_"}
RANDOM = 16  # graphs


def of_one(function: str) -> Graph:
    g = GraphBuilder()
    x = [g.input(name, (N, 64)) for name in ("x", "y")[: 2 if function in OF_TWO_ALL else 1]]
    return g.finish(g.map(function, *x))


def drawn(seed: int) -> Graph:
    """Up to six functions of two tensors, some of a sum, a maximum or a softmax over the rows."""
    draw, g = np.random.default_rng(seed), GraphBuilder()
    values = [g.input("x", (N, 64)), g.input("y", (N, 64))]
    functions = sorted({*TRANSCENDENTAL, *OTHERS})
    for _ in range(draw.integers(2, 7)):
        function, x = draw.choice(functions), values[-1]
        if draw.random() < 0.25:
            how = draw.choice(["sum", "max", "softmax"])
            x = decompositions.softmax(g, x) if how == "softmax" else g.map(
                "sub", x, g.add("reduce", x, how=str(how), axes=(1,), keepdims=True))  # fmt: skip
        operands = (x, values[draw.integers(len(values))]) if function in OF_TWO_ALL else (x,)
        values.append(g.map(str(function), *operands))
    return g.finish(values[-1])


def assembly(text: str, compiler: str, arch: str, folder: Path) -> dict[str, str]:
    """Assembly of each function of a C file."""
    source, out = folder / "g.c", folder / "g.s"
    source.write_text(f"{head_of([text])}\n{text}\n", encoding="utf-8")
    flags = ("-std=c11", "-O3", "-w", "-fPIC", f"-march={arch}", *GROUP_FLAGS, "-I", str(RUNTIME_SOURCES))
    subprocess.run([compiler, *flags, "-S", str(source), "-o", str(out)], check=True, capture_output=True)
    pieces = re.split(r"^(group_\w+):", out.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def called(text: str) -> set[str]:
    """Names of functions that assembly calls."""
    names = {name.removesuffix("@PLT") for name in re.findall(r"\t(?:call|jmp)\t\*?([A-Za-z_][\w@]*)", text)}
    return names - MEMORY


@pytest.mark.parametrize(
    ("compiler", "arch"),
    [
        pytest.param(compilers()[0], "x86-64"),
        *(pytest.param(item, arch, marks=pytest.mark.long) for item in compilers() for arch in ARCHITECTURES if here(arch)),
    ],
)
def test_no_loop_of_floats_calls_a_function_for_each(compiler: str, arch: str, tmp_path: Path) -> None:
    every = {name: of_one(name) for name in sorted({*TRANSCENDENTAL, *OTHERS})}
    every |= {f"drawn{seed}": drawn(seed) for seed in range(RANDOM)}
    sources = [loops_of(graph, f"group_{name}", lambda extent: 0).source for name, graph in every.items()]
    text = "\n".join(source.replace("static void", "void", 1) for source in sources)
    functions = assembly(text, compiler, arch, tmp_path)
    assert {name.removeprefix("group_") for name in functions} == set(every)
    calls = {name: called(lines) for name, lines in functions.items() if called(lines)}
    assert not calls
    assert not [name for name, lines in functions.items() if not PACKED.search(lines)]


@pytest.mark.parametrize(
    "name", [*cases.QUICK_MODELS, *(pytest.param(item, marks=pytest.mark.long) for item in cases.MODELS)]
)
def test_groups_of_models_call_no_function_for_each_float(name: str, tmp_path: Path) -> None:
    lines = "\n".join(subject.model(name)["loops, groups"])
    fp64 = "double" in lines
    source = tmp_path / "groups.c"
    source.write_text(lines, encoding="utf-8")
    flags = ("-std=c11", "-O3", "-w", "-fPIC", "-march=x86-64", *GROUP_FLAGS, "-I", str(RUNTIME_SOURCES))
    subprocess.run([compilers()[0], *flags, "-S", str(source), "-o", str(tmp_path / "g.s")], check=True)
    library = {item for item in called((tmp_path / "g.s").read_text(encoding="utf-8")) if not item.startswith("ht_")}
    assert not library or fp64 and all(not item.endswith("f") for item in library), library


@pytest.mark.parametrize(("how", "taps"), [("sum", 9), ("sum", 13), ("max", 9), ("max", 13), ("max", 31)])
def test_windows_of_many_rows_become_vectors(how: str, taps: int, tmp_path: Path) -> None:
    instruction = {"sum": r"\tv?addps\t", "max": r"\tv?p(maxsd|cmpgtd)\t"}[how]
    g = GraphBuilder()
    image = g.input("x", (N, 4, dimension("h"), dimension("w")))
    slid = g.add("window", image, axes=(2,), sizes=(taps,), strides=(1,), dilations=(1,))
    graph = g.finish(g.add("reduce", slid, how=how, axes=(4,), keepdims=False))
    text = loops_of(graph, "group_pool", lambda extent: 0).source.replace("static void", "void", 1)
    (lines,) = assembly(text, compilers()[0], "x86-64", tmp_path).values()
    assert re.search(instruction, lines)
