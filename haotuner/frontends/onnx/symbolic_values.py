"""Known values of tensors while a model is read: arithmetic of extents, element by element, instead of nodes.

A shape's elements are extents: whole numbers and expressions of the inputs' dimensions. They lie in numpy arrays of objects.
Each step is computed in its tensors' element types (``typed_numbers.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import sympy

from haotuner.frontends.onnx.proofs import Proof
from haotuner.frontends.onnx.typed_numbers import DataDependentError, cast, exact, mapped
from haotuner.graph.extents import Extent, canonical, same
from haotuner.graph.primitives import PRIMITIVES
from haotuner.graph.typed_extents import is_real, never_negative
from haotuner.graph.types import FLOATS

LARGEST = 4_096  # elements; shapes have some ten
_MOVES = ("transpose", "reshape", "broadcast", "slice", "concat", "pad")


def objects(array: Any) -> Any:
    """An array of numbers as one of extents."""
    result = np.empty(np.shape(array), object)
    flat = result.reshape(-1)
    for index, value in enumerate(np.asarray(array).reshape(-1)):
        flat[index] = exact(value)
    return result


def applied(
    primitive: str,
    arrays: Sequence[Any],
    attributes: Mapping[str, Any],
    dtype: str,
    source: str = "int64",
    is_size: Callable[[Extent], bool] = lambda extent: False,
    proof: Proof | None = None,
) -> Any:
    """The primitive's result of known elements, of the type ``dtype``. Undecided where it depends on the request.

    ``source``: the element type of the first array. ``is_size``: whether an extent is some tensor's, hence never negative,
    also where that cannot be shown of its terms. ``proof``: of bounds; what it assumes is then in it.
    """
    proof = Proof() if proof is None else proof
    if primitive == "size":
        return _single(attributes["extent"])
    if primitive == "map":
        return _mapped(attributes["function"], [objects(array) for array in arrays], dtype, is_size, proof)
    if primitive == "cast":
        return _elementwise(_casts(source, dtype, proof), objects(arrays[0]))
    if primitive in _MOVES:  # numpy pads with a number of its own
        return objects(PRIMITIVES[primitive].compute([objects(array) for array in arrays], attributes, _number))
    if primitive == "gather" and np.asarray(arrays[1]).dtype != object:
        return np.asarray(PRIMITIVES[primitive].compute([objects(arrays[0]), arrays[1]], attributes, _number), object)
    if primitive == "reduce" and attributes["how"] in _REDUCED:
        return _reduced(objects(arrays[0]), attributes, dtype, proof)
    raise DataDependentError


def _single(value: Any) -> Any:
    result = np.empty((), object)
    result[()] = value
    return result


def _number(extent: Extent) -> int:
    if not isinstance(extent, int):
        raise DataDependentError
    return extent


def _elementwise(function: Callable[..., Any], *arrays: Any) -> Any:
    spread = np.broadcast_arrays(*arrays)
    result = np.empty(spread[0].shape, object)
    flat = result.reshape(-1)
    for index, values in enumerate(zip(*(item.reshape(-1) for item in spread), strict=True)):
        flat[index] = function(*values)
    return result


def _truth(condition: Any) -> int:
    if condition in (True, sympy.true):
        return 1
    if condition in (False, sympy.false):
        return 0
    raise DataDependentError


def _equal(extent: Extent, other: Extent, is_size: Callable[[Extent], bool] = lambda extent: False) -> int:
    if same(extent, other):
        return 1
    if (sympy.sympify(extent) - other).is_zero is False:
        return 0
    if any(_under(*pair, is_size) for pair in ((extent, other), (other, extent))):
        return 0
    raise DataDependentError


def _under(extent: Extent, other: Extent, is_size: Callable[[Extent], bool]) -> bool:
    """True if one extent is shown to be less than another; False says nothing."""
    if (sympy.sympify(extent) < other) == sympy.true or is_size(other) and (sympy.sympify(extent) < 0) == sympy.true:
        return True
    gap = canonical(sympy.sympify(other) - extent)
    return bool(sympy.sympify(gap).is_integer) and never_negative(gap - 1)


def _less(extent: Extent, other: Extent, is_size: Callable[[Extent], bool]) -> int:
    if _under(extent, other, is_size):
        return 1
    gap = canonical(sympy.sympify(extent) - other)
    if (
        bool(sympy.sympify(gap).is_integer)
        and never_negative(gap)
        or is_size(extent)
        and (sympy.sympify(other) <= 0) == sympy.true
    ):
        return 0
    return _truth(sympy.sympify(extent) < other)


_COMPARISONS: Mapping[str, Callable[[Extent, Extent, Callable[[Extent], bool]], int]] = {
    "equal": _equal,
    "less": _less,
    "less_equal": lambda a, b, is_size: 1 - _less(b, a, is_size),
    "greater": lambda a, b, is_size: _less(b, a, is_size),
    "greater_equal": lambda a, b, is_size: 1 - _less(a, b, is_size),
}


_LOGIC: Mapping[str, Callable[..., Any]] = {
    "and": lambda a, b: int(bool(_number(a) and _number(b))),
    "or": lambda a, b: int(bool(_number(a) or _number(b))),
    "xor": lambda a, b: int(bool(_number(a)) != bool(_number(b))),
    "not": lambda a: int(not _number(a)),
    "select": lambda c, a, b: a if _number(c) else b,
}


def _mapped(function: str, arrays: Sequence[Any], dtype: str, is_size: Callable[[Extent], bool], proof: Proof) -> Any:
    if function in _COMPARISONS:
        return _elementwise(lambda item, other: _COMPARISONS[function](item, other, is_size), *arrays)
    if function in _LOGIC:
        return _elementwise(_LOGIC[function], *arrays)
    return _elementwise(lambda *values: mapped(function, values, dtype, proof), *arrays)


def _casts(source: str, dtype: str, proof: Proof) -> Callable[[Extent], Extent]:
    if dtype == "bool":
        return lambda value: 1 - _equal(value, 0)
    return lambda value: cast(value, source, dtype, proof)


_REDUCED: Mapping[str, str] = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def _joined(function: str, dtype: str, proof: Proof) -> Callable[[Any, Any], Any]:
    """Two elements of a reduction. Undecided where the order of real numbers counts."""

    def one_more(before: Any, value: Any) -> Any:
        result = mapped(function, (before, value), dtype, proof)
        if dtype in FLOATS and function in ("add", "mul") and is_real(result):
            raise DataDependentError
        return result

    return one_more


def _reduced(array: Any, attributes: Mapping[str, Any], dtype: str, proof: Proof) -> Any:
    axes = sorted({axis % array.ndim for axis in attributes["axes"]})
    selected = [axis for axis in range(array.ndim) if axis not in axes]
    rows = array.transpose([*selected, *axes])
    shape = rows.shape[: len(selected)]
    count = int(np.prod(rows.shape[len(selected) :], dtype=np.int64))
    if not count:
        raise DataDependentError
    flat = rows.reshape(-1, count)
    result = np.empty(len(flat), object)
    for index, values in enumerate(flat):
        result[index] = reduce(_joined(_REDUCED[attributes["how"]], dtype, proof), values)
    if attributes.get("keepdims", False):
        shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(array.shape))
    return result.reshape(shape)
