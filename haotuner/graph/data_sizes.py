"""Primitives whose results' sizes depend on data, and random numbers. A model is cut there; the host computes them.

The first two make a new dimension, ``attributes["extent"]``, which is the last extent of their result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.extents import Extent
from haotuner.graph.types import TensorType, numpy_dtype

MAKING = ("nonzero", "counted")  # a dimension each
HOST = (*MAKING, "random")
LAWS = ("normal", "uniform")


def nonzero(array: Any) -> Any:
    """Indices of the elements that are not 0: int64, (rank, how many), as ONNX's NonZero."""
    return np.ascontiguousarray(np.atleast_1d(np.asarray(array)).nonzero(), np.int64)


def counted(array: Any, place: int) -> Any:
    """0, 1, … up to a number that the data hold. UsageError where it is negative."""
    value = int(np.asarray(array).reshape(-1)[place])
    if value < 0:
        raise UsageError(f"the data make a size of {value}; the model takes no such request")
    return np.arange(value, dtype=np.int64)


def random_numbers(attributes: Mapping[str, Any], shape: Sequence[int], seed: int | None) -> Any:
    """Numbers of a law: ``normal`` with mean ``low`` and deviation ``high``, or ``uniform`` between both.

    ``seed``: the same for the same numbers; each place of a model has numbers of its own. None: other ones each time.
    """
    low, high, own = attributes["low"], attributes["high"], attributes["number"]
    draw = np.random.default_rng(None if seed is None else [seed, own])
    found = draw.normal(low, high, shape) if attributes["law"] == "normal" else draw.uniform(low, high, shape)
    return np.asarray(found).astype(numpy_dtype(attributes["dtype"]))


def _infer_nonzero(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    return TensorType((max(1, types[0].rank), attributes["extent"]), "int64")


def _compute_nonzero(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    return nonzero(arrays[0])


def _infer_counted(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    if "int" not in types[0].dtype:
        raise UsageError(f"a size of the type {types[0].dtype}; expected whole numbers")
    return TensorType((attributes["extent"],), "int64")


def _compute_counted(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    return counted(arrays[0], attributes["place"])


def _infer_random(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    if attributes["law"] not in LAWS:
        raise UsageError(f"unknown law {attributes['law']!r}; known: {', '.join(LAWS)}")
    return TensorType(tuple(attributes["shape"]), attributes["dtype"])


def _compute_random(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    return random_numbers(attributes, [sizes(one) for one in attributes["shape"]], attributes.get("seed"))


DATA_SIZED = (
    ("nonzero", _infer_nonzero, _compute_nonzero),
    ("counted", _infer_counted, _compute_counted),
    ("random", _infer_random, _compute_random),
)
