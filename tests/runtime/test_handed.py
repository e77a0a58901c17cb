"""Arrays as a library takes them: where they lie, and what of them is kept between calls."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from haotuner.runtime.arrays import Handed, address

WORDS = 6


def tensors_of(packed: bytes, count: int) -> list[tuple[int, int, int, list[int]]]:
    """Address, device, type with rank, and extents of each."""
    words = np.frombuffer(packed, np.int64).reshape(count, WORDS)
    descriptors = []
    for at, device, kind, shape, strides, offset in words.tolist():
        assert strides == offset == 0
        descriptors.append((at, device, kind >> 32, list((ctypes.c_int64 * (kind & 0xFFFFFFFF)).from_address(shape))))
    return descriptors


def readonly(array: Any) -> Any:
    """The array, which may be written no more."""
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "array",
    [
        np.ones((3, 4), np.float32), readonly(np.ones((2, 5), np.int64)), np.ones((), np.float64),
        np.ones((0, 7), np.float32), np.ones((2, 1, 3), np.bool_), np.ones(9, np.float16), np.arange(8.0)[3:],
    ],
)  # fmt: skip
def test_any_array_lies_where_numpy_says(array):
    assert address(array) == array.ctypes.data
    tensors = Handed([array.dtype]).of([array])
    ((at, device, _, shape),) = tensors_of(tensors.packed([array]), 1)
    assert (at, device, shape) == (array.ctypes.data, 1, list(array.shape))


def test_types_are_those_of_dlpack():
    types = [np.dtype(name) for name in ("float32", "int64", "uint8", "bool")]
    arrays = [np.zeros(2, dtype) for dtype in types]
    tensors = Handed(types).of(arrays)
    descriptors = tensors_of(tensors.packed(arrays), len(arrays))
    assert [kind for _, _, kind, _ in descriptors] == [
        code | bits << 8 | 1 << 16 for code, bits in ((2, 32), (0, 64), (1, 8), (6, 8))
    ]


def test_shapes_are_kept_and_addresses_are_not():
    handed, original, other = Handed([np.dtype(np.float32)]), np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    tensors = handed.of([original])
    assert handed.of([other]) is tensors
    assert handed.of([np.ones((3, 2), np.float32)]) is not tensors
    first, second = (tensors_of(tensors.packed([array]), 1)[0] for array in (original, other))
    assert (first[0], second[0]) == (original.ctypes.data, other.ctypes.data) and first[1:] == second[1:]


def test_more_shapes_than_are_kept_are_told_right_in_several_threads():
    handed = Handed([np.dtype(np.float32)])

    def told(rows: int) -> bool:
        array = np.ones((rows, 2), np.float32)
        tensors = handed.of([array])
        ((at, _, _, shape),) = tensors_of(tensors.packed([array]), 1)
        return (at, shape) == (array.ctypes.data, [rows, 2])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(told, [*range(1, 600), *range(1, 600)]))
