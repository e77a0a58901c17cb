"""The epilogues that every CUDA micro-kernel has built in: ``act(X W^T + bias + residual)``, in this order.

They are arguments of a launch (``ht_cuda_args.h``): one compiled kernel serves all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Steps of haotuner/ops/epilogue.py by the places of HT_ACT_NONE and on in ht_cuda_args.h.
ACTIVATIONS = ("", "relu", "gelu", "gelutanh", "silu")
IN_WORDS = f"bias, residual, then one of {', '.join(ACTIVATIONS[1:])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """What follows the sums: a value a column, a matrix like Y, and the number of an activation."""

    bias: bool
    residual: bool
    act: int


def fused(steps: Sequence[str]) -> Fused | None:
    """The steps of an epilogue as the kernels' arguments; None where they are others, or in another order."""
    left = list(steps)
    found = {step: left[:1] == [step] and bool(left.pop(0)) for step in ("bias", "residual")}
    act = left.pop(0) if left[:1] and left[0] in ACTIVATIONS else ""
    return None if left else Fused(bias=found["bias"], residual=found["residual"], act=ACTIVATIONS.index(act))
