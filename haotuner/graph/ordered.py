"""Primitives in which the order of elements matters: sorting, running totals, writes to given places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.extents import Extent
from haotuner.graph.types import TensorType, axis_of
from haotuner.ops.functions import REDUCTIONS

WRITES = ("none", "add", "mul", "max", "min")  # what a scatter does with the element that is there


def _infer_arg_sort(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    axis_of(attributes["axis"], types[0].rank, "arg_sort")
    return TensorType(types[0].shape, "int64")


def _arg_sort(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    """Indices that sort; of equals the first comes first, also in falling order."""
    array, axis = np.asarray(arrays[0]), attributes["axis"]
    if not attributes.get("falling", False):
        return np.argsort(array, axis=axis, kind="stable").astype(np.int64)
    turned = np.argsort(np.flip(array, axis), axis=axis, kind="stable")
    return np.flip(array.shape[axis] - 1 - turned, axis).astype(np.int64)


def _infer_scan(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    axis_of(attributes["axis"], types[0].rank, "scan")
    if attributes["how"] not in REDUCTIONS:
        raise UsageError(f"unknown scan {attributes['how']!r}; known: {', '.join(REDUCTIONS)}")
    return types[0]


def _scan(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    """Running results along an axis, the own element included."""
    array = np.asarray(arrays[0])
    with np.errstate(all="ignore"):
        return np.asarray(REDUCTIONS[attributes["how"]].accumulate(array, axis=attributes["axis"], dtype=array.dtype))


def _infer_scatter(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    if types[0].rank != 1 or types[1].rank != 1 or types[2].rank != 1:
        raise UsageError("scatter: flat tensors are expected: what is there, places, new elements")
    if attributes["how"] not in WRITES:
        raise UsageError(f"unknown scatter {attributes['how']!r}; known: {', '.join(WRITES)}")
    return types[0]


def _scatter(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    """Elements written one after another; places count from the end where they are negative."""
    found = np.array(arrays[0])
    places, values = np.asarray(arrays[1]), np.asarray(arrays[2])
    if attributes["how"] == "none":
        found[places] = values
    else:
        write = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[attributes["how"]]
        write.at(found, places, values)
    return found


ORDERED = (
    ("arg_sort", _infer_arg_sort, _arg_sort),
    ("scan", _infer_scan, _scan),
    ("scatter", _infer_scatter, _scatter),
)
