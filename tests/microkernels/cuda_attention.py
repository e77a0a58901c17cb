"""Attention on tensor cores, on the emulator, apart: ``python -m tests.microkernels.cuda_attention LIBRARY SYMBOL…``."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from haotuner.codegen.online_softmax_schedule import FED, TENSOR, WIDE, OnlineSchedule
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.microkernels.cuda.online_softmax import short_family
from haotuner.spec import numerics
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.emulator import build
from tests.microkernels.cuda_generated import Arguments
from tests.runtime.empty_models import nowhere

BYTES = 2


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel, and what it is called with: (queries, keys) of two heads, and elements between rows."""

    spec: str
    warps: int
    rows: int  # of a warp
    keys: int
    shapes: tuple[tuple[int, int], ...]
    stages: int = 2
    parts: int = 1
    along: str = TENSOR
    gaps: tuple[int, ...] = (0, 8, 3)  # none; rows begin at 16 bytes; they do not

    @property
    def op(self) -> Op:
        """The op."""
        return Op.parse(self.spec)

    @property
    def family(self) -> CudaGenerated:
        """Its family."""
        generated_family = short_family(f"cuda_generated_attention_{self.op.dtype}")
        assert generated_family is not None
        return generated_family

    @property
    def kernel(self) -> MicroKernel:
        """The kernel."""
        schedule: Any = OnlineSchedule(
            lanes=32, along=self.along, rows=self.warps * self.rows, block=self.keys, keys=self.keys, out_rows=self.rows,
            parts=self.parts, stages=self.stages,
        )  # fmt: skip
        return self.family.kernel_of(schedule, self.op)


def _wide(spec: str, groups: int, keys: int, shapes: tuple[tuple[int, int], ...], **more: Any) -> Case:
    """By wgmma."""
    return Case(spec, 4 * groups, 16, keys, shapes, along=WIDE if groups == 1 else FED, **more)


CASES = {
    "plain": Case("attention:d=64,dtype=bf16", 1, 16, 32, ((1, 7), (61, 127), (16, 0))),
    "causal_end": Case("attention:d=64,causal=end,dtype=fp16", 2, 16, 32, ((61, 61), (127, 333), (37, 20)), stages=3),
    "causal_start": Case("attention:d=32,causal=start,dtype=bf16", 4, 16, 64, ((127, 61), (61, 333)), gaps=(8,)),
    "mask": Case("attention:d=80,mask=keys,causal=end,dtype=bf16", 2, 16, 64, ((7, 127), (61, 61)), gaps=(3,)),
    "full": Case("attention:d=40,mask=full,heads=apart,scale=one,dtype=fp16", 1, 32, 32, ((61, 61),), gaps=(8,)),
    "parts": Case("attention:d=96,dtype=bf16", 1, 16, 32, ((1, 333), (7, 127)), parts=8, gaps=(0,)),
    "parts_causal": Case("attention:d=64,causal=end,dtype=bf16", 2, 16, 32, ((7, 333), (61, 61)), parts=3, gaps=(3,)),
    "wide": Case("attention:d=128,causal=end,dtype=bf16", 4, 32, 64, ((127, 127),), gaps=(0,)),
    "many": Case("attention:d=128,dtype=fp16", 8, 16, 128, ((127, 333),), gaps=(8,)),
    "wide4": _wide("attention:d=64,dtype=bf16", 1, 64, ((1, 7), (61, 127), (16, 0), (127, 333))),
    "wide_causal": _wide("attention:d=96,causal=end,dtype=fp16", 1, 96, ((61, 61), (127, 333), (37, 20)), stages=3),
    "wide_mask": _wide("attention:d=40,mask=keys,causal=end,dtype=bf16", 1, 128, ((7, 127), (61, 333))),
    "wide_full": _wide("attention:d=256,mask=full,heads=apart,scale=one,dtype=fp16", 1, 32, ((61, 61),), gaps=(3,)),
    "fed2": _wide("attention:d=96,causal=end,dtype=fp16", 2, 96, ((61, 61), (127, 333), (37, 20), (16, 0)), stages=3),
    "fed3": _wide("attention:d=128,causal=start,dtype=bf16", 3, 64, ((333, 61), (61, 333))),
    "fed_again": _wide("attention:d=64,dtype=bf16", 2, 64, ((600, 127),), stages=2, gaps=(0, 3)),
    "widest": Case("attention:d=256,dtype=bf16", 4, 16, 32, ((61, 61),), gaps=(0,)),
}  # fmt: skip
QUICK = ("plain", "causal_end", "mask", "full", "parts_causal", "wide_causal", "fed2")


def entries(symbols: Sequence[str]) -> str:
    """C of a launch of each kernel, for the emulator."""
    text = ""
    for symbol in symbols:
        case = CASES[symbol]
        cut = case.family.cut(case.kernel)
        text += (
            f'extern "C" int run_{symbol}(const ht_generated_args* a, unsigned blocks) {{\n'
            f"  cudaLaunchConfig_t config = {{}};\n  config.blockDim = dim3({cut.lanes});\n"
            f"  config.gridDim = dim3(blocks, a->parts);\n  config.dynamicSmemBytes = {cut.shared};\n"
            f"  return emu::launch(config, [=] {{ {symbol}(*a); }});\n}}\n"
        )
    return text


def judged(library: ctypes.CDLL, symbol: str, queries: int, keys: int, gap: int) -> str:
    """What is wrong with a call; empty if nothing is."""
    case = CASES[symbol]
    op = case.op
    shape = Shape.of({axis: {"t": queries, "s": keys}.get(axis, 2) for axis in op.dynamic})
    inputs = numerics.draw(op, shape, np.random.default_rng(0))
    out = numerics.Guarded(op.operand_shape(op.meaning.output, shape), op.dtype, guard=23 if gap % 8 else 24)
    arrays: list[Any] = [*(numerics.spaced(array, gap) if gap else array for array in inputs.values()), out.inner]
    arguments, extents = Arguments(), op.extents(shape)
    for index, array in enumerate(arrays):
        arguments.data[index] = array.ctypes.data if array.size else nowhere()
        for axis, stride in enumerate(array.strides):
            arguments.strides[index][axis] = stride // BYTES
    cut, plan = case.family.cut(case.kernel), case.family.plan(case.kernel)
    for index, name in enumerate(plan.graph.dimensions):
        arguments.sizes[index] = extents[name]
    partial = np.full(max(1, cut.floats(out.inner.shape)) + 1, np.nan, np.float32)
    arguments.partial, report = partial.ctypes.data, ""
    for phases in ((0,), (1, 2)) if case.parts > 1 else ((0,),):
        out.inner[...] = np.nan
        error = 0
        for phase in phases:
            launched = Arguments.from_buffer_copy(arguments)
            launched.phase, launched.parts = phase, case.parts if phase else 1
            error = error or library[f"run_{symbol}"](ctypes.byref(launched), 3)
        verdict = numerics.check(op, inputs, out.inner)
        if error or verdict.wrong or out.touched():
            report += f"{symbol} {shape} gap {gap} phases {phases}: error {error}, {verdict}, touched {out.touched()}\n"
    return report


def main(library: str, symbols: Sequence[str]) -> None:
    """Every case, at all its shapes."""
    ctypes.CDLL(str(build.machine()), ctypes.RTLD_GLOBAL)
    loaded = ctypes.CDLL(library)
    for symbol in symbols:
        for queries, keys in CASES[symbol].shapes:
            for gap in CASES[symbol].gaps:
                print(judged(loaded, symbol, queries, keys, gap), end="")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
