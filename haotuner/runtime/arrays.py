"""Arrays as a library takes them: by address, through DLPack, of types that numpy may not have.

numpy's arrays by address: a call that names them so is spared 0.4 us of DLPack for each.

Arrays of types that numpy may not have: bfloat16 is taken from torch, from numpy with ml_dtypes, or as bits in uint16.

DLPack's tensors of contiguous arrays, as a library takes them. Of arrays of the same shapes all but addresses is kept.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any

import numpy as np

from haotuner.errors import PackInvalid
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp
from haotuner.spec.bytecode import TYPES

HEAD_BYTES = 16  # of an object of CPython; more without the lock, or compiled for debugging
ARRAY_BYTES = 72  # up to the flags, the last field that native/arrays.c reads
ARRAYS = frozenset({np.ndarray})  # not those of a subclass, which may be laid out or mean something else
ADDRESSED_TYPES = ("float32", "float16", "int8", "uint8", "uint16", "int32", "int64")  # that it knows
MORE_TYPES = ("float64", "bool")  # that libraries of models know; older ones do not


def takes_addresses(function: Callable[[str], Callable[..., Any]]) -> bool:
    """True if a library finds in this process's arrays, by ``id``, what DLPack says of them: settings may have BY_ADDRESS.

    ``function`` gives a function of the library by its name. False for a library that was made before there was such a way.
    """
    try:
        agrees = function("ht_agrees")
    except PackInvalid:
        return False
    return addressed_types(agrees, _tensor_of_dlpack).issuperset(ADDRESSED_TYPES)


def addressed_types(agrees: Callable[[int, Any], Any], tensor_of: Callable[[Any], Any]) -> frozenset[str]:
    """Types of whose arrays a library's ``agrees`` finds what their tensors say, and none to write to if read-only.

    ``tensor_of``: the tensor of an array, as ``agrees`` takes it.
    """
    if sys.implementation.name != "cpython" or object.__basicsize__ != HEAD_BYTES or np.ndarray.__basicsize__ < ARRAY_BYTES:
        return frozenset()
    types = set()
    for dtype, (array_, closed) in _examples().items():
        tensor = tensor_of(array_)
        if agrees(id(array_), tensor) and not agrees(id(closed), tensor):
            types.add(dtype)
    return frozenset(types)


@cache
def _examples() -> Mapping[str, tuple[Any, Any]]:
    """Views of each type with gaps between their elements: the same elements to write to, and read-only."""
    examples = {}
    for dtype in (*ADDRESSED_TYPES, *MORE_TYPES):
        array_ = np.zeros((3, 4, 6), dtype)[:, ::2, 1:]
        closed = array_[:]
        closed.flags.writeable = False
        examples[dtype] = array_, closed
    return examples


def _tensor_of_dlpack(array_: Any) -> Any:
    import tvm_ffi

    return tvm_ffi.from_dlpack(array_)


_BITS = "uint16"  # of bfloat16 in arrays of a numpy that knows none
FLOATS = frozenset({"float32"})
_KNOWN = {name: np.dtype(kind.numpy) for name, kind in DTYPES.items() if hasattr(np, kind.numpy)}


def empty_like(x: Any, size: tuple[int, ...], dtype: str) -> Any:
    """A new array of a type: of x's own where that stands for it, and of x's library where that takes DLPack."""
    if isinstance(x, np.ndarray):
        own = dtype == "bf16" and x.dtype.name in ("bfloat16", _BITS)
        return np.empty(size, x.dtype if own else numpy_type(dtype))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.new_empty(size, dtype=getattr(torch, DTYPES[dtype].numpy))
    result = np.empty(size, numpy_type(dtype))
    same = getattr(sys.modules.get(type(x).__module__.partition(".")[0]), "from_dlpack", None)
    return same(as_bits(result)) if callable(same) else result


def numpy_type(name: str) -> np.dtype[Any]:
    """Numpy's type of a dtype; of bf16 the one of ml_dtypes, or 16 bits where that is not installed."""
    if name in _KNOWN:
        return _KNOWN[name]
    element_type = DTYPES[name].numpy
    try:
        importlib.import_module("ml_dtypes")
    except ImportError:
        return np.dtype(_BITS)
    return np.dtype(element_type)


def channel_values(op: PackOp, name: str, value: Any, count: int) -> Any:
    """A float32 copy of one value a channel: an array of float32 or of the op's type (count,), or one number.

    TypeError for another type, ValueError for another shape or device.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return np.full(count, value, np.float32)
    plain = "terms" not in op.operands[1].packed and op.operands[1].dtype == "fp32"
    allowed = FLOATS if plain else (FLOATS | {DTYPES[op.operands[0].dtype].numpy}) - {"uint8", "int8"}
    row = typed_array(op, name, value, allowed)
    if row.shape not in ((count,), (), (1,)):
        raise ValueError(f"{op.name}: {name} has shape {tuple(row.shape)}; expected ({count},)")
    result = _widened(row) if row.dtype == _BITS else row.astype(np.float32)
    return result if row.shape == (count,) else np.full(count, result.item(), np.float32)


def _widened(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def typed_array(op: PackOp, name: str, value: Any, allowed: AbstractSet[str]) -> Any:
    """As a numpy array, bfloat16 as its bits. TypeError for another type, ValueError for another device."""
    torch, result = sys.modules.get("torch"), value
    if torch is not None and isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise ValueError(f"{op.name}: {name} is on {value.device}; this pack computes on the CPU: pass {name}.cpu()")
        result = value.detach()
        if value.dtype == torch.bfloat16 and "bfloat16" in allowed:
            return result.view(torch.int16).numpy().view(_BITS)
        if str(value.dtype).removeprefix("torch.") in allowed:
            result = result.numpy()
    elif not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        result = np.from_dlpack(value)
    dtype = getattr(result, "dtype", None)
    if not isinstance(result, np.ndarray) or not result.dtype.isnative or result.dtype.name not in _taken_names(allowed):
        text = "a float32 array" if allowed == FLOATS else " or ".join(sorted(allowed))
        raise TypeError(f"{op.name}: {name} is {dtype or type(value).__name__}; expected {text} of native byte order")
    return as_bits(result)


def _taken_names(allowed: AbstractSet[str]) -> AbstractSet[str]:
    return allowed | ({_BITS} if "bfloat16" in allowed else set())


def taken(value: Any, text: str) -> str:
    """The type that an array is held against: bits stand for bfloat16."""
    return _BITS if text == "bfloat16" and isinstance(value, np.ndarray) and value.dtype == _BITS else text


def as_bits(value: Any) -> Any:
    """View that DLPack can pass on: numpy has no bfloat16 of its own."""
    return value.view(_BITS) if isinstance(value, np.ndarray) and value.dtype.kind == "V" else value


BFLOAT = 4
_KINDS = {0: "int", 1: "uint", 2: "float", BFLOAT: "bfloat", 6: "bool"}
NAMES = {(code, bits): _KINDS[code] + (str(bits) if code != 6 else "") for code, bits in TYPES.values()}
_CODES = {np.dtype(name): code << 32 | bits << 40 | 1 << 48 for (code, bits), name in NAMES.items() if code != BFLOAT}
_HALF = BFLOAT << 32 | 16 << 40 | 1 << 48  # of the type that numpy has from others
_CPU = 1
TENSOR_WORDS = 6  # of a tensor: address, device, rank and type, shape, strides, offset
SHAPES = 256  # of calls that are kept


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
        self._format = f"{TENSOR_WORDS * len(shapes)}q"
        self._words: list[int] = []
        at, _ = self._extents.buffer_info()
        for shape, kind in zip(shapes, types, strict=True):
            self._words += (0, _CPU, len(shape) | kind, at, 0, 0)
            at += 8 * len(shape)

    def packed(self, arrays: Sequence[Any]) -> bytes:
        """One tensor behind the other."""
        words = self._words[:]
        words[::TENSOR_WORDS] = [address(array_) for array_ in arrays]
        return struct.pack(self._format, *words)


class Handed:
    """Tensors of arrays of certain types, by the arrays' shapes."""

    def __init__(self, types: Sequence[np.dtype[Any]]) -> None:
        self.types = [_CODES.get(dtype, _HALF) for dtype in types]
        self._known: dict[tuple[tuple[int, ...], ...], Tensors] = {}

    def of(self, arrays: Sequence[Any]) -> Tensors:
        """Those of contiguous arrays; several threads may ask at once."""
        shapes = tuple([array_.shape for array_ in arrays])
        result = self._known.get(shapes)
        if result is None:
            if len(self._known) >= SHAPES:
                self._known.clear()
            result = self._known[shapes] = Tensors(shapes, self.types)
        return result

    def growing(self, ranks: Sequence[int]) -> GrowingTensors:
        """Those of arrays of these ranks of which some are rows of buffers."""
        return GrowingTensors(ranks, self.types)


class GrowingTensors:
    """Tensors of one call after another, some of them the first rows of buffers. One caller has it at a time."""

    def __init__(self, ranks: Sequence[int], types: Sequence[int]) -> None:
        self._format = f"{TENSOR_WORDS * len(ranks)}q"
        self._extents = array("q", bytes(16 * max(1, sum(ranks))))  # the shape of each, and behind it its strides
        self._words: list[int] = []
        self._starts: list[int] = []
        self._shapes: list[tuple[int, ...]] = [(0,) * rank for rank in ranks]
        self._growing: dict[int, int] = {}  # by index the axis that grows
        at, start = self._extents.buffer_info()[0], 0
        for rank, kind in zip(ranks, types, strict=True):
            self._words += (0, _CPU, rank | kind, at + 8 * start, 0, 0)
            self._starts.append(start)
            start += 2 * rank

    def put(self, index: int, buffer: Any, axis: int) -> None:
        """Make the tensor of this index rows of a buffer along an axis."""
        start, rank, shape = self._starts[index], buffer.ndim, buffer.shape
        strides = [stride // buffer.itemsize for stride in buffer.strides]
        self._extents[start : start + 2 * rank] = array("q", (*shape, *strides))
        head = self._words[TENSOR_WORDS * index + 3]
        self._words[TENSOR_WORDS * index], self._words[TENSOR_WORDS * index + 4] = address(buffer), head + 8 * rank
        self._growing[index] = start + axis

    def packed(self, arrays: Sequence[Any], rows: int) -> bytes:
        """One tensor behind the other, of buffers the first ``rows`` rows; these are None in ``arrays``."""
        extents, words = self._extents, self._words
        for position in self._growing.values():
            extents[position] = rows
        for index, array_ in enumerate(arrays):
            if array_ is not None:
                words[TENSOR_WORDS * index] = address(array_)
                if array_.shape != self._shapes[index]:
                    self._shapes[index] = array_.shape
                    start = self._starts[index]
                    extents[start : start + array_.ndim] = array("q", array_.shape)
        return struct.pack(self._format, *words)
