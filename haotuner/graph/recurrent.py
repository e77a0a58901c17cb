"""Recurrent layers as one primitive each: states of a sequence, step by step (ONNX's LSTM, GRU and RNN, one direction).

Inputs: ``x`` (tokens, batch, gates * hidden), the products of the sequence with its weights, biases added; ``r`` (hidden,
gates * hidden), ONNX's turned; ``b`` (gates * hidden), the bias of the state's products; ``p`` (3 * hidden), an LSTM's
peepholes; the first states ``h`` and ``c`` (batch, hidden); lengths (batch). The result is (tokens, batch, 2 * hidden): h,
then c (an LSTM's). An LSTM with ``bytes`` rounds each sequence's h to 256 steps of its own range before the state's products
(com.microsoft's DynamicQuantizeLSTM).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, text
from haotuner.graph.types import TensorType
from haotuner.ops.functions import FUNCTIONS

GATES = {"lstm": 4, "gru": 3, "rnn": 1}


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


def operands(batch: Extent, gates: int, hidden: int) -> list[tuple[str, tuple[Extent, ...]]]:
    """What an operand behind ``x`` is, and its shape."""
    return [
        ("weights of the state, turned", (hidden, gates * hidden)),
        ("bias of the state's products", (gates * hidden,)),
        ("peepholes", (3 * hidden,)),
        ("the first h", (batch, hidden)),
        ("the first c", (batch, hidden)),
        ("lengths", (batch,)),
    ]


def _infer(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    gates, hidden = GATES[attributes["kind"]], attributes["hidden"]
    if types[0].rank != 3 or types[0].shape[2] != gates * hidden:
        raise UsageError(f"{attributes['kind']}: expected (tokens, batch, {gates * hidden}), got {types[0]}")
    for one, (name, shape) in zip(types[1:], operands(types[0].shape[1], gates, hidden), strict=True):
        fits = len(one.shape) == len(shape) and not any(
            isinstance(found, int) and isinstance(wanted, int) and found != wanted
            for found, wanted in zip(one.shape, shape, strict=True)
        )
        if not fits:
            wanted = ", ".join(map(text, shape))
            raise UsageError(f"{attributes['kind']}: {name}: expected {types[0].dtype}[{wanted}], got {one}")
    unknown = [name for name, *_ in attributes["activations"] if name not in ACTIVATIONS]
    if unknown:
        raise UsageError(f"{attributes['kind']}: unknown activation {unknown[0]!r}; known: {', '.join(ACTIVATIONS)}")
    return TensorType((*types[0].shape[:2], 2 * hidden), types[0].dtype)


def _compute(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    x, r, b, p, h, c, lengths = map(np.asarray, arrays)
    hidden, clip = attributes["hidden"], attributes.get("clip", np.inf)
    activations = [
        lambda v, f=ACTIVATIONS[name], one=one, two=two: f(np.clip(v, -clip, clip), one, two)
        for name, one, two in attributes["activations"]
    ]
    step = {"lstm": _lstm, "gru": _gru, "rnn": _rnn}[attributes["kind"]]
    found = np.zeros((*x.shape[:2], 2 * hidden), x.dtype)
    tokens = range(len(x))
    for t in reversed(tokens) if attributes.get("reverse", False) else tokens:
        with np.errstate(all="ignore"):
            new_h, new_c = step(x[t], h, c, r, b, p, activations, attributes)
        alive = (t < lengths)[:, None]  # of a shorter sequence the state stays, and what follows it is 0
        h, c = np.where(alive, new_h, h), np.where(alive, new_c, c)
        found[t] = np.where(alive, np.concatenate([new_h, new_c], axis=1), 0)
    return found


def as_bytes(rows: Any) -> Any:
    """Each row as the real numbers that bytes of its own range stand for, 0 in the range: as DynamicQuantizeLinear."""
    low, high = (np.asarray(how(rows, axis=-1, keepdims=True, initial=0)) for how in (np.min, np.max))
    scale = (high - low) / rows.dtype.type(255)
    scale = np.where(scale == 0, rows.dtype.type(1), scale)
    zero = np.rint(np.clip(-low / scale, 0, 255))
    return (np.clip(np.rint(rows / scale) + zero, 0, 255) - zero) * scale


def _lstm(x: Any, h: Any, c: Any, r: Any, b: Any, p: Any, act: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    state = as_bytes(h) if attributes.get("bytes", False) else h
    i, o, f, g = np.split(x + state @ r + b, 4, axis=1)
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
