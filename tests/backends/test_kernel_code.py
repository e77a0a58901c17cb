"""Hashes of kernels' code: a copy of the package with other names, comments and files, and one with other numbers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from haotuner.backends.fingerprint import included
from tests.backends.native_jobs import ENVIRONMENT

ROOT = Path(__file__).parents[2]
KERNELS = (
    "cpu_dense_fp32__mr2_nr16_pw8_ku4_vl8_pf0_nt12",
    "cpu_dense_bf16__mr4_nr8_pw8_ku1_vl8_pf0_ot1",
    "cpu_generated_softmax_fp32__vl8_u1_ax2_kp0_fu111",
)
CUDA = "cuda_simt_fp32__bm32_bn64_bk8_tm4_tn4_v4_kn0"
# One process imports every copy in turn: TVM's own import takes longer than all programs.
PROGRAM = """
import json, sys
sys.modules["torch"] = None
import tvm
for folder in json.loads(sys.argv[1]):
    for name in [name for name in sys.modules if name.partition(".")[0] == "haotuner"]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    import haotuner
    assert haotuner.__file__.startswith(folder), haotuner.__file__
    from haotuner.backends.cpu.timing_library import program_hashes, typed_text
    from haotuner.backends.cuda.processes import unit_text
    from haotuner.spec.kernel import MicroKernel
    kernels = [MicroKernel.parse(name) for name in json.loads(sys.argv[2])]
    codes = {kernel.name: [program_hashes(kernel), typed_text(kernel, "x86-64-v3")] for kernel in kernels}
    from haotuner.backends.index import own_device
    from haotuner.graph import decompositions
    from haotuner.graph.extents import dimension
    from haotuner.graph.graph import GraphBuilder
    from haotuner.partition.group_times import NamedGroup
    from haotuner.partition.program_forms import ProgramSpace
    g = GraphBuilder()
    graph = g.finish(decompositions.softmax(g, g.input("x", (dimension("b"), dimension("t"))), 1))
    space = ProgramSpace(own_device("cpu:avx2", measure=False, cache_dir=None), [{"b": 8, "t": 96}])
    form = space.best(graph)
    codes["group"] = NamedGroup(graph, form, space.code_of(form)).name
    codes["loops"] = NamedGroup(graph).name
    print(json.dumps({**codes, sys.argv[3]: unit_text(sys.argv[3])}))
"""
NATIVE = "microkernels/cpu/native/typed_program.h"
RENAMED = {
    "microkernels/cpu/dense.py": [
        ("whole", "whole_vectors"),
        ("    width = columns or nr", "    # Anything.\n    width = columns or nr"),
        ('"""The tile program;', '"""Another docstring;'),
    ],
    NATIVE: [
        ("int32_t word = 0;", "int32_t bits = 0;"),
        ("&word, x,", "&bits, x,"),
        ("return word;", "return bits; /* x */"),
    ],
    "microkernels/cpu/native/typed_amx.h": [("% HT_PW * 4)", "% HT_PW * 8)")],  # which none of these kernels includes
    "microkernels/cpu/generated_program.py": [("places", "lanes_of_pieces"), ("def _woven", "# Anything.\ndef _woven")],
    "codegen/loops/c_values.py": [
        ("self._terms(fold", "self._summed_terms(fold"),
        ("def _terms(", "def _summed_terms("),
        ('f"{name}_terms"', 'f"{name}_products"'),  # a local of the C that it writes
    ],
    "codegen/loops/c_math.py": [
        ("/* a b + c, rounded once", "/* rounded once: a b + c"),
        (
            "(float a, float b, float c) {{ return FUSED_OR(fmaf(a, b, c), a",
            "(float x, float b, float c) {{ return FUSED_OR(fmaf(x, b, c), x",
        ),
    ],
    "microkernels/cuda/device/epilogue.cuh": [("HT_DEVICE", "/* as all */ HT_DEVICE")],
}
CHANGED = {
    "microkernels/cpu/dense.py": [("TAIL_UNROLL = 2 ", "TAIL_UNROLL = 4 ")],
    NATIVE: [("#define HT_RUN 128", "#define HT_RUN 64")],
    "codegen/math_coefficients.py": [("0.0083690", "0.0083691")],
    "microkernels/cuda/device/epilogue.cuh": [("ht_put_apart<float, 4>", "ht_put_apart<float, 2>")],
}


def copy_of(folder: Path, changes: dict[str, list[tuple[str, str]]]) -> Path:
    """A copy of the package in which texts are replaced, and that is otherwise the same."""
    shutil.copytree(ROOT / "haotuner", folder / "haotuner", ignore=shutil.ignore_patterns("__pycache__"))
    for name, replaced in changes.items():
        path = folder / "haotuner" / name
        text = path.read_text()
        for was, now in replaced:
            assert was in text, f"{name} has no {was!r} any more: mend this test"
            text = text.replace(was, now)
        path.write_text(text)
    return folder


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """What each kernel's code is in the tree itself and in its copies."""
    folder = tmp_path_factory.mktemp("copies")
    renamed, changed = copy_of(folder / "renamed", RENAMED), copy_of(folder / "changed", CHANGED)
    cpu = renamed / "haotuner/microkernels/cpu"
    (cpu / "vector_math.py").rename(cpu / "vector_functions.py")
    for path in (renamed / "haotuner").rglob("*.py"):
        if "cpu.vector_math" in (text := path.read_text()):
            path.write_text(text.replace("cpu.vector_math", "cpu.vector_functions"))
    trees = [ROOT, renamed, changed]
    words = [json.dumps([str(tree) for tree in trees]), json.dumps(KERNELS), CUDA]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return dict(zip(("here", "renamed", "changed"), map(json.loads, ran.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", [*KERNELS, "group", "loops", CUDA])
def test_other_names_comments_docstrings_and_files_make_the_same_code(codes, name) -> None:
    assert codes["renamed"][name] == codes["here"][name]


@pytest.mark.parametrize("name", [*KERNELS, "group", "loops", CUDA])
def test_another_number_makes_other_code(codes, name) -> None:
    assert codes["changed"][name] != codes["here"][name]


def test_headers_count_where_a_text_reaches_them(tmp_path) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    (inner / "kinds").mkdir(parents=True)
    outer.mkdir()
    (outer / "a.h").write_text('#include "kinds/b.h"\n#include <stdint.h>\n')
    (inner / "kinds/b.h").write_text('# include "c.h"\n#include "a.h"\n// #include "d.h"\n')
    for name in ("kinds/c.h", "c.h", "d.h"):
        (inner / name).write_text("")
    reached = included(['#include "a.h"\n#include "missing.h"\n', "int x;\n"], [outer, inner])
    assert reached == [outer / "a.h", inner / "kinds/b.h", inner / "kinds/c.h"]
    assert included(["int x;"], [outer, inner]) == []
