"""Weights that are bound once: as users store them, as the loops of a pack's library read them, and back."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from haotuner.errors import PackInvalid
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp
from haotuner.runtime.arrays import numpy_type, typed_array
from haotuner.runtime.host_memory import Arena
from haotuner.runtime.library import Library
from haotuner.spec.op import Op

Unpack = Callable[[], NDArray[Any]]
BLOCK_FLOATS = 1 << 22  # 16 MiB at a time, so that a memory-mapped weight is never in memory twice


class Packer(Protocol):
    """An open pack, as packing needs it: memory, and the library that knows the op by its place."""

    arena: Arena

    def table_index(self, op: PackOp) -> int:
        """The op's place in the library's tables."""

    def library(self) -> Library:
        """The open library."""


def pack_weight(pack: Packer, op: PackOp, weight: Any) -> tuple[NDArray[np.float32], Unpack]:
    """A weight in the pack's arena as its op's loops read it, and what gives it back as users store it.

    Accepts read-only and memory-mapped arrays. TypeError for another dtype, ValueError for another shape or device.
    """
    values, facts = stored_weight(op, weight), op.operands[1].packed
    position, library = pack.table_index(op), pack.library()
    if "pw" in facts and "terms" not in facts:
        panels = pack.arena.take((op.panels, op.k, op.pw))
        floats = floats_of_panels(library, position)
        if floats:
            _check_floats(op, panels.size, floats)
            library.function("ht_pack")(position, _readable(values), panels.reshape(-1))
        else:
            panels_by_numpy(op, values, panels)
        return panels, lambda: _from_panels(op, panels)
    function = library.function("ht_pack")
    floats = int(function(position, None, None))
    _check_floats(op, int(facts.get("floats", 0) or floats), floats)
    packed = pack.arena.take((floats,))

    def into(array: NDArray[Any], out: NDArray[np.float32]) -> None:
        function(position, _readable(array), out)

    into(values, packed)
    if "terms" in facts:
        return packed, lambda: _from_words(op, packed)
    if values.dtype != np.float32:  # words of several terms do not tell where each element lies
        return packed, values.copy().view(numpy_type(op.operands[1].dtype)).copy
    plain = int(facts.get("plain", packed.size))  # transformed copies follow
    return packed, lambda: _from_places(packed, values.shape, plain, into)


def _check_floats(op: PackOp, described: int, packed: int) -> None:
    """PackInvalid where the manifest and the library do not mean the same packed weight."""
    if described != packed:
        raise PackInvalid(
            f"{op.name}: the manifest has a packed weight of {described} floats, the library makes one of {packed}; "
            "tune the pack again"
        )


def stored_weight(op: PackOp, weight: Any) -> NDArray[Any]:
    """A weight as users store it, as an array; TypeError and ValueError as ``pack_weight``."""
    values: NDArray[Any] = typed_array(op, "weight", weight, {DTYPES[op.operands[1].dtype].numpy})
    extents = tuple(op.axis(axis).extent or 0 for axis in op.operands[1].dims)
    shape = extents if all(extents) else weight_shape(op.op)  # a manifest says no channels of a group
    if op.kind == "dense" and values.ndim != len(shape) and values.dtype == np.float32:
        raise ValueError(f"{op.name}: weight has rank {values.ndim}; expected {len(shape)}")
    if values.shape != shape:
        raise ValueError(f"{op.name}: weight has shape {tuple(values.shape)}; expected {shape}")
    return values


def weight_shape(op: Op) -> tuple[int, ...]:
    """Dimensions of a convolution's weight as users store it."""
    extents = {**dict(op.static), **{axis: 1 for axis in op.dynamic}}
    options = op.all_options()
    return op.meaning.operands[1].shape(op.meaning.complete(extents, options), options)


def _readable(array: NDArray[Any]) -> NDArray[Any]:
    """A contiguous array that DLPack hands out; of one that is read-only a view, for a library that only reads it.

    A weight that is mapped from a file is so never in memory twice.
    """
    whole = np.ascontiguousarray(array)
    if whole.flags.writeable or not whole.size:
        return whole if whole.flags.writeable else whole.copy()
    memory = memoryview((ctypes.c_char * whole.nbytes).from_address(whole.ctypes.data))
    return np.frombuffer(memory, whole.dtype).reshape(whole.shape)


def _from_panels(op: PackOp, packed: NDArray[np.float32]) -> NDArray[Any]:
    rows = packed.transpose(0, 2, 1).reshape(-1, op.k)[: op.n]
    return np.array(rows.T if op.weight == "kn" else rows, order="C")


def _from_words(op: PackOp, packed: NDArray[np.float32]) -> NDArray[Any]:
    terms, element_type = op.operands[1].packed["terms"], DTYPES[op.operands[1].dtype]
    depth = -(-op.k // terms)  # behind the panels may lie what sums of signed bytes begin with
    every = packed.view(f"uint{element_type.size * 8}")[: op.panels * depth * op.pw * terms]
    words = every.reshape(op.panels, depth, op.pw, terms)
    rows = words.transpose(0, 2, 1, 3).reshape(op.panels * op.pw, -1)[: op.n, : op.k]
    return np.array(rows.T if op.weight == "kn" else rows, order="C").view(numpy_type(op.operands[1].dtype))


def _from_places(
    packed: NDArray[np.float32], shape: tuple[int, ...], plain: int, into: Callable[[Any, Any], None]
) -> NDArray[Any]:
    """The weight out of the first ``plain`` floats of its packed form: numbers packed alike tell where each lies."""
    count = int(np.prod(shape))
    numbers = np.zeros(packed.size, np.float32)
    into(np.arange(1, count + 1, dtype=np.int32).view(np.float32).reshape(shape), numbers)
    numbers = numbers[:plain].view(np.int32)
    result, selected = np.zeros(count, np.float32), numbers > 0
    result[numbers[selected] - 1] = packed[:plain][selected]
    return result.reshape(shape)


def floats_of_panels(library: Library, position: int) -> int:
    """Number of floats of the op's panels where the library lays out its fp32 weight itself, else 0."""
    try:
        return int(library.function("ht_pack")(position, None, None))
    except (PackInvalid, ValueError):  # it has no such function, or none for this type
        return 0


def panels_by_numpy(op: PackOp, weight: NDArray[Any], panels: NDArray[np.float32]) -> None:
    """Fill panels ``(panels, k, pw)`` with a weight ``(n, k)`` or ``(k, n)``, zero padded, where a library has none."""
    rows = weight.T if op.weight == "kn" else weight
    step = max(1, BLOCK_FLOATS // (op.k * op.pw))
    for first in range(0, op.panels, step):
        block = rows[first * op.pw : (first + step) * op.pw]
        whole = len(block) // op.pw
        part = panels[first : first + step]
        part[:whole] = block[: whole * op.pw].reshape(whole, op.pw, op.k).transpose(0, 2, 1)
        left = len(block) - whole * op.pw
        part[whole:] = 0
        if left:
            part[whole, :, :left] = block[whole * op.pw :].T
