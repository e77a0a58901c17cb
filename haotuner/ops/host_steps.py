"""What the host computes between the segments of a model: places, counts and random numbers, in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.errors import UsageError


def nonzero(array: Any) -> Any:
    """Indices of the elements that are not 0: int64, (rank, how many), as ONNX's NonZero."""
    return np.ascontiguousarray(np.atleast_1d(np.asarray(array)).nonzero(), np.int64)


def counted(array: Any, place: int) -> Any:
    """0, 1, … up to a number that the data hold. UsageError where it is negative."""
    value = int(np.asarray(array).reshape(-1)[place])
    if value < 0:
        raise UsageError(f"the data make a size of {value}; the model takes no such request")
    return np.arange(value, dtype=np.int64)


def random_numbers(attributes: Mapping[str, Any], shape: Sequence[int], seed: int | None, dtype: Any) -> Any:
    """Numbers of a law: ``normal`` with mean ``low`` and deviation ``high``, or ``uniform`` between both.

    ``seed``: the same for the same numbers; each place of a model has numbers of its own. None: other ones each time.
    """
    low, high, own = attributes["low"], attributes["high"], attributes["number"]
    draw = np.random.default_rng(None if seed is None else [seed, own])
    found = draw.normal(low, high, shape) if attributes["law"] == "normal" else draw.uniform(low, high, shape)
    return np.asarray(found).astype(dtype)
