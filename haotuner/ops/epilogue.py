"""Epilogue steps: element-wise operations on a result while it is in registers or cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from haotuner.ops.formula import Formula, Load, apply, elementwise
from haotuner.ops.kind import Arrays

# channel: one value for each element of the output's channel axis, bound once. whole: a tensor like the output.
Extent = Literal["channel", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One element-wise step.

    ``number`` names it in programs and records: never used again for another step, and under 64. Devices keep four bits of
    it: ops with a step of 16 or more are not theirs. ``operands``: what it reads beside the result, and how large that is.
    ``formula``: what it makes of ``VALUE`` and these; devices' programs are written from it. ``gain`` bounds how much it
    may enlarge an error; ``scales``: the operand that enlarges it by its magnitude where that is above ``gain``.
    """

    name: str
    number: int
    formula: Formula
    operands: tuple[tuple[str, Extent], ...] = ()
    gain: float = 1.0
    scales: str = ""

    def apply(self, value: Any, inputs: Arrays) -> Any:
        """The step in float64, operands broadcast to the output."""
        return elementwise(self.formula, {**inputs, "value": value})

    def enlarges(self, inputs: Arrays) -> Any:
        """Largest factor by which it enlarges an error, element by element where an operand says it."""
        return np.maximum(np.abs(inputs[self.scales]), self.gain) if self.scales else self.gain


VALUE = Load("value")


def _clipped(of: Formula, low: float, high: float) -> Formula:
    return apply("min", apply("max", of, low), high)


_HARD_SIGMOID = apply("mul", _clipped(apply("add", VALUE, 3.0), 0.0, 6.0), 1 / 6)
_NORMAL = apply("mul", apply("add", apply("erf", apply("mul", VALUE, math.sqrt(0.5))), 1.0), 0.5)
# (1 + tanh t) / 2 is the sigmoid of 2 t.
_CUBE = apply("mul", apply("mul", VALUE, VALUE), VALUE)
_TANH_NORMAL = apply(
    "sigmoid", apply("mul", apply("add", VALUE, apply("mul", _CUBE, 0.044715)), 2.0 * math.sqrt(2.0 / math.pi))
)
# tanh(log(1 + e^x)) is n / (n + 2) of n = e^x (e^x + 2); from 20 on it is 1 to the last bit, and nothing overflows.
_EXP = apply("exp", apply("min", VALUE, 20.0))
_GATE = apply("mul", _EXP, apply("add", _EXP, 2.0))
_MISH = apply("mul", VALUE, apply("div", _GATE, apply("add", _GATE, 2.0)))
_SLOPED = apply("add", apply("max", VALUE, 0.0), apply("mul", apply("min", VALUE, 0.0), Load("slope")))

# Gains are the largest slopes: gelu's at x = 1.41, mish's at 1.49, silu's at 2.4, hard-swish's at 3.
STEPS: dict[str, Step] = {
    step.name: step
    for step in (
        Step(name="bias", number=1, formula=apply("add", VALUE, Load("bias")), operands=(("bias", "channel"),)),
        Step(name="relu", number=2, formula=apply("max", VALUE, 0.0)),
        Step(name="gelu", number=3, formula=apply("mul", VALUE, _NORMAL), gain=1.13),
        Step(name="gelutanh", number=4, formula=apply("mul", VALUE, _TANH_NORMAL), gain=1.13),
        Step(name="silu", number=5, formula=apply("mul", VALUE, apply("sigmoid", VALUE)), gain=1.1),
        Step(name="sigmoid", number=6, formula=apply("sigmoid", VALUE), gain=0.25),
        Step(name="tanh", number=7, formula=apply("tanh", VALUE)),
        Step(name="hardswish", number=8, formula=apply("mul", VALUE, _HARD_SIGMOID), gain=1.5),
        Step(name="hardsigmoid", number=9, formula=_HARD_SIGMOID, gain=1 / 6),
        Step(name="relu6", number=10, formula=_clipped(VALUE, 0.0, 6.0)),
        Step(name="clamp", number=11, formula=apply("min", apply("max", VALUE, Load("low")), Load("high")),
             operands=(("low", "channel"), ("high", "channel"))),
        Step(name="residual", number=12, formula=apply("add", VALUE, Load("residual")), operands=(("residual", "whole"),)),
        Step(name="scale", number=13, formula=apply("mul", VALUE, Load("scale")), operands=(("scale", "channel"),),
             gain=0.0, scales="scale"),
        # ONNX's PRelu, and LeakyRelu where all slopes are one: x where it is positive, slope x where it is not.
        Step(name="prelu", number=14, formula=_SLOPED, operands=(("slope", "channel"),), scales="slope"),
        Step(name="mish", number=16, formula=_MISH, gain=1.1),
        Step(name="mul", number=17, formula=apply("mul", VALUE, Load("multiplier")), operands=(("multiplier", "whole"),),
             gain=0.0, scales="multiplier"),
    )
}  # fmt: skip


def operands_of(steps: Sequence[str]) -> Iterator[tuple[str, Extent]]:
    """Operands of an epilogue: values of a channel in the order of its steps, then whole tensors. The order of a call."""
    result = [operand for step in steps for operand in STEPS[step].operands]
    for extent in ("channel", "whole"):
        yield from (operand for operand in result if operand[1] == extent)
