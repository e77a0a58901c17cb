"""Layout primitives (transpose, reshape, broadcast, slice, pad, concat, gather, window): they say where elements lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, canonical, ceiling_division, floor_division, largest, product, same, text
from haotuner.graph.types import TensorType, axis_of

PAD_MODES = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}


def _infer_transpose(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    order = attributes["order"]
    if sorted(order) != list(range(types[0].rank)):
        raise UsageError(f"transpose: {list(order)} is no order of {types[0].rank} axes")
    return TensorType(tuple(types[0].shape[axis] for axis in order), types[0].dtype)


def _transpose(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    return np.transpose(arrays[0], attributes["order"])


def _infer_reshape(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    shape = tuple(attributes["shape"])
    before, after = product(types[0].shape), product(shape)
    if isinstance(before, int) and isinstance(after, int) and before != after:
        raise UsageError(f"reshape: {types[0]} has {before} elements, ({', '.join(map(text, shape))}) has {after}")
    return TensorType(shape, types[0].dtype)


def _reshape(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    return np.reshape(arrays[0], [sizes(extent) for extent in attributes["shape"]])


def _infer_broadcast(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    shape, own = tuple(attributes["shape"]), types[0].shape
    behind = shape[len(shape) - len(own) :]
    bad = len(own) > len(shape) or any(
        isinstance(o, int) and o != 1 and isinstance(w, int) and o != w for o, w in zip(own, behind, strict=False)
    )
    if bad:
        raise UsageError(f"broadcast: {types[0]} does not fit ({', '.join(map(text, shape))})")
    return TensorType(shape, types[0].dtype)


def _broadcast(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    return np.broadcast_to(arrays[0], [sizes(extent) for extent in attributes["shape"]])


def sliced_extent(start: Extent, stop: Extent, step: int) -> Extent:
    """Elements from ``start`` to before ``stop``, both inside the axis (``stop`` -1: through the first element)."""
    return ceiling_division(canonical(stop - start), step) if step > 0 else ceiling_division(canonical(start - stop), -step)


def _infer_slice(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    shape = list(types[0].shape)
    for axis, start, stop, step in zip(*(attributes[key] for key in ("axes", "starts", "stops", "steps")), strict=True):
        if step == 0:
            raise UsageError("slice: a step of 0")
        index = axis_of(axis, types[0].rank, "slice")
        _refuse_beyond(types[0], index, start, stop, step)
        shape[index] = sliced_extent(start, stop, step)
    return TensorType(tuple(shape), types[0].dtype)


def _refuse_beyond(kind: TensorType, axis: int, start: Extent, stop: Extent, step: int) -> None:
    """UsageError where a part is known to lie beyond the tensor: loops read what they are told."""
    extent = kind.shape[axis]
    if isinstance(start, int) and isinstance(stop, int):
        low, high = (start, stop) if step > 0 else (stop + 1, start + 1)
        if low < high and (low < 0 or (isinstance(extent, int) and high > extent)):
            raise UsageError(f"slice: elements {low} to {high - 1} of axis {axis} of {kind}")


def _slice(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    array = np.asarray(arrays[0])
    chosen: list[slice] = [slice(None)] * array.ndim
    for axis, start, stop, step in zip(*(attributes[key] for key in ("axes", "starts", "stops", "steps")), strict=True):
        last = sizes(stop)  # before the first element where it is negative, not from the end
        chosen[axis] = slice(sizes(start), last if last >= 0 else 0 if step > 0 else None, step)
    return array[tuple(chosen)]


def _infer_pad(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    if attributes["mode"] not in PAD_MODES:
        raise UsageError(f"pad: unknown mode {attributes['mode']!r}; known: {', '.join(PAD_MODES)}")
    if len(attributes["before"]) != types[0].rank or len(attributes["after"]) != types[0].rank:
        raise UsageError(f"pad: {len(attributes['before'])} pads for {types[0].rank} axes")
    widths = zip(types[0].shape, attributes["before"], attributes["after"], strict=True)
    return TensorType(tuple(extent + before + after for extent, before, after in widths), types[0].dtype)


def _pad(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    widths = [(sizes(b), sizes(a)) for b, a in zip(attributes["before"], attributes["after"], strict=True)]
    more: dict[str, Any] = {"constant_values": attributes.get("value", 0)} if attributes["mode"] == "constant" else {}
    array = np.asarray(arrays[0])
    cut = tuple(slice(max(0, -b), n + min(0, a)) for n, (b, a) in zip(array.shape, widths, strict=True))  # of negative ones
    return np.pad(array[cut], [(max(0, b), max(0, a)) for b, a in widths], mode=attributes["mode"], **more)


def _infer_concat(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    axis = axis_of(attributes["axis"], types[0].rank, "concat")
    for other in types[1:]:
        alike = other.rank == types[0].rank and other.dtype == types[0].dtype
        fits = alike and all(
            index == axis or same(extent, two) or not (isinstance(extent, int) and isinstance(two, int))
            for index, (extent, two) in enumerate(zip(types[0].shape, other.shape, strict=True))
        )
        if not fits:
            raise UsageError(f"concat along axis {axis}: {types[0]} and {other} do not go together")
    along = canonical(sum((t.shape[axis] for t in types[1:]), types[0].shape[axis]))
    return TensorType((*types[0].shape[:axis], along, *types[0].shape[axis + 1 :]), types[0].dtype)


def _concat(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    return np.concatenate(arrays, axis=attributes["axis"])


def _infer_gather(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    axis = axis_of(attributes["axis"], types[0].rank, "gather")
    if not types[1].dtype.startswith(("int", "uint")):
        raise UsageError(f"gather: indices are {types[1]}, expected whole numbers")
    return TensorType((*types[0].shape[:axis], *types[1].shape, *types[0].shape[axis + 1 :]), types[0].dtype)


def _gather(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    """Indices count from the end where they are negative.

    The attribute ``bounded`` promises that none is, nor beyond the axis, whatever a request says.
    """
    return np.take(arrays[0], arrays[1], axis=attributes["axis"])


def _infer_window(types: Sequence[TensorType], attributes: Mapping[str, Any]) -> TensorType:
    shape = list(types[0].shape)
    for axis, size, stride, dilation in zip(
        *(attributes[k] for k in ("axes", "sizes", "strides", "dilations")), strict=True
    ):
        index = axis_of(axis, types[0].rank, "window")
        shape[index] = largest([floor_division(shape[index] - (size - 1) * dilation - 1, stride) + 1, 0])
    return TensorType((*shape, *attributes["sizes"]), types[0].dtype)


def _window(arrays: Sequence[Any], attributes: Mapping[str, Any], sizes: Callable[[Extent], int]) -> Any:
    """Sliding windows: one axis more at the end for each that slides."""
    array = np.asarray(arrays[0])
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(attributes["sizes"], attributes["dilations"], strict=True)]
    if any(array.shape[axis] < span for axis, span in zip(attributes["axes"], spans, strict=True)):
        shape = list(array.shape)
        for axis, span, stride in zip(attributes["axes"], spans, attributes["strides"], strict=True):
            shape[axis] = max((shape[axis] - span) // stride + 1, 0)
        return np.empty([*shape, *attributes["sizes"]], array.dtype)
    views = np.lib.stride_tricks.sliding_window_view(array, spans, axis=tuple(attributes["axes"]))
    chosen: list[slice] = [slice(None)] * views.ndim
    for index, axis in enumerate(attributes["axes"]):
        chosen[axis] = slice(None, None, attributes["strides"][index])
        chosen[array.ndim + index] = slice(None, None, attributes["dilations"][index])
    return views[tuple(chosen)]


LAYOUTS = (
    ("transpose", _infer_transpose, _transpose),
    ("reshape", _infer_reshape, _reshape),
    ("broadcast", _infer_broadcast, _broadcast),
    ("slice", _infer_slice, _slice),
    ("pad", _infer_pad, _pad),
    ("concat", _infer_concat, _concat),
    ("gather", _infer_gather, _gather),
    ("window", _infer_window, _window),
)
