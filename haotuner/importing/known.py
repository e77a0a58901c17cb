"""What is known of tensors while a model is read: arithmetic of extents, element by element, instead of nodes.

A shape's elements are extents: whole numbers and expressions of the inputs' dimensions. They lie in numpy arrays of objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sympy

from haotuner.graph.bounds import never_negative
from haotuner.graph.extents import Extent, canonical, dimensions, evaluate, floor_division, largest, quotient, same, smallest
from haotuner.graph.primitives import PRIMITIVES

LARGEST = 4_096  # elements; shapes have some ten
_DRAWN, _LARGE = 48, (9.0, 16.0)  # sizes that say a sign, and the logarithms of the least and the largest
_MOVES = ("transpose", "reshape", "broadcast", "slice", "concat", "pad")


class Undecided(Exception):
    """It depends on the request; the tensor is computed when it runs."""


def exact(value: Any) -> Extent:
    """A number of an array as an extent; fractions stay exact."""
    if isinstance(value, (sympy.Basic, int)) and not isinstance(value, bool):
        return value
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, np.integer):
        return int(value)
    number = float(value)
    if not np.isfinite(number):
        raise Undecided
    return int(number) if number.is_integer() else sympy.Rational(number)


def objects(array: Any) -> Any:
    """An array of numbers as one of extents."""
    found = np.empty(np.shape(array), object)
    flat = found.reshape(-1)
    for place, value in enumerate(np.asarray(array).reshape(-1)):
        flat[place] = exact(value)
    return found


def applied(
    primitive: str,
    arrays: Sequence[Any],
    attributes: Mapping[str, Any],
    dtype: str,
    is_size: Callable[[Extent], bool] = lambda extent: False,
) -> Any:
    """The primitive's result of known elements. Undecided where it depends on the request.

    ``is_size``: whether an extent is some tensor's, hence never negative, also where that cannot be shown of its terms.
    """
    if primitive == "size":
        return _single(attributes["extent"])
    if primitive == "map":
        return _mapped(attributes["function"], [objects(one) for one in arrays], dtype, is_size)
    if primitive == "cast":
        return _elementwise(_casts(dtype), objects(arrays[0]))
    if primitive in _MOVES:
        return PRIMITIVES[primitive].compute([objects(one) for one in arrays], attributes, _number)
    if primitive == "gather" and np.asarray(arrays[1]).dtype != object:
        return np.asarray(PRIMITIVES[primitive].compute([objects(arrays[0]), arrays[1]], attributes, _number), object)
    if primitive == "reduce" and attributes["how"] in _REDUCED:
        return _reduced(objects(arrays[0]), attributes)
    raise Undecided


def _single(value: Any) -> Any:
    found = np.empty((), object)
    found[()] = value
    return found


def _number(extent: Extent) -> int:
    if not isinstance(extent, int):
        raise Undecided
    return extent


def _elementwise(function: Callable[..., Any], *arrays: Any) -> Any:
    spread = np.broadcast_arrays(*arrays)
    found = np.empty(spread[0].shape, object)
    flat = found.reshape(-1)
    for place, values in enumerate(zip(*(one.reshape(-1) for one in spread), strict=True)):
        flat[place] = function(*values)
    return found


def _truth(condition: Any) -> int:
    if condition in (True, sympy.true):
        return 1
    if condition in (False, sympy.false):
        return 0
    raise Undecided


def _equal(one: Extent, other: Extent, is_size: Callable[[Extent], bool] = lambda extent: False) -> int:
    if same(one, other):
        return 1
    if (sympy.sympify(one) - other).is_zero is False:
        return 0
    if any(_under(*pair, is_size) for pair in ((one, other), (other, one))):
        return 0
    raise Undecided


def _under(one: Extent, other: Extent, is_size: Callable[[Extent], bool]) -> bool:
    """Whether one extent is shown to be less than another; False says nothing."""
    if (sympy.sympify(one) < other) == sympy.true or is_size(other) and (sympy.sympify(one) < 0) == sympy.true:
        return True
    gap = canonical(sympy.sympify(other) - one)
    return bool(sympy.sympify(gap).is_integer) and never_negative(gap - 1)


def _less(one: Extent, other: Extent, is_size: Callable[[Extent], bool]) -> int:
    if _under(one, other, is_size):
        return 1
    gap = canonical(sympy.sympify(one) - other)
    if (
        bool(sympy.sympify(gap).is_integer)
        and never_negative(gap)
        or is_size(one)
        and (sympy.sympify(other) <= 0) == sympy.true
    ):
        return 0
    return _truth(sympy.sympify(one) < other)


def _divided(one: Extent, other: Extent) -> Extent:
    """Towards zero, as ONNX divides whole numbers."""
    if other == 0:
        raise Undecided
    if isinstance(one, int) and isinstance(other, int):
        parts = abs(one) // abs(other)
        return parts if (one < 0) == (other < 0) else -parts
    exact = quotient(one, other)  # where the divisor may be 0 the request has no answer
    if exact is not None:
        return exact
    if not _truth(sympy.sympify(other) > 0):
        raise Undecided
    signs = _signs(one)
    if signs == {1}:
        return floor_division(one, other)
    if signs == {-1}:
        return canonical(-floor_division(canonical(-one), other))
    above, below = largest([one, 0]), largest([canonical(-one), 0])
    return canonical(floor_division(above, other) - floor_division(below, other))


def _signs(extent: Extent) -> set[int]:
    """1 where no size of a request makes the extent negative, -1 where none makes it positive, else both.

    A size less a few, as convolutions leave, counts as one that is not: where it is negative the request has no answer. So
    where sympy cannot say, drawn sizes do that are larger than windows are.
    """
    plain = sympy.sympify(extent)
    for holds, sign in ((plain.is_nonnegative, 1), (plain.is_nonpositive, -1)):
        if holds:
            return {sign}
    draw = np.random.default_rng(0)
    sizes = [{name: int(2 ** draw.uniform(*_LARGE)) for name in dimensions(plain)} for _ in range(_DRAWN)]
    return {1 if evaluate(plain, one) >= 0 else -1 for one in sizes}


def _ratio(one: Extent, other: Extent) -> Extent:
    if other == 0:
        raise Undecided
    return canonical(sympy.sympify(one) / other)


def _root(one: Extent) -> Extent:
    found = sympy.sqrt(one)
    if not found.is_Integer:
        raise Undecided
    return int(found)


def _floor_by(one: Extent, other: Extent) -> Extent:
    if other == 0:
        raise Undecided
    return floor_division(one, other)


_MAPS: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: canonical(a + b),
    "sub": lambda a, b: canonical(a - b),
    "mul": lambda a, b: canonical(a * b),
    "floordiv": _floor_by,
    "mod": lambda a, b: canonical(a - b * _floor_by(a, b)),
    "max": lambda a, b: largest([a, b]),
    "min": lambda a, b: smallest([a, b]),
    "neg": lambda a: canonical(-a),
    "abs": lambda a: canonical(sympy.Abs(a)),
    "floor": lambda a: floor_division(a, 1),
    "ceil": lambda a: canonical(-floor_division(-a, 1)),
    "sqrt": _root,
    "and": lambda a, b: int(bool(_number(a) and _number(b))),
    "or": lambda a, b: int(bool(_number(a) or _number(b))),
    "not": lambda a: int(not _number(a)),
    "select": lambda c, a, b: a if _number(c) else b,
}


_COMPARISONS: Mapping[str, Callable[[Extent, Extent, Callable[[Extent], bool]], int]] = {
    "equal": _equal,
    "less": _less,
    "less_equal": lambda a, b, is_size: 1 - _less(b, a, is_size),
    "greater": lambda a, b, is_size: _less(b, a, is_size),
    "greater_equal": lambda a, b, is_size: 1 - _less(a, b, is_size),
}


def _mapped(function: str, arrays: Sequence[Any], dtype: str, is_size: Callable[[Extent], bool]) -> Any:
    if function in _COMPARISONS:
        return _elementwise(lambda one, other: _COMPARISONS[function](one, other, is_size), *arrays)
    if function == "div":
        return _elementwise(_divided if "int" in dtype else _ratio, *arrays)
    if function not in _MAPS:
        raise Undecided
    return _elementwise(_MAPS[function], *arrays)


def _casts(dtype: str) -> Callable[[Extent], Extent]:
    if dtype == "bool":
        return lambda value: 1 - _equal(value, 0)
    if "int" in dtype:
        return lambda value: value if isinstance(value, int) or value.is_integer else _divided(value, 1)
    return lambda value: value


_REDUCED: Mapping[str, Callable[[Sequence[Extent]], Extent]] = {
    "sum": lambda values: canonical(sum(values, 0)),
    "prod": lambda values: canonical(sympy.prod(values)),
    "max": largest,
    "min": smallest,
}


def _reduced(array: Any, attributes: Mapping[str, Any]) -> Any:
    axes = sorted({axis % array.ndim for axis in attributes["axes"]})
    kept = [axis for axis in range(array.ndim) if axis not in axes]
    rows = array.transpose([*kept, *axes])
    shape = rows.shape[: len(kept)]
    count = int(np.prod(rows.shape[len(kept) :], dtype=np.int64))
    if not count:
        raise Undecided
    flat = rows.reshape(-1, count)
    found = np.empty(len(flat), object)
    for place, values in enumerate(flat):
        found[place] = _REDUCED[attributes["how"]](list(values))
    if attributes.get("keepdims", False):
        shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(array.shape))
    return found.reshape(shape)
