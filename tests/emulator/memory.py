"""Matrices in the emulator's memory: each ends at a page nobody may touch, and says it is CUDA memory (DLPack)."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import tvm_ffi

DTYPES = {"fp32": np.dtype("float32"), "fp16": np.dtype("float16"), "bf16": np.dtype(ml_dtypes.bfloat16)}
DLPACK_CODES = {"fp32": (2, 32), "fp16": (2, 16), "bf16": (4, 16)}
DL_CUDA = 2
KERNEL_ALIGNMENT = 16  # what the families ask of every operand


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int), ("ndim", ctypes.c_int),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Labelled:
    """Memory at an address as a DLPack producer on device CUDA 0; must outlive the tensors made of it."""

    def __init__(self, address: int, shape: tuple[int, int], strides: tuple[int, int], dtype: str) -> None:
        self._shape, self._strides = ((ctypes.c_int64 * 2)(*values) for values in (shape, strides))
        code, bits = DLPACK_CODES[dtype]
        shape_at, strides_at = ctypes.addressof(self._shape), ctypes.addressof(self._strides)
        self._managed = _Managed(_DLTensor(address, DL_CUDA, 0, 2, code, bits, 1, shape_at, strides_at, 0), None, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (DL_CUDA, 0)

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._managed), b"dltensor", None)


_BORROWED: list[_Labelled] = []  # tvm-ffi borrows their memory; the process lives for one case


def matrix(machine: ctypes.CDLL, rows: int, columns: int, stride: int, dtype: str) -> tuple[Any, Any]:
    """A (rows, columns) numpy view of rows ``stride`` elements apart, and the same memory as a tvm-ffi tensor."""
    machine.emulator_allocate.restype = ctypes.c_void_p
    machine.emulator_allocate.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    size = DTYPES[dtype].itemsize
    elements = (rows - 1) * stride + columns
    address = machine.emulator_allocate(elements * size, KERNEL_ALIGNMENT)
    raw = np.frombuffer((ctypes.c_char * (elements * size)).from_address(address), DTYPES[dtype])
    _BORROWED.append(_Labelled(address, (rows, columns), (stride, 1), dtype))
    view = np.lib.stride_tricks.as_strided(raw, (rows, columns), (stride * size, size))
    return view, tvm_ffi.from_dlpack(_BORROWED[-1])
