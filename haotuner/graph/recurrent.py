"""Recurrent layers as one primitive each: states of a sequence, step by step (ONNX's LSTM, GRU and RNN, one direction).

Inputs: ``x`` (tokens, batch, gates * hidden), the products of the sequence with its weights, biases added; ``r`` (hidden,
gates * hidden), ONNX's turned; ``b`` (gates * hidden), the bias of the state's products; ``p`` (3 * hidden), an LSTM's
peepholes; the first states ``h`` and ``c`` (batch, hidden); lengths (batch). The result is (tokens, batch, 2 * hidden): h,
then c (an LSTM's). An LSTM with ``bytes`` rounds each sequence's h to 256 steps of its own range before the state's products
(com.microsoft's DynamicQuantizeLSTM): its ``r`` is whole numbers as ``packed_bytes`` lays them. Behind the lengths come, of
each column, their sum, a number that is added to each of them (int32), and what they are multiplied by. ``added`` says
whether any such number is not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, text
from haotuner.graph.types import TensorType
from haotuner.ops.formula import FUNCTIONS

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
CLIPPED = (0, 1)  # activations whose argument ``clip`` bounds: those of gates, not the third, of an LSTM's cell


def _softplus(x: Any, a: float, b: float) -> Any:
    return np.logaddexp(x, 0).astype(x.dtype)


ACTIVATIONS: Mapping[str, Callable[[Any, float, float], Any]] = {
    "relu": lambda x, a, b: np.maximum(x, 0),
    "tanh": lambda x, a, b: np.tanh(x),
    "sigmoid": lambda x, a, b: FUNCTIONS["sigmoid"](x),
    "affine": lambda x, a, b: (a * x + b).astype(x.dtype),
    "leakyrelu": lambda x, a, b: np.where(x < 0, a * x, x).astype(x.dtype),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0).astype(x.dtype),
    "scaledtanh": lambda x, a, b: (a * np.tanh(b * x)).astype(x.dtype),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1).astype(x.dtype),
    "elu": lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x).astype(x.dtype),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": _softplus,
}


PANEL = 64  # columns of weights that are bytes which lie together (runtime/native/kinds/byte_sums.h)


def packed_bytes(weights: Any) -> Any:
    """Whole numbers (hidden, columns) as int8 (panels, quads, PANEL, 4): four rows of a column together, zeros behind."""
    rows, columns = weights.shape
    quads, panels = -(-rows // 4), -(-columns // PANEL)
    whole = np.zeros((4 * quads, panels * PANEL), np.int8)
    whole[:rows, :columns] = weights
    return np.ascontiguousarray(whole.reshape(quads, 4, panels, PANEL).transpose(2, 0, 3, 1))


def _unpacked(packed: Any, rows: int, columns: int) -> Any:
    panels, quads = packed.shape[:2]
    return packed.transpose(1, 3, 0, 2).reshape(4 * quads, panels * PANEL)[:rows, :columns]


def operands(batch: Extent, gates: int, hidden: int, *, of_bytes: bool = False) -> list[tuple[str, tuple[Extent, ...]]]:
    """Name and shape of each operand behind ``x``."""
    columns = gates * hidden
    more = ("sums of the weights", "what is added to the weights", "scales of the weights") if of_bytes else ()
    return [
        ("weights of the state, turned",
         (-(-columns // PANEL), -(-hidden // 4), PANEL, 4) if of_bytes else (hidden, columns)),
        ("bias of the state's products", (gates * hidden,)),
        ("peepholes", (3 * hidden,)),
        ("the first h", (batch, hidden)),
        ("the first c", (batch, hidden)),
        ("lengths", (batch,)),
        *((name, (columns,)) for name in more),
    ]  # fmt: skip


def _infer(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    gates, hidden, of_bytes = GATES[attributes["kind"]], attributes["hidden"], bool(attributes.get("bytes", False))
    if types[0].rank != 3 or types[0].shape[2] != gates * hidden:
        raise UsageError(f"{attributes['kind']}: expected (tokens, batch, {gates * hidden}), got {types[0]}")
    for extent, (name, shape) in zip(types[1:], operands(types[0].shape[1], gates, hidden, of_bytes=of_bytes), strict=True):
        fits = len(extent.shape) == len(shape) and not any(
            isinstance(extent, int) and isinstance(size, int) and extent != size
            for extent, size in zip(extent.shape, shape, strict=True)
        )
        if not fits:
            required = ", ".join(map(text, shape))
            raise UsageError(f"{attributes['kind']}: {name}: expected {types[0].dtype}[{required}], got {extent}")
    unknown = [name for name, *_ in attributes["activations"] if name not in ACTIVATIONS]
    if unknown:
        raise UsageError(f"{attributes['kind']}: unknown activation {unknown[0]!r}; known: {', '.join(ACTIVATIONS)}")
    return TensorType((*types[0].shape[:2], 2 * hidden), types[0].dtype)


def _compute(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    x, r, b, p, h, c, lengths, *more = map(np.asarray, arrays)
    weights: Any = r
    hidden, clip = attributes["hidden"], attributes.get("clip", np.inf)
    if more:
        _, added, scales = more
        whole = _unpacked(r, hidden, x.shape[2]).astype(np.int64) + added
        weights = _Bytes(whole, scales)
    activations = [
        lambda v, f=ACTIVATIONS[name], item=item, two=two, most=clip if index in CLIPPED else np.inf: f(
            np.clip(v, -most, most), item, two
        )
        for index, (name, item, two) in enumerate(attributes["activations"])
    ]
    step = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}[attributes["kind"]]
    result = np.zeros((*x.shape[:2], 2 * hidden), x.dtype)
    tokens = range(len(x))
    for t in reversed(tokens) if attributes.get("reverse", False) else tokens:
        with np.errstate(all="ignore"):
            new_h, new_c = step(x[t], h, c, weights, b, p, activations, attributes)
        alive = (t < lengths)[:, None]  # of a shorter sequence the state stays, and what follows it is 0
        h, c = np.where(alive, new_h, h), np.where(alive, new_c, c)
        result[t] = np.where(alive, np.concatenate([new_h, new_c], axis=1), 0)
    return result


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Weights that are whole numbers times a scale of each column."""

    whole: Any
    scales: Any

    def __rmatmul__(self, rows: Any) -> Any:
        """Products of rows that are rounded to bytes: sums of whole numbers, then multiplied by both scales."""
        moved, scale = as_bytes(rows)
        return (moved @ self.whole).astype(rows.dtype) * (scale * self.scales)

    __array_ufunc__ = None  # numpy asks this class


def as_bytes(rows: Any) -> tuple[Any, Any]:
    """Each row as bytes of its own range less their zero point, 0 in the range, and its scale: as DynamicQuantizeLinear."""
    low, high = (np.asarray(how(rows, axis=-1, keepdims=True, initial=0)) for how in (np.min, np.max))
    scale = (high - low) / rows.dtype.type(255)
    scale = np.where(scale == 0, rows.dtype.type(1), scale)
    zero = np.rint(np.clip(-low / scale, 0, 255))
    moved = np.clip(np.rint(rows / scale) + zero, 0, 255) - zero
    return np.nan_to_num(moved).astype(np.int64), scale


def _lstm(x: Any, h: Any, c: Any, r: Any, b: Any, p: Any, act: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    i, o, f, g = np.split(x + h @ r + b, 4, axis=1)
    pi, po, pf = np.split(p, 3)
    i, f = act[0](i + pi * c), act[0](f + pf * c)
    if attributes.get("coupled", False):
        f = 1 - i
    new = f * c + i * act[1](g)
    return act[0](o + po * new) * act[2](new), new


def _gru(x: Any, h: Any, c: Any, r: Any, b: Any, p: Any, act: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    hidden = attributes["hidden"]
    xz, xr, xh = np.split(x, 3, axis=1)
    rz, rr, rh = np.split(r, 3, axis=1)
    bz, br, bh = np.split(b, 3)
    z, reset = act[0](xz + h @ rz + bz), act[0](xr + h @ rr + br)
    inner = reset * (h @ rh + bh) if attributes.get("linear_before_reset", False) else (reset * h) @ rh + bh
    new = (1 - z) * act[1](xh + inner) + z * h
    return new, np.zeros((len(x), hidden), x.dtype)


def _rnn(x: Any, h: Any, c: Any, r: Any, b: Any, p: Any, act: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    new = act[0](x + h @ r + b)
    return new, np.zeros_like(new)


RECURRENT = (("recurrent", _infer, _compute),)
