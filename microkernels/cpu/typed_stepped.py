"""Epilogues of cheap steps that are done while whole sums become the result's type: one pass instead of three.

A narrow layer of bytes multiplies a few words a sum: floats of sums, the epilogue's program and the rounding to bytes,
a pass over the block each, took longer than its products.
"""

from __future__ import annotations

from collections.abc import Sequence

from haotuner.microkernels.cpu.epilogue import code_of, steps_of
from haotuner.microkernels.cpu.typed import dtype_of, output_of, word_of
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.epilogue import operands_of
from haotuner.spec.kernel import MicroKernel

_HARD = "V(min, ps)(splatf(6.0f), V(max, ps)(splatf(0.0f), V(add, ps)(value, splatf(3.0f))))"
_GATE = f"V(mul, ps)({_HARD}, splatf((float)(1.0 / 6)))"
# What a step makes of `value`; {0}, {1}: what it reads. Of two numbers the second comes out where one is NaN: NaN stays NaN.
_STEPS = {
    "scale": "V(mul, ps)(value, {0})",
    "bias": "V(add, ps)(value, {0})",
    "relu": "V(max, ps)(splatf(0.0f), value)",
    "relu6": "V(min, ps)(splatf(6.0f), V(max, ps)(splatf(0.0f), value))",
    "clamp": "V(min, ps)({1}, V(max, ps)({0}, value))",
    "hardsigmoid": _GATE,
    "hardswish": f"V(mul, ps)(value, {_GATE})",
}


def stepped_symbol(kernel: MicroKernel) -> str | None:
    """Name of the function that a kernel's sums become results by; None: its epilogue is a program of its own, or none."""
    steps = steps_of(kernel)
    if word_of(kernel) is None or DTYPES[dtype_of(kernel)].sums != "int32" or not steps or not set(steps) <= set(_STEPS):
        return None
    return f"typed_stepped_ep{code_of(steps)}_{output_of(kernel)}_vl{kernel['vl']}"


def stepped_words(kernel: MicroKernel) -> dict[str, object]:
    """Definitions for ``native/typed_stepped.h`` of a kernel that has such a function."""
    steps, symbol = steps_of(kernel), stepped_symbol(kernel)
    operand_index = {name: index for index, (name, _) in enumerate(operands_of(steps))}
    return {
        "STEPPED": symbol,
        "GIVEN(ONE)": " ".join(f"ONE({index})" for index in range(len(operand_index))),
        "STEPS": " ".join(_statements(steps, operand_index)),
        "PUT": f"ht_vl{kernel['vl']}_put_{output_of(kernel)}",
        "BYTES": DTYPES[output_of(kernel)].size,
    }


def _statements(steps: Sequence[str], places: dict[str, int]) -> list[str]:
    """A statement a step; a scale and the bias behind it are rounded once where the CPU has that, as in programs."""
    result: list[str] = []
    for index, step in enumerate(steps):
        reads = [f"g{places[name]}" for name, _ in operands_of((step,))]
        if step == "bias" and index > 0 and steps[index - 1] == "scale":
            result[-1] = f"value = madd(value, g{places['scale']}, {reads[0]});"
        else:
            result.append(f"value = {_STEPS[step].format(*reads)};")
    return result
