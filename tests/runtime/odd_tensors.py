"""Tensors that no caller should pass, made of ones that a call takes: for fuzzers of every door."""

from __future__ import annotations

from typing import Any

import numpy as np

# What may be done to a tensor. Some of it is right: then the result must be, too.
ODD = ("none", "type", "axis", "no axis", "longer", "empty", "one", "backwards", "still", "apart", "turned", "overlapping")


def odd(rng: np.random.Generator, value: Any, way: str) -> Any:
    """The array changed in one way, along an axis drawn."""
    axis = int(rng.integers(value.ndim)) if value.ndim else 0
    index: list[Any] = [slice(None)] * value.ndim
    if way == "type":
        return value.astype(rng.choice(["float64", "float32", "int8", "uint8", "float16", "int32"]))
    if way == "axis":
        return value[None]
    if way == "no axis":
        return value.reshape(-1) if value.ndim > 1 else value[:, None]
    if way == "longer":
        return np.concatenate([value, value], axis=axis)
    if way in ("empty", "one"):
        index[axis] = slice(0, 0 if way == "empty" else 1)
    if way == "backwards":
        index[axis] = slice(None, None, -1)
    if way == "still":  # one element stands for all of an axis
        return np.broadcast_to(np.take(value, [0], axis), value.shape) if value.shape[axis] else value
    if way == "apart":
        index[axis] = slice(None, None, 2)
        return np.repeat(value, 2, axis)[tuple(index)]
    if way == "turned":
        return np.ascontiguousarray(value.swapaxes(0, -1)).swapaxes(0, -1)
    if way == "overlapping":
        strides = list(value.strides)
        strides[axis] = value.itemsize if axis < value.ndim - 1 else 0
        return np.lib.stride_tricks.as_strided(value.copy(), value.shape, strides)
    return value[tuple(index)]
