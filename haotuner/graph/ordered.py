"""Primitives in which the order of elements matters: sorting, running totals, writes to given places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.extents import Extent
from haotuner.graph.types import TensorType, axis_of
from haotuner.ops.formula import REDUCTIONS

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
    result = np.array(arrays[0])
    places, values = np.asarray(arrays[1]), np.asarray(arrays[2])
    if attributes["how"] == "none":
        result[places] = values
    else:
        write = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[attributes["how"]]
        write.at(result, places, values)
    return result


def _infer_suppress(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    boxes, scores, order = types[:3]
    if boxes.rank != 3 or scores.rank != 3 or order.dtype != "int64" or boxes.dtype != "fp32" or scores.dtype != "fp32":
        raise UsageError(f"suppress: boxes {boxes} and scores {scores}; expected fp32 of three axes")
    return TensorType(scores.shape, "bool")


def _suppress(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    """Mask of the order's places that are kept: at most ``most``, scores above ``least``, overlapping no kept one more."""
    boxes, scores, order, most, overlap, least = (np.asarray(array) for array in arrays)
    selected = np.zeros(order.shape, bool)
    for batch in range(order.shape[0]):
        for of_class in range(order.shape[1]):
            chosen: list[int] = []
            for index, box in enumerate(order[batch, of_class]):
                if len(chosen) >= most[0] or not scores[batch, of_class, box] > least[0]:
                    break
                if all(overlaps(boxes[batch, box], boxes[batch, item]) <= overlap[0] for item in chosen):
                    selected[batch, of_class, index] = True
                    chosen.append(int(box))
    return selected


def overlaps(value: Any, other: Any) -> float:
    """The share of both boxes' area that they have in common; 0 where one has no area."""
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (value, other)]
    high = min(value[2], other[2]) - max(value[0], other[0])
    wide = min(value[3], other[3]) - max(value[1], other[1])
    if min(*areas, high, wide) <= 0:
        return 0.0
    common = np.float32(high) * np.float32(wide)
    return float(common / (areas[0] + areas[1] - common))


ORDERED = (
    ("arg_sort", _infer_arg_sort, _arg_sort),
    ("scan", _infer_scan, _scan),
    ("scatter", _infer_scatter, _scatter),
    ("suppress", _infer_suppress, _suppress),
)
