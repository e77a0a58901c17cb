"""An ONNX file, opened with care: it may be truncated, hostile or huge. Its sparse tensors and its defaults.

Sparse tensors of a file, which are read as dense ones: coordinates and the values there, zeros elsewhere.

Initializers that are inputs, too: defaults that a request may override (ONNX's IR from version 4 on).

Old exporters list every weight as an input. What may change from call to call can neither be packed nor folded, so only
few and small initializers become inputs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.frontends.onnx.types import NARROW, Narrow, dtype_of_onnx, numbers_of
from haotuner.graph.control_flow import made_dimensions
from haotuner.graph.graph import Graph
from haotuner.graph.types import numpy_dtype
from haotuner.host.extras import how_to_get
from haotuner.host.files import open_beneath, read_regular

LARGEST_FILE = 1 << 31  # bytes; protobuf itself ends there
LARGEST_EXTERNAL = 1 << 44  # bytes of a file of external data, of which only the tensors are read
LARGEST_TENSOR = 1 << 33  # bytes of one tensor, external data included
OPSETS = (1, 28)  # of the main domain; what operators below 7 did otherwise (broadcast=1) is refused where it is used
EXTERNAL = 1  # TensorProto.DataLocation


def onnx_library() -> Any:
    """The onnx package. EnvironmentMissing where it is not installed."""
    try:
        import onnx
    except ImportError as error:
        raise EnvironmentMissing(f"reading models needs the package onnx: {how_to_get('models')}") from error
    return onnx


def open_model(path: Path) -> Any:
    """The file's ModelProto, without external data. UsageError says what is wrong with it."""
    onnx = onnx_library()
    try:
        raw = read_regular(path, LARGEST_FILE)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read: {why}; name an ONNX model") from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(raw)
    except Exception as error:  # protobuf's own class depends on how it was built
        raise UsageError(f"{path} is not an ONNX model, or was cut short ({len(raw)} bytes)") from error
    if not model.graph.node and not model.graph.output:
        raise UsageError(f"{path} is not an ONNX model: it has no graph")
    return model


def opset_of(imports: Any, what: str) -> int:
    """The version of the main operators. UsageError where it is older or newer than what is read."""
    result = next((opset.version for opset in imports if opset.domain in ("", "ai.onnx")), 1)
    if not OPSETS[0] <= result <= OPSETS[1]:
        raise UsageError(f"{what}: opset {result}; {OPSETS[0]} to {OPSETS[1]} are read; export the model again")
    return int(result)


def array_of(tensor: Any, folder: Path | None) -> Any:
    """A tensor's elements. UsageError where the file says one size and holds another, or points outside its folder."""
    onnx = onnx_library()
    name = tensor.name or "a constant"
    narrow = NARROW.get(tensor.data_type)
    dtype = "uint8" if narrow is not None else dtype_of_onnx(tensor.data_type, f"tensor {name}")
    if any(extent < 0 for extent in tensor.dims):
        raise UsageError(f"tensor {name}: negative extents {list(tensor.dims)}")
    count = int(np.prod([int(extent) for extent in tensor.dims], dtype=object)) if tensor.dims else 1
    if count * numpy_dtype(dtype).itemsize > LARGEST_TENSOR:
        raise UsageError(f"tensor {name}: {list(tensor.dims)} is more than {LARGEST_TENSOR} bytes")
    if narrow is not None:
        return _narrow(tensor, folder, narrow, count)
    if tensor.data_location == EXTERNAL:
        return _external(tensor, folder, numpy_dtype(dtype), count)
    stored = len(tensor.raw_data) // numpy_dtype(dtype).itemsize if tensor.HasField("raw_data") else None
    if stored is not None and stored != count:
        raise UsageError(f"tensor {name}: {list(tensor.dims)} has {count} elements, the file holds {stored}")
    try:
        return np.array(onnx.numpy_helper.to_array(tensor))
    except Exception as error:  # onnx raises whatever its decoding meets
        raise UsageError(f"tensor {name}: the file does not hold what it declares ({error})") from error


def _narrow(tensor: Any, folder: Path | None, kind: Narrow, count: int) -> Any:
    """The numbers in the wider type that holds them; elements of less than a byte lie the first in the low bits."""
    if tensor.data_location == EXTERNAL:
        raw = _external(tensor, folder, np.dtype(np.uint8), -(-count * kind.bits // 8), flat=True)
    elif tensor.HasField("raw_data"):
        raw = np.frombuffer(tensor.raw_data, np.uint8)
    else:  # some elements, or bytes of them, in each
        raw = np.array(tensor.int32_data, np.int64).astype(np.uint8)
    if len(raw) != -(-count * kind.bits // 8):
        raise UsageError(f"tensor {tensor.name}: {list(tensor.dims)} has {count} elements, the file holds {len(raw)} bytes")
    if kind.bits < 8:
        raw = np.stack([(raw >> low) & ((1 << kind.bits) - 1) for low in range(0, 8, kind.bits)], -1).reshape(-1)[:count]
    result = numbers_of(kind)[raw] if len(raw) else np.zeros(0)
    return result.astype(numpy_dtype(kind.stored)).reshape(tuple(tensor.dims))


def _external(tensor: Any, folder: Path | None, dtype: np.dtype[Any], count: int, *, flat: bool = False) -> Any:
    answer = {item.key: item.value for item in tensor.external_data}
    where = answer.get("location", "")
    if folder is None or not where or Path(where).is_absolute() or ".." in Path(where).parts:
        raise UsageError(f"tensor {tensor.name}: external data at {where!r}; only files beside the model are read")
    try:
        start, bytes_ = int(answer.get("offset", 0)), count * dtype.itemsize
        length = int(answer.get("length", 0)) or bytes_  # onnx and ONNX Runtime take 0 for a length that is not said
        with open_beneath(folder, where, LARGEST_EXTERNAL) as file:
            stored = os.fstat(file.fileno()).st_size
            if start < 0 or length != bytes_ or start + bytes_ > stored:
                words = f"{bytes_} bytes at {start} of {where!r}, which has {stored}; the file says {length}"
                raise UsageError(f"tensor {tensor.name}: {words}")
            file.seek(start)
            return np.frombuffer(file.read(bytes_), dtype).reshape((count,) if flat else tuple(tensor.dims))
    except OSError as error:
        raise UsageError(f"tensor {tensor.name}: external data {where!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"tensor {tensor.name}: external data {answer} make no sense") from error


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


FIRST_IR = 4  # before it every initializer had to be listed as an input
MOST_DEFAULTS = 16
MOST_ELEMENTS = 1 << 14  # of all together
_FLOATS = (1, 10, 11, 16)  # of TensorProto.DataType


def with_defaults(model: Any, fixed: Collection[str], read: Callable[[Mapping[str, Any]], Graph]) -> Graph:
    """The graph in which initializers that a request may override are inputs; ``read``: with these as inputs.

    An initializer stays a constant where the graph needs to know it: where a size follows from it, or a rule refuses it.
    """
    for chosen in _choices(model, fixed):
        try:
            result = read(chosen)
        except UsageError:
            continue
        if _sizes_of_data(result) <= _sizes_of_data(read({})):
            return result
    return read({})


def _sizes_of_data(graph: Graph) -> int:
    return sum(len(made_dimensions(node.primitive, node.attributes)) for node in graph.nodes)


def _choices(model: Any, fixed: Collection[str]) -> Iterator[Mapping[str, Any]]:
    listed = {item.name for item in model.graph.input} - set(fixed)
    every = {item.name: item for item in model.graph.initializer if item.name in listed}
    elements = sum(math.prod(map(int, item.dims)) for item in every.values())
    if model.ir_version < FIRST_IR or not every or len(every) > MOST_DEFAULTS or elements > MOST_ELEMENTS:
        return
    yield every
    floats = {name: item for name, item in every.items() if item.data_type in _FLOATS}
    if floats and len(floats) < len(every):
        yield floats
