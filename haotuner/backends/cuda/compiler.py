"""Compiler: CUDA C++ of kernels to a cubin, and what the compiler said about them. nvcc or NVRTC, whichever is there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from haotuner.backends.cuda.cubin import read_cubin
from haotuner.backends.cuda.toolkit import CompileFailed, read_resources
from haotuner.errors import EnvironmentMissing
from haotuner.extras import how_to_get

# No fast math: it flushes denormals, which a dense layer must not.
FLAGS = ("-std=c++17", "-w")  # -w: generated code leaves variables unused
# Of groups: every node of a model rounds its own result. Sums of products fuse by name, see codegen/loops/c_math.py.
GROUP_FLAGS = ("-fmad=false",)
HOW_TO_GET = f"install NVRTC with: {how_to_get('cuda')}, or a CUDA 12.8 or later toolkit with nvcc on the PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A cubin, and resources of its kernels by symbol: registers, stack_bytes, spill_bytes, static_shared_bytes."""

    cubin: bytes
    resources: Mapping[str, Mapping[str, float]]


class Compiler(Protocol):
    """Compiler of a unit of device code to a cubin; no GPU is needed."""

    @property
    def name(self) -> str:
        """Kind and release, as ``nvcc 13.0``: one name makes one machine code."""
        ...

    def builds_for(self, arch: str) -> bool:
        """True if machine code of an architecture like ``sm_90a`` can be made."""
        ...

    def compile(self, source: str, arch: str, flags: Sequence[str] = ()) -> Compiled:
        """Compile a self-contained unit with ``FLAGS`` and these. CompileFailed with the compiler's words."""
        ...


def compiled(cubin: bytes, text: str, arch: str) -> Compiled:
    """A compiler's cubin and words, judged: CompileFailed where it is not the program or the architecture asked for.

    Resources are those that ptxas reports; where it reports none, those in the cubin, and a stack counts as spills.
    """
    advice = re.findall(r"\(C[0-9]+\) (Potential Performance Loss[^\n]*)", text)
    if advice:  # wgmma made serial, setmaxnreg ignored: no longer the program that the footprint describes
        raise CompileFailed(f"{arch}: ptxas does not follow the program: {'; '.join(sorted(set(advice)))}")
    facts = read_cubin(cubin)
    if facts.arch != arch:
        raise CompileFailed(f"asked for code for {arch}, the compiler made it for {facts.arch}; use another CUDA release")
    reported = read_resources(text)
    resources = {
        name: {
            "registers": kernel.registers,
            "stack_bytes": kernel.stack_bytes,
            "spill_bytes": kernel.stack_bytes,
            "static_shared_bytes": kernel.shared,
            **reported.get(name, {}),
        }
        for name, kernel in facts.kernels.items()
    }
    return Compiled(cubin=cubin, resources=resources)


def first_for(arch: str, compilers: Sequence[Compiler], missing: Sequence[str] = ()) -> Compiler:
    """The first of the compilers that builds for an architecture; EnvironmentMissing says how to get one.

    ``missing``: why others are not among them.
    """
    for compiler in compilers:
        if compiler.builds_for(arch):
            return compiler
    result = ", ".join(compiler.name for compiler in compilers)
    lacking = "; ".join([f"found {result}, which does not build for it" if result else "found none", *missing])
    older = "sm_60 and sm_70 need a CUDA 12 compiler; " if arch in ("sm_60", "sm_61", "sm_70", "sm_72") else ""
    raise EnvironmentMissing(f"asked for a CUDA compiler for {arch}, {lacking}; {older}{HOW_TO_GET}")
