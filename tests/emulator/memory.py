"""Matrices in the emulator's memory: each ends at a page nobody may touch."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {
    "fp32": np.dtype("float32"), "fp16": np.dtype("float16"), "bf16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype("int8"), "uint8": np.dtype("uint8"), "int32": np.dtype("int32"),
}  # fmt: skip
KERNEL_ALIGNMENT = 16  # of the end of every matrix, and of its beginning where its size is a multiple


def matrix(
    machine: ctypes.CDLL, rows: int, columns: int, stride: int, dtype: str, alignment: int = KERNEL_ALIGNMENT
) -> tuple[Any, int]:
    """A (rows, columns) numpy view of rows ``stride`` elements apart, and its address, a multiple of ``alignment`` bytes.

    With an alignment of an element the matrix ends at its last byte.
    """
    machine.emulator_allocate.restype = ctypes.c_void_p
    machine.emulator_allocate.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    size = DTYPES[dtype].itemsize
    elements = (rows - 1) * stride + columns
    address: int = machine.emulator_allocate(elements * size, alignment)
    raw = np.frombuffer((ctypes.c_char * (elements * size)).from_address(address), DTYPES[dtype])
    return np.lib.stride_tricks.as_strided(raw, (rows, columns), (stride * size, size)), address
