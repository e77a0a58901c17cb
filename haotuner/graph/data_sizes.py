"""Primitives whose results' sizes depend on data, and random numbers. A model is cut there; the host computes them.

Those of ``MAKING`` make a new dimension, ``attributes["extent"]``, which is the last extent of their result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from haotuner.errors import UsageError
from haotuner.graph.extents import Extent
from haotuner.graph.types import TensorType, numpy_dtype
from haotuner.ops.host_steps import counted, nonzero, random_numbers

MAKING = ("nonzero", "counted", "turns")  # a dimension each
HOST = (*MAKING, "random", "loop", "loop_result")
LAWS = ("normal", "uniform")


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
    shape = [sizes(one) for one in attributes["shape"]]
    return random_numbers(attributes, shape, attributes.get("seed"), numpy_dtype(attributes["dtype"]))


DATA_SIZED = (
    ("nonzero", _infer_nonzero, _compute_nonzero),
    ("counted", _infer_counted, _compute_counted),
    ("random", _infer_random, _compute_random),
)
