"""Sparse tensors of a file, which are read as dense ones: coordinates and the values there, zeros elsewhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.onnx.file import LARGEST_TENSOR, array_of


def dense_array(sparse: Any, folder: Path | None) -> Any:
    """All elements of a SparseTensorProto, whose indices count flat elements [nnz] or are coordinates [nnz, rank].

    UsageError where values and indices do not fit each other or the shape, or two values have the same coordinates.
    """
    values, indices = array_of(sparse.values, folder), array_of(sparse.indices, folder)
    shape, what = tuple(int(extent) for extent in sparse.dims), f"sparse tensor {sparse.values.name or 'of a constant'}"
    count = math.prod(shape)
    if any(extent < 0 for extent in shape) or count * values.dtype.itemsize > LARGEST_TENSOR:
        raise UsageError(f"{what}: the shape {list(shape)} is negative, or of more than {LARGEST_TENSOR} bytes")
    if values.ndim != 1 or indices.dtype != np.int64 or indices.shape not in ((len(values),), (len(values), len(shape))):
        raise UsageError(
            f"{what}: {list(values.shape)} values with indices {indices.dtype}{list(indices.shape)}; expected as many "
            f"int64 indices as values, [{values.size}] or [{values.size}, {len(shape)}]"
        )
    most = np.array(count if indices.ndim == 1 else shape, np.int64)
    if (indices < 0).any() or (indices >= most).any():
        raise UsageError(f"{what}: an index lies outside of the shape {list(shape)}")
    flat = indices if indices.ndim == 1 else np.zeros(len(values), np.int64)
    for axis in range(indices.ndim - 1 and len(shape)):
        flat = flat * shape[axis] + indices[:, axis]
    if len(np.unique(flat)) < len(flat):
        raise UsageError(f"{what}: two values have the same index; write each element once")
    result = np.zeros(count, values.dtype)
    result[flat] = values
    return result.reshape(shape)
