"""Element types of the open inference protocol, as numpy has them, and arrays of their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from haotuner.serve.refusals import InvalidRequest

NUMPY = {
    "BOOL": "bool",
    **{f"{sign}INT{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BF16": "bfloat16",
}
MOST_AXES = 64  # of a tensor, as of numpy's arrays
NAMES = {numpy: name for name, numpy in NUMPY.items()}
# Of JSON, by the kind of an element type; all of them for the other kinds.
_NUMBERS: dict[str, tuple[type, ...]] = {"b": (bool,), "i": (bool, int), "u": (bool, int)}


def datatype_of(dtype: Any) -> str:
    """The protocol's name of a numpy type; KeyError of one that it does not have."""
    return NAMES[np.dtype(dtype).name]


def array_of(raw: Any, dtype: np.dtype[Any], shape: Sequence[int], where: str) -> np.ndarray[Any, Any]:
    """An array over bytes of the row-major elements; it shares their memory where that is aligned. InvalidRequest."""
    expected = prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise InvalidRequest(
            f"{where}: shape {list(shape)} of {dtype} has {expected} bytes, got {len(raw)}; send as many as the shape says"
        )
    array = np.frombuffer(raw, dtype).reshape(shape)
    return array if array.flags.aligned else array.copy()


def array_of_numbers(data: Any, dtype: np.dtype[Any], shape: Sequence[int], where: str) -> np.ndarray[Any, Any]:
    """An array of JSON's numbers, flat or nested as the shape says. InvalidRequest."""
    try:
        array = np.asarray(data)
        if array.dtype.kind == "O" or (dtype.kind in "iu" and array.dtype.kind == "f"):
            array = np.asarray(data, object)  # whole numbers beyond int64 are floats or objects to numpy
        if array.size != prod(shape) or (array.ndim > 1 and array.shape != tuple(shape)):
            raise ValueError(f"{array.size} elements")
        if array.size and not _are_numbers(array, dtype):
            raise ValueError(f"elements that are no {dtype}")
        if dtype.kind in "iu" and array.size and not _fits(array, dtype):
            raise ValueError(f"a number that is out of the range of {dtype}")
        with np.errstate(over="raise"):  # a number that only infinity could stand for
            return np.ascontiguousarray(array.reshape(shape), dtype)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise InvalidRequest(f"{where}: data of {dtype} and shape {list(shape)} are expected, got {error}") from error


def _are_numbers(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    if array.dtype.kind == "O":
        kinds = _NUMBERS.get(dtype.kind, (bool, int, float))
        return all(type(item) in kinds for item in array.flat)
    return array.dtype.kind in ("b" if dtype.kind == "b" else "iub" if dtype.kind in "iu" else "iufb")


def _fits(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    limits = np.iinfo(dtype)
    return int(array.min()) >= limits.min and int(array.max()) <= limits.max


def checked_shape(value: Any, where: str) -> tuple[int, ...]:
    """A shape of a request. InvalidRequest where it is no list of sizes."""
    if not isinstance(value, (list, tuple)) or any(type(size) is not int or not 0 <= size < 1 << 40 for size in value):
        raise InvalidRequest(f"{where}: shape must be a list of whole numbers from 0 on, got {value!r:.100}")
    if len(value) > MOST_AXES:
        raise InvalidRequest(f"{where}: shape has {len(value)} axes, at most {MOST_AXES} are taken; send fewer")
    if prod(value) >= 1 << 40:
        raise InvalidRequest(f"{where}: shape {value!r:.100} has more elements than any request may; send less")
    return tuple(value)
