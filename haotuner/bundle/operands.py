"""Matrices in device memory: guarded on both sides, seen by tvm-ffi without a copy (DLPack)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

from haotuner.bundle.probe import Probe

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
POISON = 0xFF  # as every byte: a NaN in fp32, fp16 and bf16
GUARD_BYTES = 4096  # before and after; a stray store of a tile's next row or column lands in it
_CODES = {"fp32": (2, 32), "fp16": (2, 16), "bf16": (4, 16)}  # DLPack's type code and bits
_CUDA = 2


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int), ("ndim", ctypes.c_int),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Exported:
    """A DLPack producer over device memory that somebody else owns."""

    def __init__(self, address: int, shape: tuple[int, int], stride: int, dtype: str) -> None:
        self._shape = (ctypes.c_int64 * 2)(*shape)
        self._strides = (ctypes.c_int64 * 2)(stride, 1)
        code, bits = _CODES[dtype]
        shape_at, strides_at = ctypes.addressof(self._shape), ctypes.addressof(self._strides)
        self._managed = _Managed(_DLTensor(address, _CUDA, 0, 2, code, bits, 1, shape_at, strides_at, 0), None, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CUDA, 0)

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._managed), b"dltensor", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A (rows, columns) matrix whose rows lie ``stride`` elements apart in guarded device memory."""

    base: int  # of the allocation, guards included
    data: int
    rows: int
    columns: int
    stride: int
    dtype: str
    exported: Any

    @property
    def count(self) -> int:
        """Elements from the first to the last, gaps between rows included."""
        return (self.rows - 1) * self.stride + self.columns

    @property
    def size(self) -> int:
        """Bytes of those elements."""
        return self.count * ELEMENT_BYTES[self.dtype]

    def tensor(self) -> Any:
        """The matrix as a tvm-ffi tensor that borrows the memory."""
        import tvm_ffi

        return tvm_ffi.from_dlpack(self.exported)

    def row(self, index: int) -> int:
        """Address of one row."""
        return self.data + index * self.stride * ELEMENT_BYTES[self.dtype]


def bytes_of(rows: int, columns: int, stride: int, dtype: str) -> int:
    """Device memory that :func:`place` takes."""
    return ((rows - 1) * stride + columns) * ELEMENT_BYTES[dtype] + 2 * GUARD_BYTES


def place(probe: Probe, rows: int, columns: int, *, dtype: str, gap: int = 0) -> Matrix:
    """Allocate a matrix with guards, all poisoned."""
    stride = columns + gap
    size = bytes_of(rows, columns, stride, dtype)
    base = probe.allocate(size)
    probe.set_bytes(base, POISON, size)
    data = base + GUARD_BYTES
    return Matrix(
        base=base, data=data, rows=rows, columns=columns, stride=stride, dtype=dtype,
        exported=_Exported(data, (rows, columns), stride, dtype),
    )  # fmt: skip


def first_rows(matrix: Matrix, rows: int) -> Matrix:
    """The first rows of a matrix, in the same memory."""
    exported = _Exported(matrix.data, (rows, matrix.columns), matrix.stride, matrix.dtype)
    return replace(matrix, rows=rows, exported=exported)


def stray_bytes(probe: Probe, matrix: Matrix) -> int:
    """Bytes that were overwritten in the guards and, where rows have gaps, between the rows."""
    size = ELEMENT_BYTES[matrix.dtype]
    changed = probe.changed_bytes(matrix.base, GUARD_BYTES, POISON)
    changed += probe.changed_bytes(matrix.data + matrix.size, GUARD_BYTES, POISON)
    gap = (matrix.stride - matrix.columns) * size
    if gap and matrix.rows > 1:
        first = matrix.data + matrix.columns * size
        changed += probe.changed_bytes(first, gap, POISON, rows=matrix.rows - 1, pitch=matrix.stride * size)
    return changed
