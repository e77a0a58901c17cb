"""Sums of tiles stay in registers: what the compilers made of them, of typed ones where words are multiplied whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from haotuner.backends.cpu.compile import built
from haotuner.hw_profiles.isa import ISAS, Isa
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.microkernels.cpu.typed import WORDS, CpuTyped, program_of
from haotuner.microkernels.cpu.typed_source import NATIVE, source
from haotuner.spec.op import Op
from tests.run_folder import toolchain

RUNTIME = Path(__file__).resolve().parents[2] / "haotuner" / "runtime" / "native"
PRODUCT = re.compile(r"\bvp?dp(busd|bf16ps)\b")
ON_THE_STACK = re.compile(r"%[xyz]mm\d+.*\(%r[sb]p\)|\(%r[sb]p\).*%[xyz]mm\d+")


def _loops(assembly: str) -> list[list[str]]:
    """Lines of each loop that has no other within."""
    loops, begun, label = [], 0, ""
    lines = assembly.splitlines()
    for at, line in enumerate(lines):
        if line.endswith(":"):
            begun, label = at, line[:-1]
        elif re.match(r"\s+j\w+\s+", line) and line.split()[-1] == label:
            loops.append(lines[begun : at + 1])
    return loops


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa.wave_width > 4], ids=lambda isa: isa.name)
def test_sums_never_lie_on_the_stack(isa: Isa, tmp_path: Path) -> None:
    programs, (rows, vectors) = [], (5, 4) if isa.registers == 32 else (4, 2)
    for dtype in ("bf16", "int8"):
        op = Op.parse(f"dense:n=64,k=64,dtype={dtype}")
        for unroll in (1, 2):
            tile = CpuTyped(dtype).typed(op, (rows, vectors * isa.wave_width, isa.wave_width, unroll, isa.wave_width, 0))
            programs.append((program_of(tile).name, tile, WORDS[dtype].terms))
    text, out = tmp_path / "tiles.c", tmp_path / "tiles.s"
    text.write_text(source(programs, isa.wave_width, ways="dot"))
    halves = ("-mf16c",) if "f16c" in isa.flags else ()
    try:
        toolchain().object(text, [NATIVE, RUNTIME], out, ("-S", *isa.compile_flags, *halves))
    except RuntimeError as error:
        pytest.skip(f"cc: does not know the instructions: {str(error)[:200]}")
    assembly = out.read_text()
    for program in re.findall(r"^\w+_dot:\n(.*?)\.cfi_endproc", assembly, re.S | re.M):
        assert sum(bool(ON_THE_STACK.search(line)) for line in program.splitlines()) < rows, program
    loops = [loop for loop in _loops(assembly) if sum(bool(PRODUCT.search(line)) for line in loop) >= rows * vectors]
    assert loops
    for loop in loops:
        assert not [line for line in loop if ON_THE_STACK.search(line)], "\n".join(loop)


def test_sums_of_tall_fp32_tiles_never_lie_on_the_stack() -> None:
    family = CpuDense()  # with two terms and more at a time LLVM loaded all rows' first, and had no registers for that
    kernels = [family.kernel(rows, 16 * vectors, 16, unroll, 16) for rows, vectors, unroll in ((12, 2, 2), (14, 2, 2))]
    for kernel in kernels:
        program = {kernel.name: family.schedule(kernel, kernel.name)[kernel.name]}
        text = built(program, "x86-64-v4").inspect_source("asm")
        assembly = re.sub(r"[ \t]+#.*|^\.L(tmp|func).*", "", text, flags=re.M)  # labels of loops alone
        fmas = kernel["mr"] * kernel["nr"] // 16 * kernel["ku"]
        loops = [loop for loop in _loops(assembly) if sum("vfmadd" in line for line in loop) == fmas]
        assert loops
        assert not [line for line in loops[0] if ON_THE_STACK.search(line)], "\n".join(loops[0])
