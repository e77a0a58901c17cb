"""numpy's arrays by address: a call that names them so is spared 0.4 us of DLPack for each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from haotuner.errors import PackInvalid

HEAD_BYTES = 16  # of an object of CPython; more without the lock, or compiled for debugging
ARRAY_BYTES = 72  # up to the flags, the last field that native/arrays.c reads
ARRAYS = frozenset({np.ndarray})  # not those of a subclass, which may be laid out or mean something else
TYPES = ("float32", "float16", "int8", "uint8", "uint16", "int32", "int64")  # that it knows


def takes_addresses(function: Callable[[str], Callable[..., Any]]) -> bool:
    """True if a library finds in this process's arrays, by ``id``, what DLPack says of them: settings may have BY_ADDRESS.

    ``function`` gives a function of the library by its name. False for a library that was made before there was such a way.
    """
    if sys.implementation.name != "cpython" or object.__basicsize__ != HEAD_BYTES or np.ndarray.__basicsize__ < ARRAY_BYTES:
        return False
    try:
        agrees = function("ht_agrees")
    except PackInvalid:
        return False
    return all(_agree_on(agrees, name) for name in TYPES)


def _agree_on(agrees: Callable[..., Any], dtype: str) -> bool:
    """True if both see the same in an array of that type, and the library none to write to once it is read-only."""
    import tvm_ffi

    array = np.zeros((3, 4, 6), dtype)[:, ::2, 1:]
    tensor = tvm_ffi.from_dlpack(array)
    result = agrees(id(array), tensor)
    array.flags.writeable = False
    return bool(result) and not agrees(id(array), tensor)
