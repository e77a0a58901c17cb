"""Scalar expressions of a program: what one element is, in loop variables, loads and folds. Indices are expressions, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from haotuner.graph.extents import Extent, canonical

INDEX = "int64"
NONE = frozenset[str]()


@dataclass(frozen=True, slots=True)
class Number:
    """A constant of an element type."""

    value: float
    dtype: str


@dataclass(frozen=True, slots=True)
class Variable:
    """A loop's variable, from 0 on."""

    name: str
    free: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "free", frozenset({self.name}))


@dataclass(frozen=True, slots=True)
class Size:
    """An extent, known when the request comes."""

    extent: Extent


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a tensor in memory; 0, and nothing is read, where one of the extents ``held`` is 0."""

    tensor: str
    indices: tuple[Expression, ...]
    dtype: str
    nonempty: tuple[Extent, ...] = ()
    free: frozenset[str] = field(init=False, repr=False, compare=False)
    folded: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _note(self, self.indices)


@dataclass(frozen=True, slots=True)
class Apply:
    """An element-wise function (``ops/formula.py``), or ``cast``; ``dtype`` is the result's."""

    function: str
    arguments: tuple[Expression, ...]
    dtype: str
    free: frozenset[str] = field(init=False, repr=False, compare=False)
    folded: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _note(self, self.arguments)


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """A reduction: ``how`` over every point of ``axes`` (variable, extent), the last one the fastest.

    One object is one computation: its value is computed once for each value of its free variables.
    """

    how: str
    axes: tuple[tuple[Variable, Extent], ...]
    value: Expression
    dtype: str
    tensor: str = field(default="", compare=False)  # of the graph, whose elements it computes
    free: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = {variable.name for variable, _ in self.axes}
        object.__setattr__(self, "free", free_variables(self.value) - own)


Expression: TypeAlias = Number | Variable | Size | Load | Apply | Fold


def dtype_of(e: Expression) -> str:
    """Element type of an expression; indices are int64."""
    return INDEX if isinstance(e, (Variable, Size)) else e.dtype


def children(e: Expression) -> tuple[Expression, ...]:
    """The expressions that one is made of."""
    if isinstance(e, Load):
        return e.indices
    if isinstance(e, Apply):
        return e.arguments
    return (e.value,) if isinstance(e, Fold) else ()


def parts(e: Expression, *, into_folds: bool = True) -> list[Expression]:
    """The expression and everything in it, each object once, inner parts first."""
    result: list[Expression] = []
    _list_parts(e, into_folds, set(), result)
    return result


def _list_parts(e: Expression, into_folds: bool, seen: set[int], result: list[Expression]) -> None:
    if id(e) in seen:
        return
    seen.add(id(e))
    if into_folds or not isinstance(e, Fold):
        for child in children(e):
            _list_parts(child, into_folds, seen, result)
    result.append(e)


def free_variables(e: Expression) -> frozenset[str]:
    """Names of the loop variables that a value depends on; known since it was made, for emitters ask at every turn."""
    return NONE if isinstance(e, (Number, Size)) else e.free


def has_folds(e: Expression) -> bool:
    """True if there is a reduction in it; known since it was made."""
    return e.folded if isinstance(e, (Apply, Load)) else isinstance(e, Fold)


def _note(e: Load | Apply, inside: tuple[Expression, ...]) -> None:
    object.__setattr__(e, "free", NONE.union(*map(free_variables, inside)))
    object.__setattr__(e, "folded", any(map(has_folds, inside)))


def index(value: int) -> Number:
    """A constant index."""
    return Number(value, INDEX)


def sized(extent: Extent) -> Expression:
    """An extent as an index: a number where it is known."""
    extent = canonical(extent)
    return index(extent) if isinstance(extent, int) else Size(extent)


def arithmetic(function: str, expression: Expression, other: Expression) -> Expression:
    """``add``, ``sub``, ``mul``, ``floordiv``, ``mod``, ``min`` or ``max`` of indices, folded where numbers show."""
    a = int(expression.value) if isinstance(expression, Number) else None
    b = int(other.value) if isinstance(other, Number) else None
    if a is not None and b is not None:
        known = {"add": a + b, "sub": a - b, "mul": a * b, "min": min(a, b), "max": max(a, b)}
        known |= {"floordiv": a // b, "mod": a % b} if b else {}
        return index(known[function])
    if b == 0 and function in ("add", "sub") or b == 1 and function in ("mul", "floordiv"):
        return expression
    if a == 0 and function == "add" or a == 1 and function == "mul":
        return other
    if function == "mul" and 0 in (a, b) or function == "mod" and b == 1 or function in ("floordiv", "mod") and a == 0:
        return index(0)
    if isinstance(expression, Size) and isinstance(other, (Size, Number)) and function in ("add", "sub", "mul"):
        right = other.extent if isinstance(other, Size) else int(other.value)
        return sized(
            {"add": expression.extent + right, "sub": expression.extent - right, "mul": expression.extent * right}[function]
        )
    if function == "floordiv" and isinstance(expression, Apply) and expression.function == "floordiv":
        first = expression.arguments[1]
        if isinstance(first, (Size, Number)) and isinstance(other, (Size, Number)):  # extents, none of them under 0
            both = (first, other) if isinstance(first, Size) else (other, first)
            return arithmetic("floordiv", expression.arguments[0], arithmetic("mul", *both))
    return Apply(function, (expression, other), INDEX)


def slope(e: Expression, variable: str) -> int | None:
    """Slope of an index in a variable: 0, a constant, or None where it does not grow evenly."""
    if isinstance(e, Variable):
        return int(e.name == variable)
    if variable not in free_variables(e):
        return 0
    if not isinstance(e, Apply):
        return None
    slopes = [slope(argument, variable) for argument in e.arguments]
    if e.function in ("add", "sub") and None not in slopes:
        return slopes[0] + slopes[1] if e.function == "add" else slopes[0] - slopes[1]  # type: ignore[operator]
    if e.function == "mul":
        for own, other in ((0, 1), (1, 0)):
            factor = e.arguments[other]
            if isinstance(factor, Number) and slopes[own] is not None:
                return slopes[own] * int(factor.value)  # type: ignore[operator]
    return None


class Merged:
    """Renames loop variables; equal expressions come out as one object. Folds stay the objects that they are."""

    def __init__(self) -> None:
        self._known: dict[Any, Expression] = {}

    def renamed(self, e: Expression, names: Mapping[str, Variable]) -> Expression:
        """The expression with other variables. A fold that depends on a renamed one is copied."""
        if isinstance(e, Variable):
            return self._merged(("variable", names.get(e.name, e).name), names.get(e.name, e))
        if isinstance(e, Load):
            indices = tuple(self.renamed(index, names) for index in e.indices)
            return self._merged((e.tensor, e.nonempty, *map(id, indices)), Load(e.tensor, indices, e.dtype, e.nonempty))
        if isinstance(e, Apply):
            arguments = tuple(self.renamed(argument, names) for argument in e.arguments)
            return self._merged((e.function, e.dtype, *map(id, arguments)), Apply(e.function, arguments, e.dtype))
        if isinstance(e, Fold):
            if not free_variables(e) & set(names):
                return e
            key = ("fold", id(e), *(names[name].name for name in sorted(free_variables(e) & set(names))))
            return self._merged(key, Fold(e.how, e.axes, self.renamed(e.value, names), e.dtype, e.tensor))
        return self._merged((type(e).__name__, str(e)), e)

    def _merged(self, key: Any, e: Expression) -> Expression:
        return self._known.setdefault(key, e)
