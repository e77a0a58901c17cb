"""Primitives whose results' sizes depend on data, branches, random numbers. A model is cut there; the host computes them.

Those of ``MAKING`` make a new dimension, ``attributes["extent"]``, which is the last extent of their result. A branch is a
dimension, too, ``attributes["branch"]``: 1 where its condition holds and 0 where not. Tensors that one of its sides makes
have a guard, which says so (``Graph.guards``); what stands behind both is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.extents import Extent
from haotuner.graph.types import TensorType, numpy_dtype
from haotuner.ops.host_steps import counted, holds, nonzero, random_numbers

MAKING = ("nonzero", "counted", "turns")  # a dimension each
BRANCHING = ("decided", "chosen")
TELLING = ("chosen", "loop_result")  # by ``attributes["told"]``, pairs of an axis and the dimension that it tells
HOST = (*MAKING, *BRANCHING, "random", "loop", "loop_result")
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
    shape = [sizes(extent) for extent in attributes["shape"]]
    return random_numbers(attributes, shape, attributes.get("seed"), numpy_dtype(attributes["dtype"]))


def made_dimensions(primitive: str, attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Dimensions that a primitive's result tells: a size of the data, or an extent that two branches differ in."""
    if primitive in MAKING:
        return (str(attributes["extent"]),)
    if primitive == "loop":  # sizes that its turns make anew
        return tuple(dict.fromkeys(str(extent) for _, _, extent in attributes["body"].changing))
    return tuple(str(extent) for _, extent in attributes.get("told", ())) if primitive in TELLING else ()


def _infer_decided(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    return TensorType((), "bool")


def _compute_decided(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    """Of a tensor's first element, or of an extent where there is no tensor."""
    return np.bool_(holds(arrays[0]) if arrays else sizes(attributes["extent"]))


def _infer_chosen(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    return TensorType(tuple(attributes["shape"]), types[1].dtype)


def _compute_chosen(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    return arrays[1 if arrays[0] else 2]


DATA_SIZED = (
    ("nonzero", _infer_nonzero, _compute_nonzero),
    ("counted", _infer_counted, _compute_counted),
    ("decided", _infer_decided, _compute_decided),
    ("chosen", _infer_chosen, _compute_chosen),
    ("random", _infer_random, _compute_random),
)
