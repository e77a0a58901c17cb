"""Primitives: the steps that every graph is made of. Each gives the type of its result and the numpy that defines it.

Element-wise steps follow numpy's broadcasting. Everything that computes is ``map``, ``reduce``, ``arg_reduce`` or
``contract``; the rest only says where an element comes from. Attributes may hold extents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph import control_flow, layouts, ordered, recurrent
from haotuner.graph.extents import Extent, same, text
from haotuner.graph.types import TensorType, axis_of, broadcast, numpy_dtype
from haotuner.ops.formula import COMPARISONS, FUNCTIONS, REDUCTIONS

Attributes: TypeAlias = Mapping[str, Any]
Types: TypeAlias = Sequence[TensorType]
Arrays: TypeAlias = Sequence[Any]  # numpy arrays of the inputs
Sizes: TypeAlias = Callable[[Extent], int]  # an extent's size for the request at hand


@dataclass(frozen=True, slots=True)
class Primitive:
    """``infer``: the result's type; ``compute``: the result. ``moves``: it only says where elements come from."""

    name: str
    infer: Callable[[Types, Attributes], TensorType]
    compute: Callable[[Arrays, Attributes, Sizes], Any]
    moves: bool = False


def _infer_map(types: Types, attributes: Attributes) -> TensorType:
    function = attributes["function"]
    if function not in FUNCTIONS:
        raise UsageError(f"unknown function {function!r}; known: {', '.join(FUNCTIONS)}")
    shape = broadcast([t.shape for t in types], function)
    if function in COMPARISONS:
        return TensorType(shape, "bool")
    valued = types[1:] if function == "select" else types
    kinds = {t.dtype for t in valued}
    if len(kinds) != 1:
        raise UsageError(f"{function}: inputs of different element types {', '.join(map(str, valued))}; cast them first")
    return TensorType(shape, valued[0].dtype)


def _compute_map(arrays: Arrays, attributes: Attributes, sizes: Sizes) -> Any:
    function = attributes["function"]
    if function == "div" and np.asarray(arrays[0]).dtype.kind in "iu":  # towards zero, as ONNX and C divide
        first, other = np.asarray(arrays[0]), np.asarray(arrays[1])
        with np.errstate(all="ignore"):  # the least number has no magnitude in its type
            below = first // other
            inexact = (below * other != first) & ((first < 0) != (other < 0)) & (other != 0)
            return (below + inexact).astype(first.dtype)
    result = np.asarray(FUNCTIONS[function](*arrays))
    valued = np.asarray(arrays[-1])
    with np.errstate(invalid="ignore"):  # whole numbers of NaN: some number, as in C
        return result if function in COMPARISONS else result.astype(valued.dtype, copy=False)


def _infer_cast(types: Types, attributes: Attributes) -> TensorType:
    return TensorType(types[0].shape, attributes["dtype"])


def _compute_cast(arrays: Arrays, attributes: Attributes, sizes: Sizes) -> Any:
    with np.errstate(all="ignore"):
        return np.asarray(arrays[0]).astype(numpy_dtype(attributes["dtype"]))


def _infer_bitcast(types: Types, attributes: Attributes) -> TensorType:
    source, target = attributes["source"], attributes["target"]
    if numpy_dtype(source).itemsize != numpy_dtype(target).itemsize:
        raise UsageError(f"bitcast: {source} and {target} have other widths; they must be the same")
    return TensorType(types[0].shape, attributes["dtype"])


def _compute_bitcast(arrays: Arrays, attributes: Attributes, sizes: Sizes) -> Any:
    """The bits of ``source`` as ``target``, each of which a graph may hold in a wider type, the result in ``dtype``."""
    with np.errstate(all="ignore"):
        stored = np.asarray(arrays[0]).astype(numpy_dtype(attributes["source"]))
        return stored.view(numpy_dtype(attributes["target"])).astype(numpy_dtype(attributes["dtype"]))


def _reduced(shape: Sequence[Extent], axes: Sequence[int], keepdims: bool) -> tuple[Extent, ...]:
    if keepdims:
        return tuple(1 if index in axes else extent for index, extent in enumerate(shape))
    return tuple(extent for index, extent in enumerate(shape) if index not in axes)


def _infer_reduce(types: Types, attributes: Attributes) -> TensorType:
    if attributes["how"] not in REDUCTIONS:
        raise UsageError(f"unknown reduction {attributes['how']!r}; known: {', '.join(REDUCTIONS)}")
    axes = {axis_of(axis, types[0].rank, attributes["how"]) for axis in attributes["axes"]}
    return TensorType(_reduced(types[0].shape, sorted(axes), attributes.get("keepdims", False)), types[0].dtype)


def _compute_reduce(arrays: Arrays, attributes: Attributes, sizes: Sizes) -> Any:
    """Over nothing: 0 and 1 for sums and products, the least and largest number for maxima and minima."""
    how, array = attributes["how"], np.asarray(arrays[0])
    axes = tuple(axis % array.ndim for axis in attributes["axes"])
    start = {} if how in ("sum", "prod") else {"initial": _limit(array.dtype, least=how == "max")}
    with np.errstate(all="ignore"):
        result = REDUCTIONS[how].reduce(
            array, axis=axes, keepdims=attributes.get("keepdims", False), dtype=array.dtype, **start
        )
    return np.asarray(result)


def _limit(dtype: np.dtype[Any], *, least: bool) -> Any:
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if least else np.iinfo(dtype).max
    if dtype.kind == "b":
        return not least
    return dtype.type(-np.inf if least else np.inf)


def _infer_arg_reduce(types: Types, attributes: Attributes) -> TensorType:
    axis = axis_of(attributes["axis"], types[0].rank, attributes["how"])
    return TensorType(_reduced(types[0].shape, [axis], attributes.get("keepdims", False)), "int64")


def _compute_arg_reduce(arrays: Arrays, attributes: Attributes, sizes: Sizes) -> Any:
    """The first of equals, or the last with ``last``; a NaN counts as the extreme."""
    array, axis = np.asarray(arrays[0]), attributes["axis"]
    if not array.shape[axis]:
        return np.zeros(np.max(array, axis=axis, initial=0, keepdims=attributes.get("keepdims", False)).shape, np.int64)
    find = np.argmax if attributes["how"] == "max" else np.argmin
    if attributes.get("last", False):
        result = array.shape[axis] - 1 - find(np.flip(array, axis), axis=axis, keepdims=attributes.get("keepdims", False))
    else:
        result = find(array, axis=axis, keepdims=attributes.get("keepdims", False))
    return np.asarray(result, np.int64)


def _contraction(types: Types, attributes: Attributes) -> tuple[list[str], str]:
    inputs, _, output = attributes["labels"].partition("->")
    labels = inputs.split(",")
    if len(labels) != len(types) or any(len(own) != t.rank for own, t in zip(labels, types, strict=True)):
        raise UsageError(f"contract {attributes['labels']}: inputs {', '.join(map(str, types))} have other axes")
    return labels, output


def _infer_contract(types: Types, attributes: Attributes) -> TensorType:
    labels, output = _contraction(types, attributes)
    extents: dict[str, Extent] = {}
    for own, t in zip(labels, types, strict=True):
        for label, extent in zip(own, t.shape, strict=True):
            known = extents.setdefault(label, extent)
            if isinstance(known, int) and isinstance(extent, int) and not same(known, extent):
                raise UsageError(f"contract {attributes['labels']}: {label} is {text(known)} and {text(extent)}")
    return TensorType(tuple(extents[label] for label in output), types[0].dtype)


def _compute_contract(arrays: Arrays, attributes: Attributes, sizes: Sizes) -> Any:
    own = np.asarray(arrays[0]).dtype
    extents: dict[str, int] = {}
    for labels, array in zip(attributes["labels"].partition("->")[0].split(","), arrays, strict=True):
        for label, extent in zip(labels, np.shape(array), strict=True):
            if extents.setdefault(label, extent) != extent:  # einsum repeats what has one element
                raise ValueError(f"{label} is {extents[label]} and {extent}")
    known = arrays if own.kind != "V" else [np.asarray(array, np.float32) for array in arrays]  # einsum has no bf16
    with np.errstate(all="ignore"):
        return np.asarray(np.einsum(attributes["labels"], *known, optimize=True)).astype(own, copy=False)


def _infer_iota(types: Types, attributes: Attributes) -> TensorType:
    return TensorType((attributes["extent"],), attributes.get("dtype", "int64"))


def _compute_iota(arrays: Arrays, attributes: Attributes, sizes: Sizes) -> Any:
    return np.arange(sizes(attributes["extent"])).astype(numpy_dtype(attributes.get("dtype", "int64")))


def _infer_size(types: Types, attributes: Attributes) -> TensorType:
    return TensorType((), attributes.get("dtype", "int64"))


def _compute_size(arrays: Arrays, attributes: Attributes, sizes: Sizes) -> Any:
    return np.asarray(sizes(attributes["extent"])).astype(numpy_dtype(attributes.get("dtype", "int64")))


_COMPUTING = (
    Primitive("map", _infer_map, _compute_map),
    Primitive("cast", _infer_cast, _compute_cast),
    Primitive("bitcast", _infer_bitcast, _compute_bitcast),
    Primitive("reduce", _infer_reduce, _compute_reduce),
    Primitive("arg_reduce", _infer_arg_reduce, _compute_arg_reduce),
    Primitive("contract", _infer_contract, _compute_contract),
    Primitive("iota", _infer_iota, _compute_iota),
    Primitive("size", _infer_size, _compute_size),  # an extent as a number
)
_MOVING = tuple(Primitive(name, infer, compute, moves=True) for name, infer, compute in layouts.LAYOUTS)
_KEPT = (*ordered.ORDERED, *recurrent.RECURRENT, *control_flow.DATA_SIZED, *control_flow.LOOPS)
_ORDERED = tuple(Primitive(*item) for item in _KEPT)
PRIMITIVES: Mapping[str, Primitive] = {item.name: item for item in (*_COMPUTING, *_MOVING, *_ORDERED)}
