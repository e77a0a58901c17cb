"""DLPack's tensors of contiguous arrays, as a library takes them. Of arrays of the same shapes all but addresses is kept."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from haotuner.spec.bytecode import TYPES

BFLOAT = 4
_KINDS = {0: "int", 1: "uint", 2: "float", BFLOAT: "bfloat", 6: "bool"}
NAMES = {(code, bits): _KINDS[code] + (str(bits) if code != 6 else "") for code, bits in TYPES.values()}
_CODES = {np.dtype(name): code << 32 | bits << 40 | 1 << 48 for (code, bits), name in NAMES.items() if code != BFLOAT}
_HALF = BFLOAT << 32 | 16 << 40 | 1 << 48  # of the type that numpy has from others
_CPU, _WORDS = 1, 6  # of a tensor: address, device, rank and type, shape, strides, offset
_SHAPES = 256  # of calls that are kept


def address(array_: Any) -> int:
    """Address of an array's elements."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array_))  # a quarter of the time of what numpy says
    except (TypeError, ValueError, BufferError):  # of what may not be written, of none, of types that others made
        return int(array_.__array_interface__["data"][0])


class Tensors:
    """Tensors of certain shapes. It must live as long as anyone reads what it packed: shapes lie here."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], types: Sequence[int]) -> None:
        """``types``: words of each, as DLPack has them beside the rank."""
        extents = [extent for shape in shapes for extent in shape]
        self._extents = array("q", extents or (0,))  # a type of ctypes and a Struct would cost a new size 15 us
        self._format = f"{_WORDS * len(shapes)}q"
        self._words: list[int] = []
        at, _ = self._extents.buffer_info()
        for shape, kind in zip(shapes, types, strict=True):
            self._words += (0, _CPU, len(shape) | kind, at, 0, 0)
            at += 8 * len(shape)

    def packed(self, arrays: Sequence[Any]) -> bytes:
        """One tensor behind the other."""
        words = self._words[:]
        words[::_WORDS] = [address(array_) for array_ in arrays]
        return struct.pack(self._format, *words)


class Handed:
    """Tensors of arrays of certain types, by the arrays' shapes."""

    def __init__(self, types: Sequence[np.dtype[Any]]) -> None:
        self._types = [_CODES.get(dtype, _HALF) for dtype in types]
        self._known: dict[tuple[tuple[int, ...], ...], Tensors] = {}

    def of(self, arrays: Sequence[Any]) -> Tensors:
        """Those of contiguous arrays; several threads may ask at once."""
        shapes = tuple([array_.shape for array_ in arrays])
        result = self._known.get(shapes)
        if result is None:
            if len(self._known) >= _SHAPES:
                self._known.clear()
            result = self._known[shapes] = Tensors(shapes, self._types)
        return result
