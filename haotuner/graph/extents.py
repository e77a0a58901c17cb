"""Extents: whole numbers, or expressions of named dimensions, such as ``seq`` or ``(width - 1)//2 + 1``.

Arithmetic is sympy's; text is its own small grammar, so that a hostile file is never evaluated. Sympy takes a third of a
second to import, in every process that knows the kernels: functions import it, and only graphs and models wait for it.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from typing import Any, TypeAlias

from haotuner.errors import UsageError
from haotuner.graph.typed_extents import never_negative
from haotuner.spec.size_arithmetic import REAL, TYPED

Extent: TypeAlias = Any  # int, or a sympy expression of dimensions
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
SHOWN = 60  # characters of arithmetic that people read
_LONGEST = 2_000  # characters of an extent's text: far more than shape arithmetic of real models writes
_FUNCTIONS = {"max": "Max", "min": "Min", "abs": "Abs"}  # of sympy


@cache
def dimension(name: str) -> Extent:
    """The extent of a named dimension, at least 0."""
    import sympy

    if not _NAME.fullmatch(name):
        raise UsageError(f"dimension {name!r}: expected a letter or underscore, then letters, digits and underscores")
    return sympy.Symbol(name, integer=True, nonnegative=True)


def canonical(extent: Extent) -> Extent:
    """Canonical form of an extent: an int where it is a number."""
    if isinstance(extent, int):
        return extent
    import sympy

    if not isinstance(extent, sympy.Expr):
        return int(extent)
    return _expanded(extent)


@lru_cache(1 << 14)
def _expanded(extent: Any) -> Extent:
    """Every tensor's type asks for it, of few different extents."""
    import sympy

    expanded = sympy.expand(extent)
    return int(expanded) if expanded.is_Integer else expanded


def same(extent: Extent, other: Extent) -> bool:
    """True if two extents are equal whatever the dimensions are, as far as expanding shows."""
    if extent == other:
        return True
    if isinstance(extent, int) and isinstance(other, int):
        return False
    import sympy

    return bool(canonical(sympy.sympify(extent) - other) == 0)


def floor_division(extent: Extent, divisor: Extent) -> Extent:
    """``extent // divisor``, exact where the division is."""
    if isinstance(extent, int) and isinstance(divisor, int):
        return extent // divisor
    import sympy

    exact = quotient(extent, divisor)
    return exact if exact is not None else canonical(sympy.floor(sympy.sympify(extent) / divisor))


@lru_cache(1 << 14)  # cancelling takes sympy a millisecond; planning asks for eleven fractions twelve thousand times
def quotient(extent: Extent, divisor: Extent) -> Extent | None:
    """``extent / divisor`` where it is whole whatever the dimensions are, as far as cancelling shows; else None."""
    if divisor == 0 or isinstance(extent, int) and isinstance(divisor, int):
        return None if divisor == 0 or extent % divisor else extent // divisor
    import sympy

    if divisor in (1, -1) and sympy.sympify(extent).is_integer:  # of every slice; cancelling is slow
        return canonical(extent * divisor)
    result = sympy.cancel(sympy.sympify(extent) / divisor)
    return canonical(result) if sympy.fraction(sympy.together(result))[1] == 1 else None


def ceiling_division(extent: Extent, divisor: Extent) -> Extent:
    """The least whole number that is at least ``extent / divisor``."""
    return canonical(-floor_division(-extent, divisor))


def largest(extents: Iterable[Extent]) -> Extent:
    """The largest of some extents."""
    return _of_parts("Max", extents)


def smallest(extents: Iterable[Extent]) -> Extent:
    """The smallest of some extents."""
    return _of_parts("Min", extents)


def _of_parts(function: str, extents: Iterable[Extent]) -> Extent:
    """Max or Min, a whole factor that all have before it, so that a division takes it away."""
    import sympy

    kind = getattr(sympy, function)
    flat = [sympy.sympify(extent) for extent in extents]
    parts = _undominated(
        dict.fromkeys(part for item in flat for part in (item.args if isinstance(item, kind) else (item,))), function
    )
    if len(parts) == 1:
        return canonical(parts[0])
    factor = sympy.gcd_list([part.primitive()[0] for part in parts if part != 0] or [1])
    return canonical(factor * kind(*(part / factor for part in parts), evaluate=False))


def _undominated(parts: Iterable[Any], function: str) -> list[Any]:
    """The parts of which none is shown to lie behind another."""
    sign, selected = (1 if function == "Max" else -1), list(parts)
    for item in list(selected):
        if any(other is not item and never_negative(sign * (other - item)) for other in selected):
            selected = [other for other in selected if other is not item]
    return selected


def is_zero(extent: Extent) -> Extent:
    """1 where a whole number is 0, else 0."""
    return canonical(1 - smallest([1, largest([extent, canonical(-extent)])]))


def product(shape: Iterable[Extent]) -> Extent:
    """Elements of a shape."""
    result: Extent = 1
    for extent in shape:
        result = result * extent
    return canonical(result)


def dimensions(extent: Extent) -> frozenset[str]:
    """Names of the dimensions in an extent."""
    return frozenset() if isinstance(extent, int) else _names(extent)


@lru_cache(maxsize=1 << 16)
def _names(extent: Any) -> frozenset[str]:
    return frozenset(str(symbol) for symbol in getattr(extent, "free_symbols", ()))


def evaluate(extent: Extent, sizes: Mapping[str, int]) -> int:
    """The extent for known dimensions. UsageError where one is missing, or where it is divided by 0."""
    if isinstance(extent, int):
        return extent
    missing = sorted(dimensions(extent) - sizes.keys())
    if missing:
        raise UsageError(f"extent {text(extent)}: the size of {', '.join(missing)} is not known")
    program = _program(extent)
    if program is None:
        return int(extent.subs({symbol: sizes[str(symbol)] for symbol in extent.free_symbols}))
    try:
        return program.of(sizes)
    except ZeroDivisionError:
        request = ", ".join(f"{name}={sizes[name]}" for name in sorted(dimensions(extent)))
        raise UsageError(
            f"extent {shown(extent)} of a request of {request}: a division by 0; send a larger request"
        ) from None


@dataclass(frozen=True, slots=True)
class _Program:
    """An extent as nested functions of sizes."""

    of: Callable[[Mapping[str, int]], int]

    def _with(self, operation: Callable[[int, int], int], other: _Program) -> _Program:
        first, two = self.of, other.of
        return _Program(lambda sizes: operation(first(sizes), two(sizes)))

    def __add__(self, other: _Program) -> _Program:
        return self._with(operator.add, other)

    def __sub__(self, other: _Program) -> _Program:
        return self._with(operator.sub, other)

    def __mul__(self, other: _Program) -> _Program:
        return self._with(operator.mul, other)


@lru_cache(maxsize=1 << 16)  # replacing symbols takes sympy a tenth of a millisecond; a tuner asks a million times
def _program(extent: Any) -> _Program | None:
    """None of what ``lowered`` has no program for."""
    try:
        result = lowered(
            extent,
            {name: _Program(operator.itemgetter(name)) for name in dimensions(extent)},
            number=lambda n: _Program(lambda _: n),
            floordiv=lambda a, b: a._with(operator.floordiv, b),
            mod=lambda a, b: a._with(operator.mod, b),
            maximum=lambda a, b: a._with(max, b),
            minimum=lambda a, b: a._with(min, b),
            function=_typed_program,
        )
    except UsageError:
        return None
    return result if isinstance(result, _Program) else None


def _typed_program(name: str, operands: Sequence[_Program]) -> _Program:
    compute, parts = TYPED[name].compute, [operand.of for operand in operands]
    return _Program(lambda sizes: compute(*(part(sizes) for part in parts)))


def lowered(
    extent: Any,
    values: Mapping[str, Any],
    *,
    number: Callable[[Any], Any],
    floordiv: Callable[[Any, Any], Any],
    mod: Callable[[Any, Any], Any],
    maximum: Callable[[Any, Any], Any],
    minimum: Callable[[Any, Any], Any],
    function: Callable[[str, Sequence[Any]], Any] | None = None,
) -> Any:
    """The extent in another arithmetic: ``values`` of the dimensions, ``+``, ``-``, ``*`` and the functions given.

    ``function``: those of ``TYPED``, by name; without it they have no program, a UsageError.
    """
    import sympy

    from haotuner.graph.typed_extents import Typed, is_real

    def walk(e: Any) -> Any:
        if isinstance(e, int) or e.is_Integer:
            return number(int(e))
        if e.is_Symbol:
            return values[str(e)]
        if isinstance(e, sympy.floor):
            numerator, denominator = sympy.fraction(sympy.together(e.args[0]))
            return floordiv(walk(numerator), walk(denominator))
        if isinstance(e, Typed) and function is not None:
            return function(type(e).__name__, [*map(operand, e.args, e.operation.of)])
        if isinstance(e, Typed) or any(map(is_real, e.args)):
            raise UsageError(f"extent {e} has no program")
        if e.is_Pow and e.exp.is_Integer and e.exp > 0:
            return reduce(lambda item, other: item * other, [walk(e.base)] * int(e.exp))
        parts = [walk(argument) for argument in e.args]
        if e.is_Add:
            return reduce(lambda item, other: item + other, parts)
        if e.is_Mul and sympy.fraction(e)[1] == 1:
            return reduce(lambda item, other: item * other, parts)
        if isinstance(e, sympy.Mod):
            return mod(*parts)
        if isinstance(e, (sympy.Max, sympy.Min)):
            return reduce(maximum if isinstance(e, sympy.Max) else minimum, parts)
        raise UsageError(f"extent {e} has no program")

    def operand(e: Any, kind: str) -> Any:
        if kind == REAL and e.is_Rational and function is not None:
            return function("real", [number(int(e))]) if e.is_Integer else number(float(e))
        return walk(e)

    return walk(extent)


def is_symbolic(value: Any) -> bool:
    """True if a value is an expression of dimensions."""
    import sympy

    return isinstance(value, sympy.Expr)


def renamed(extent: Extent, names: Mapping[str, str]) -> Extent:
    """Copy of an extent, of dimensions with other names."""
    return extent.subs({dimension(old): dimension(new) for old, new in names.items()}, simultaneous=True)


def text(extent: Extent) -> str:
    """The extent as ``parse`` reads it."""
    if isinstance(extent, int):
        return str(extent)
    return _written(canonical(extent))


def shown(extent: Extent) -> str:
    """The extent for people: where it is long its middle is left out, and its dimensions are named."""
    text_ = text(extent)
    if len(text_) <= SHOWN:
        return text_
    return f"{text_[: SHOWN // 2]} … {text_[-SHOWN // 4 :]} (of {', '.join(sorted(dimensions(extent)))})"


def parse(source: str) -> Extent:
    """The extent that a text says: numbers, names, ``+ - * // %``, ``max``, ``min``, ``abs``. UsageError otherwise."""
    if len(source) > _LONGEST:
        raise UsageError(f"extent of {len(source)} characters; at most {_LONGEST} are read")
    try:
        tree = ast.parse(source.strip(), mode="eval").body
        return canonical(_read(tree))
    except (SyntaxError, RecursionError, ValueError, ZeroDivisionError) as error:
        raise UsageError(f"extent {source[:80]!r} cannot be read: {error}") from error


def _read(tree: ast.AST) -> Extent:
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return tree.value
    if isinstance(tree, ast.Name):
        return dimension(tree.id)
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -_read(tree.operand)
    if isinstance(tree, ast.BinOp):
        left, right = _read(tree.left), _read(tree.right)
        if isinstance(tree.op, ast.Add):
            return left + right
        if isinstance(tree.op, ast.Sub):
            return left - right
        if isinstance(tree.op, ast.Mult):
            return left * right
        if isinstance(tree.op, (ast.FloorDiv, ast.Mod)) and right == 0:
            raise ValueError("a division by 0")
        if isinstance(tree.op, ast.FloorDiv):
            return floor_division(left, right)
        if isinstance(tree.op, ast.Mod):
            import sympy

            return sympy.Mod(left, right)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords:
        if tree.func.id in _FUNCTIONS:
            import sympy

            return getattr(sympy, _FUNCTIONS[tree.func.id])(*map(_read, tree.args))
        if tree.func.id in TYPED:
            return _read_typed(tree.func.id, tree.args)
    raise ValueError(f"{ast.unparse(tree)} is not arithmetic of extents")


def _read_typed(name: str, operands: Sequence[ast.expr]) -> Extent:
    import sympy

    from haotuner.graph.typed_extents import is_real, typed

    kinds = TYPED[name].of
    if len(operands) != len(kinds):
        raise ValueError(f"{name} of {len(operands)} operands, not {len(kinds)}")
    read = [
        sympy.Rational(operand.value)
        if isinstance(operand, ast.Constant) and type(operand.value) is float
        else _read(operand)
        for operand in operands
    ]
    for item, kind in zip(read, kinds, strict=True):
        if (kind == REAL) != (is_real(item) or kind == REAL and sympy.sympify(item).is_Rational):
            raise ValueError(f"{name} of an operand that is no {kind} number")
    return typed(name, *read)


@lru_cache(1 << 14)  # a model has few, and is asked for them often
def _written(extent: Any) -> str:
    if extent.is_Integer or extent.is_Symbol:
        return str(extent)
    import sympy

    if extent.is_Add:
        return "(" + " + ".join(map(_written, extent.args)) + ")"
    if extent.is_Mul:
        numerator, denominator = sympy.fraction(extent)
        if denominator == 1:
            return "*".join(map(_written, extent.args))
    if extent.is_Pow and extent.exp.is_Integer and extent.exp > 0:
        return "*".join([_written(extent.base)] * int(extent.exp))
    for name, function in _FUNCTIONS.items():
        if isinstance(extent, getattr(sympy, function)):
            return f"{name}({', '.join(map(_written, extent.args))})"
    if isinstance(extent, sympy.Mod):
        return f"({_written(extent.args[0])} % {_written(extent.args[1])})"
    if type(extent).__name__ in TYPED:
        return f"{type(extent).__name__}({', '.join(map(_typed_operand, extent.args))})"
    if isinstance(extent, (sympy.floor, sympy.ceiling)):
        numerator, denominator = sympy.fraction(sympy.together(extent.args[0]))
        if isinstance(extent, sympy.ceiling):
            return f"(-(-({_written(numerator)}) // {_written(denominator)}))"
        return f"({_written(numerator)} // {_written(denominator)})"
    raise UsageError(f"extent {extent} has no text")


def _typed_operand(operand: Any) -> str:
    return repr(float(operand)) if operand.is_Rational and not operand.is_Integer else _written(operand)
