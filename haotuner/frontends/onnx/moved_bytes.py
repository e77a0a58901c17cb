"""Operators that only move elements, or choose some of them: of real numbers made of bytes they move the bytes.

``DequantizeLinear`` of one scale keeps the order of bytes, so that it may come behind such an operator. ``QuantizeLinear``
of the same scale behind that gives the bytes themselves: a real number is byte times scale, rounded once,
and over the scale at most 1e-4 from that byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from haotuner.frontends.onnx.constant_folding import Stored
from haotuner.frontends.onnx.integers import BYTES, is_zero, single
from haotuner.frontends.onnx.node_context import NodeContext, Rule

LEAST_SCALE = 2.0**-100  # of a smaller one products may have no normal number


def alike(c: NodeContext, item: Stored, scale: str, zero: str | None, dtype: str) -> bool:
    """True if real numbers were made of bytes by one scale and one zero point, these."""
    if c.g.types[item.bytes].dtype != dtype or dtype not in BYTES or not (_single(c, item) and single(c, scale)):
        return False
    own, other = (c.g.numbers(name) for name in (item.scale, scale))
    if own is None or other is None or own.dtype != np.float32 or own.reshape(()) != other.reshape(()):
        return False
    return bool(LEAST_SCALE <= own.reshape(()) < np.inf) and single(c, zero) and _same_zero(c, item.zero, zero)


def _single(c: NodeContext, item: Stored) -> bool:
    return single(c, item.scale) and single(c, item.zero)


def _same_zero(c: NodeContext, item: str | None, other: str | None) -> bool:
    if item is None or other is None:
        return all(name is None or is_zero(c, name) for name in (item, other))
    values = [c.g.numbers(name) for name in (item, other)]
    return item == other or (all(v is not None for v in values) and values[0].reshape(()) == values[1].reshape(()))


def moving(rule: Rule, again: Rule, *, every: bool = False) -> Rule:
    """The rule of an operator that moves its first input, or ``every`` one; ``again`` is the rule that makes bytes real.

    Of bytes with several scales or zero points, and of weights, it stays as it is.
    """

    def found(c: NodeContext) -> str | list[str]:
        moved = c.inputs if every else c.inputs[:1]
        stored = [None if item is None else c.g.stored.get(item) for item in moved]
        first = stored[0] if stored else None
        if first is None or any(
            item is None
            or c.g.known(item.bytes) is not None
            or not alike(c, item, first.scale, first.zero, c.g.types[first.bytes].dtype)
            for item in stored
        ) or (c.op == "MaxPool" and c.outputs > 1):  # fmt: skip
            made = rule(c)
            return made if isinstance(made, str) else list(made)
        inputs = (*(item.bytes for item in stored if item is not None), *c.inputs[len(moved) :])
        made = rule(replace(c, inputs=inputs))
        real = [
            str(again(replace(c, inputs=(item, first.scale, first.zero), attributes={})))
            for item in ([made] if isinstance(made, str) else made)
        ]
        return real[0] if isinstance(made, str) else real

    return found


MOVING = (
    "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Expand", "Tile", "Gather",
    "DepthToSpace", "SpaceToDepth", "MaxPool", "GlobalMaxPool",
)  # fmt: skip


def moving_bytes(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """Those of the rules that may move bytes, as such."""
    again = rules["DequantizeLinear"]
    return {**{op: moving(rules[op], again) for op in MOVING}, "Concat": moving(rules["Concat"], again, every=True)}
