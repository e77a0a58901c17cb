"""Epilogue steps: element-wise operations on a result while it is in registers or cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from haotuner.ops.kind import Arrays

# channel: one value for each element of the output's channel axis, bound once. whole: a tensor like the output.
Extent = Literal["channel", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One element-wise step.

    ``number`` names it in programs and records: never used again for another step. ``operands``: what it reads beside the
    result, and how large that is. ``apply(value, operands)`` computes it in float64, operands broadcast to the output.
    ``gain`` bounds how much it may enlarge an error; ``scales``: the operand that enlarges it by its magnitude.
    """

    name: str
    number: int
    apply: Callable[[Any, Arrays], Any]
    operands: tuple[tuple[str, Extent], ...] = ()
    gain: float = 1.0
    scales: str = ""


def _gelu(value: Any, operands: Arrays) -> Any:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return 0.5 * value * (1.0 + erf(value / math.sqrt(2.0)))


def _gelu_tanh(value: Any, operands: Arrays) -> Any:
    return 0.5 * value * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (value + 0.044715 * value**3)))


def _sigmoid(value: Any, operands: Arrays) -> Any:
    small = np.exp(-np.abs(value))
    return np.where(value >= 0, 1.0, small) / (1.0 + small)


def _hard_sigmoid(value: Any, operands: Arrays) -> Any:
    return np.clip(value + 3.0, 0.0, 6.0) / 6.0


# Gains are the largest slopes: gelu's at x = 1.41, silu's at 2.4, hard-swish's at 3.
STEPS: dict[str, Step] = {
    step.name: step
    for step in (
        Step(name="bias", number=1, apply=lambda value, given: value + given["bias"], operands=(("bias", "channel"),)),
        Step(name="relu", number=2, apply=lambda value, given: np.maximum(value, 0.0)),
        Step(name="gelu", number=3, apply=_gelu, gain=1.13),
        Step(name="gelutanh", number=4, apply=_gelu_tanh, gain=1.13),
        Step(name="silu", number=5, apply=lambda value, given: value * _sigmoid(value, given), gain=1.1),
        Step(name="sigmoid", number=6, apply=_sigmoid, gain=0.25),
        Step(name="tanh", number=7, apply=lambda value, given: np.tanh(value)),
        Step(name="hardswish", number=8, apply=lambda value, given: value * _hard_sigmoid(value, given), gain=1.5),
        Step(name="hardsigmoid", number=9, apply=_hard_sigmoid, gain=1 / 6),
        Step(name="relu6", number=10, apply=lambda value, given: np.clip(value, 0.0, 6.0)),
        Step(
            name="clamp",
            number=11,
            apply=lambda value, given: np.minimum(np.maximum(value, given["low"]), given["high"]),
            operands=(("low", "channel"), ("high", "channel")),
        ),
        Step(name="residual", number=12, apply=lambda value, given: value + given["residual"],
             operands=(("residual", "whole"),)),
        Step(name="scale", number=13, apply=lambda value, given: value * given["scale"], operands=(("scale", "channel"),),
             scales="scale"),
    )
}  # fmt: skip


def operands_of(steps: Sequence[str]) -> Iterator[tuple[str, Extent]]:
    """What an epilogue reads: values of a channel in the order of its steps, then whole tensors. The order of a call."""
    found = [operand for step in steps for operand in STEPS[step].operands]
    for extent in ("channel", "whole"):
        yield from (operand for operand in found if operand[1] == extent)
