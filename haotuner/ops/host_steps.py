"""Steps of a model that the host computes between segments: places, counts and random numbers, in numpy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.errors import UsageError


def nonzero(array: Any) -> Any:
    """Indices of the elements that are not 0: int64, (rank, how many), as ONNX's NonZero."""
    return np.ascontiguousarray(np.atleast_1d(np.asarray(array)).nonzero(), np.int64)


def counted(array: Any, index: int) -> Any:
    """0, 1, … up to a number that the data hold. UsageError where it is negative."""
    value = int(np.asarray(array).reshape(-1)[index])
    if value < 0:
        raise UsageError(f"the data make a size of {value}; the model takes no such request")
    return np.arange(value, dtype=np.int64)


def holds(array: Any) -> bool:
    """True if a condition, a tensor of one element, holds. UsageError for any other size."""
    flat = np.asarray(array).reshape(-1)
    if flat.size != 1:
        raise UsageError(f"the condition of a branch has {flat.size} elements; the model takes no such request")
    return bool(flat[0])


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio


def random_numbers(attributes: Mapping[str, Any], shape: Sequence[int], seed: int | None, dtype: Any) -> Any:
    """Numbers of a distribution: ``normal`` with mean ``low`` and deviation ``high``, or ``uniform`` between both.

    ``seed``: the same for the same numbers; each place of a model has numbers of its own. None: other ones each time. An
    element's number follows from the seed, the place and the element's index alone, by SplitMix64 (Steele and others, OOPSLA
    2014) as a hash and Box and Muller's transform: runtime/native/model/host_ops.c computes the same.
    """
    low, high, own = attributes["low"], attributes["high"], attributes["number"]
    seed = int.from_bytes(os.urandom(8), "little") if seed is None else seed % (1 << 64)
    with np.errstate(over="ignore"):  # whole numbers of 64 bits wrap
        stream = _mixed(_mixed(np.array([seed], np.uint64) + _GOLDEN) + np.uint64(own))
        counters = np.arange(1, 2 * int(np.prod(shape, dtype=np.int64)) + 1, dtype=np.uint64)
        parts = (_mixed(stream + counters * _GOLDEN) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    first, second = parts[0::2], parts[1::2]
    if attributes["law"] == "normal":
        result = low + high * (np.sqrt(-2.0 * np.log(1.0 - first)) * np.cos(6.283185307179586 * second))
    else:
        result = low + (high - low) * first
    return np.asarray(result).astype(dtype).reshape(shape)


def _mixed(z: Any) -> Any:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
