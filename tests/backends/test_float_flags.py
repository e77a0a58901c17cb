"""No compiler is told that it may reorder sums of floats, leave out NaN, infinity or the sign of zero, or flush to zero."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from haotuner.backends.cpu import pack_source
from haotuner.backends.cpu.compile import built
from haotuner.backends.cuda import compiler
from haotuner.backends.cuda.compiler import Toolkit
from haotuner.backends.toolchain import CFLAGS
from haotuner.microkernels.cpu import epilogue

LOOSE = re.compile(
    r"fast|associative|no-signed-zeros|reciprocal-math|finite-math|unsafe-math|no-honor|ftz=true|prec-(div|sqrt)=false"
)


def test_flags_are_strict() -> None:
    every = [*CFLAGS, *pack_source.GROUP_FLAGS, *compiler.FLAGS, *compiler.GROUP_FLAGS, *compiler.OPTIONS]
    assert not [flag for flag in every if LOOSE.search(flag)]
    assert "-ffp-contract=off" in pack_source.GROUP_FLAGS and "-fmad=false" in compiler.GROUP_FLAGS


def test_nvcc_is_told_the_flags_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], seconds: float) -> None:
        commands.append(command)
        raise InterruptedError

    monkeypatch.setattr(compiler, "run_tool", run)
    with pytest.raises(InterruptedError):
        compiler.Nvcc(Toolkit(nvcc=Path("nvcc"), release="13.0", archs=("sm_80",))).compile(
            "", "sm_80", compiler.GROUP_FLAGS
        )
    assert set(compiler.GROUP_FLAGS) <= set(commands[0])


def test_kernels_of_tvm_carry_no_fast_math() -> None:
    """LLVM may fuse a product with the sum behind it, and nothing else."""
    pytest.importorskip("tvm")
    text = built({"steps": epilogue.program(("bias", "relu"), 8, "steps")}, "x86-64-v3").inspect_source("ll")
    sums = [line for line in text.splitlines() if re.search(r"\bf(add|sub|mul|div|cmp)\b", line)]
    assert sums and not [line for line in sums if re.search(r"\b(fast|nnan|ninf|nsz|arcp|reassoc|afn)\b", line)]
    assert "unsafe-fp-math" not in text and "no-nans-fp-math" not in text
