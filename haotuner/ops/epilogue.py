"""Epilogue steps: element-wise operations on a result while it is in registers or cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from haotuner.ops.kind import Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One element-wise step.

    ``operands``: name to the axes of the output that it has, such as ``{"bias": ("n",)}``; broadcast over the others.
    ``apply(value, operands)`` computes it in float64. ``gain`` bounds how much it may enlarge an error.
    """

    name: str
    apply: Callable[[Any, Arrays], Any]
    operands: tuple[tuple[str, tuple[str, ...]], ...] = ()
    gain: float = 1.0


def _gelu(value: Any, operands: Arrays) -> Any:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return 0.5 * value * (1.0 + erf(value / math.sqrt(2.0)))


# gelu: its slope is at most 1.13 (at x = 1.41).
STEPS: dict[str, Step] = {
    step.name: step
    for step in (
        Step(name="bias", apply=lambda value, operands: value + operands["bias"], operands=(("bias", ("n",)),)),
        Step(name="relu", apply=lambda value, operands: np.maximum(value, 0.0)),
        Step(name="gelu", apply=_gelu, gain=1.13),
    )
}
