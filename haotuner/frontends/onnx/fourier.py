"""Rules of Fourier transforms: products with a matrix of cosines and sines, made at a request that decides the length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.layout import cut, padded, reshaped, transposed
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph.extents import Extent, canonical, floor_division, same
from haotuner.graph.types import numpy_dtype

LONGEST = 8192  # of a transform: its matrix is of this size squared


def turning(g: ConstantFolding, length: Extent, length_: Extent, kept_length: Extent, dtype: str) -> tuple[str, str]:
    """Cosines and sines, (given, kept), of turns of a length that the request decides."""
    first, other = (g.add("iota", extent=extent, dtype="int64") for extent in (length_, kept_length))
    times = g.map("mul", g.add("reshape", first, shape=(length_, 1)), other)
    whole = g.of_extents(np.array(length, object), "int64")
    times = g.map("sub", times, g.map("mul", g.map("floordiv", times, whole), whole))  # exact, and angles stay small
    angles = g.map("mul", g.cast(times, dtype), g.map("div", g.constant(2 * np.pi, dtype), g.cast(whole, dtype)))
    return g.map("cos", angles), g.map("sin", angles)


def mirrored(g: ConstantFolding, length: Extent, length_: Extent, dtype: str) -> str:
    """(given, 1): how often each of the first frequencies of a real signal counts, for those that they mirror."""
    position = g.add("reshape", g.add("iota", extent=length_, dtype="int64"), shape=(length_, 1))
    whole, twice = g.of_extents(np.array(length, object), "int64"), g.map("mul", position, g.constant(2, "int64"))
    alone = g.map("or", g.map("equal", position, g.constant(0, "int64")), g.map("equal", twice, whole))
    counts = g.map("select", alone, g.constant(1, dtype), g.constant(2, dtype))
    return g.map("select", g.map("less_equal", twice, whole), counts, g.constant(0, dtype))


def _turns(c: NodeContext, length_: int, length: int, kept_length: int, dtype: str) -> Any:
    """(given, kept, 2): cosines and minus sines; what lies beyond ``length`` is cut, what lacks is 0."""
    if length > LONGEST:
        raise c.bad(f"a transform of {length} elements; up to {LONGEST} are products with a matrix")
    times = np.outer(np.arange(length_), np.arange(kept_length)) % length * (2 * np.pi / length)
    result = np.stack([np.cos(times), -np.sin(times)], -1)
    result[length:] = 0
    return result.astype(numpy_dtype(dtype))


def _fixed(c: NodeContext, index: int) -> int:
    return int(c.whole(index)[0])


def _fourier(c: NodeContext) -> str:
    """Along one axis; real and imaginary parts lie on the last one."""
    rank, shape = c.type().rank, c.shape()
    requested = _fixed(c, 2) if c.has_input(2) else c.attribute("axis", 1 if c.opset < 20 else -2)
    axis = requested + rank if requested < 0 else requested
    if c.has_input(1) and not same(c.numbers(1)[0], shape[axis]) and not isinstance(shape[axis], int):
        c = _of_length(c, axis)
        shape = c.shape()
    extent = shape[axis]
    inverse, half, dtype = c.attribute("inverse", 0), c.attribute("onesided", 0), c.type().dtype
    if not isinstance(extent, int) or (c.has_input(1) and not isinstance(c.numbers(1)[0], int)):
        return _dynamic_transform(c, axis, extent, inverse, half)
    length = _fixed(c, 1) if c.has_input(1) else extent
    if inverse and half:
        length = _fixed(c, 1) if c.has_input(1) else 2 * (extent - 1)
        return _along(c, axis, _real_signal(c, extent, length, dtype))
    turns = _turns(c, extent, length, length // 2 + 1 if half else length, dtype)
    cos, sin = turns[..., 0], turns[..., 1]
    if inverse:
        cos, sin = cos / length, -sin / length
    of_real = np.stack([cos, sin], -1)
    of_both = of_real[:, None] if shape[-1] == 1 else np.stack([of_real, np.stack([-sin, cos], -1)], 1)
    return _along(c, axis, of_both)


def _of_length(c: NodeContext, axis: int) -> NodeContext:
    """The node with its signal padded with zeros and cut to the length that it transforms.

    Of half of the frequencies back to real numbers that are length / 2 + 1.
    """
    length: Extent = c.numbers(1)[0]
    back = c.attribute("inverse", 0) and c.attribute("onesided", 0)
    own = canonical(floor_division(length, 2) + 1) if back else length
    after: list[Extent] = [0] * c.type().rank
    after[axis] = own
    x = padded(c, c.tensor(0), [0] * len(after), after, "constant", 0.0)
    return replace(c, inputs=(cut(c, x, axis, 0, own), *c.inputs[1:]))


def _dynamic_transform(c: NodeContext, axis: int, extent: Extent, inverse: int, half: int) -> str:
    """Of a length that the request decides: its matrix is computed with the request."""
    g, dtype, both = c.g, c.type().dtype, c.shape()[-1] != 1
    back = inverse and half
    own = canonical(2 * (extent - 1)) if back else extent
    length = c.numbers(1)[0] if c.has_input(1) else own
    if not same(canonical(floor_division(length, 2) + 1) if back else length, extent):
        raise c.bad(f"a transform of {length} elements along an axis of {extent}: pad or cut the axis before")
    selected = length if back or not half else canonical(floor_division(length, 2) + 1)
    cos, sin = turning(g, length, extent, selected, dtype)
    if inverse:
        share = g.map("div", g.constant(1, dtype), g.cast(g.of_extents(np.array(length, object), "int64"), dtype))
        share = g.map("mul", share, mirrored(g, length, extent, dtype)) if back else share
        cos, sin = g.map("mul", cos, share), g.map("neg", g.map("mul", sin, share))
    minus = g.map("neg", sin)
    rows = [[cos] if back else [cos, minus], [sin] if back else [sin, cos]][: 2 if both else 1]
    lines = [_beside(c, [reshaped(c, item, (extent, 1, selected, 1)) for item in row], 3) for row in rows]
    return _along(c, axis, _beside(c, lines, 1))


def _beside(c: NodeContext, parts: list[str], axis: int) -> str:
    return parts[0] if len(parts) == 1 else c.g.add("concat", *parts, axis=axis)


def _real_signal(c: NodeContext, extent: int, length: int, dtype: str) -> Any:
    """(extent, 2, length, 1): of half of the frequencies back to real numbers; the other half mirrors them."""
    turns = _turns(c, length, length, extent, "fp64").transpose(1, 0, 2)  # cosines and minus sines by frequency and time
    twice = np.full(extent, 2.0)
    twice[[position for position in (0, length - length // 2) if position < extent and 2 * position % length == 0]] = 1.0
    result = (turns * twice[:, None, None] / length).transpose(0, 2, 1)[..., None]
    return result.astype(numpy_dtype(dtype))


def _along(c: NodeContext, axis: int, matrix: Any) -> str:
    """The product along one axis; parts of numbers lie on the last one. ``matrix``: an array or a tensor, of four axes."""
    g, rank = c.g, c.type().rank
    order = [*(index for index in range(rank - 1) if index != axis), axis, rank - 1]
    lead = "".join(chr(ord("a") + index) for index in range(rank - 2))
    stored = matrix if isinstance(matrix, str) else _constant_like(c, matrix)
    sizes = g.types[stored].shape
    rows, columns = canonical(sizes[0] * sizes[1]), canonical(sizes[2] * sizes[3])
    x = transposed(c, c.tensor(0), order)
    outer = g.types[x].shape[: rank - 2]
    x = reshaped(c, x, (*outer, rows))
    result = g.add("contract", x, reshaped(c, stored, (rows, columns)), labels=f"{lead}y,yz->{lead}z")
    result = reshaped(c, result, (*outer, *sizes[2:]))
    return transposed(c, result, [order.index(index) for index in range(rank)])


def _short_fourier(c: NodeContext) -> str:
    """Of parts of a real signal, each times a window: batch x parts x frequencies x 2."""
    g, step = c.g, _fixed(c, 1)
    if c.type().rank == 3 and c.shape()[-1] != 1:
        raise c.bad("of complex signals")
    batch, samples = c.shape()[:2]
    size = _fixed(c, 3) if c.has_input(3) else c.shape(2)[0]
    if not isinstance(size, int):
        raise c.bad("parts whose length depends on the request")
    selected = size // 2 + 1 if c.attribute("onesided", 1) else size
    turns = _turns(c, size, size, selected, "fp64").reshape(size, selected * 2).T  # frequency by frequency, both parts
    window = g.constants.get(c.tensor(2)) if c.has_input(2) else np.ones(size)
    x = reshaped(c, c.tensor(0), (batch, samples, *([1] if window is not None else ())))
    parts = g.add("window", x, axes=(1,), sizes=(size,), strides=(step,), dilations=(1,))
    if window is not None:  # of one channel, a convolution whose filters are the frequencies: no part lies in memory
        filters = (turns * window)[:, np.newaxis]
        result = g.add("contract", parts, _constant_like(c, filters), labels="bpct,fct->bpf")
    else:
        parts = g.map("mul", parts, c.tensor(2))
        result = g.add("contract", parts, _constant_like(c, turns), labels="bpt,ft->bpf")
    return reshaped(c, result, (batch, g.types[result].shape[1], selected, 2))


def _constant_like(c: NodeContext, matrix: Any) -> str:
    """A constant of the signal's type."""
    return c.g.constant(np.ascontiguousarray(matrix.astype(numpy_dtype(c.type().dtype))))


SPECTRA: Mapping[str, Rule] = {"DFT": _fourier, "STFT": _short_fourier}
