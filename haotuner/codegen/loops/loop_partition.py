"""Interior of a padded image's rows: the elements for which no tap looks outside, and what they are there.

Every element of a padded window asks of every tap whether it lies in the image, and such loops become no vectors. In the
middle of a row all answers are yes: plain loops compute that part without the questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from haotuner.codegen.expressions import (
    INDEX,
    Apply,
    Expression,
    Fold,
    Load,
    Number,
    Size,
    Variable,
    arithmetic,
    children,
    dtype_of,
    free_variables,
    index,
    parts,
    sized,
    slope,
)
from haotuner.graph.extents import Extent


@dataclass(frozen=True, slots=True)
class Interior:
    """``value`` of the last variable from ``first`` up to ``end``, where ``holds`` (a bool; None: always) is true."""

    first: Expression
    end: Expression
    holds: Expression | None
    value: Expression


@dataclass(frozen=True, slots=True)
class _Guard:
    """The index must not be over ``last``; None: not under 0."""

    moved: Expression
    last: Expression | None


def interior_of(value: Expression, last: Variable, extent: Extent) -> Interior | None:
    """The part of a row where every guard of a pad holds, for all terms of reductions; None: there are none to save."""
    widths = {item.name: wide for fold in parts(value) if isinstance(fold, Fold) for item, wide in fold.axes}
    guards: dict[int, list[Expression]] = {}  # of each select: its conditions that will not be asked
    first: Expression = index(0)
    end, holds = sized(extent), list[Expression]()
    settled: set[Expression] = set()
    for part in parts(value):
        if not (isinstance(part, Apply) and part.function == "select" and last.name in free_variables(part)):
            continue
        for condition in _conjuncts(part.arguments[0]):
            guard = _guard(condition)
            if guard is None or (result := _worst(guard, last.name, widths)) is None:
                continue
            guards.setdefault(id(part), []).append(condition)
            if condition in settled:
                continue
            settled.add(condition)
            step, rest = result
            if step == 0:
                holds.append(Apply("less_equal", (index(0), rest), "bool"))
            elif guard.last is None:  # step i + rest >= 0
                first = arithmetic("max", first, arithmetic("sub", index(0), arithmetic("floordiv", rest, index(step))))
            else:  # step i <= rest
                end = arithmetic("min", end, arithmetic("add", arithmetic("floordiv", rest, index(step)), index(1)))
    if not guards:
        return None
    return Interior(first, end, _together(holds), _Unasked(frozenset({last.name}), guards, settled).of(value))


def _together(conditions: Sequence[Expression]) -> Expression | None:
    result: Expression | None = None
    for condition in conditions:
        result = condition if result is None else Apply("and", (result, condition), "bool")
    return result


@dataclass(frozen=True, slots=True)
class Clipped:
    """A fold's ``value`` where nothing is asked of an index, and from where to where each of its axes may go for that."""

    value: Expression
    bounds: Mapping[str, tuple[Expression, Expression]]


def clipped(fold: Fold) -> Clipped | None:
    """A fold over a padded window without the terms outside of the tensor; None: they count, or are not known so simply."""
    e = fold.value
    if not (isinstance(e, Apply) and e.function == "select" and e.arguments[2] == Number(_NEUTRAL[fold.how], fold.dtype)):
        return None
    widths, conditions = {item.name: wide for item, wide in fold.axes}, list(_conjuncts(e.arguments[0]))
    bounds = {name: (cast(Expression, index(0)), sized(wide)) for name, wide in widths.items()}
    for condition in conditions:
        guard = _guard(condition)
        own = [] if guard is None else sorted(free_variables(guard.moved) & set(widths))
        step = slope(guard.moved, own[0]) if guard is not None and len(own) == 1 else None
        if guard is None or step is None or step < 1:
            return None
        (low, high), rest = bounds[own[0]], _with(guard.moved, {own[0]: index(0)})
        if guard.last is None:
            low = arithmetic("max", low, arithmetic("sub", index(0), arithmetic("floordiv", rest, index(step))))
        else:
            left = arithmetic("floordiv", arithmetic("sub", guard.last, rest), index(step))
            high = arithmetic("min", high, arithmetic("add", left, index(1)))
        bounds[own[0]] = low, high
    return Clipped(_Unasked(frozenset(widths), {id(e): conditions}, set(conditions)).of(e), bounds)


_NEUTRAL = {"sum": 0, "max": float("-inf"), "min": float("inf"), "prod": 1}  # of the terms that a pad may leave out


def _conjuncts(condition: Expression) -> Iterator[Expression]:
    if isinstance(condition, Apply) and condition.function == "and":
        for argument in condition.arguments:
            yield from _conjuncts(argument)
    else:
        yield condition


def _guard(condition: Expression) -> _Guard | None:
    """Guard that ``codegen/access.py`` puts on an index of a padded tensor, or None."""
    if not (isinstance(condition, Apply) and condition.function == "less_equal"):
        return None
    first, other = condition.arguments
    if dtype_of(first) != INDEX or dtype_of(other) != INDEX:  # a model's own comparison
        return None
    if first == index(0):
        return _Guard(other, None)
    return _Guard(first, other) if isinstance(other, (Size, Number)) and other not in (index(0),) else None


def _worst(guard: _Guard, last: str, widths: Mapping[str, Extent]) -> tuple[int, Expression] | None:
    """Step of the index with the last variable, and what is left for it by the worst terms of all reductions."""
    step = slope(guard.moved, last)
    if step is None or step < 0:
        return None
    values: dict[str, Expression] = {last: index(0)}
    for name in free_variables(guard.moved) & set(widths):
        grows = slope(guard.moved, name)
        if grows is None:
            return None
        to_end = (grows < 0) == (guard.last is None)
        values[name] = arithmetic("sub", sized(widths[name]), index(1)) if to_end else index(0)
    rest = _with(guard.moved, values)
    return step, rest if guard.last is None else arithmetic("sub", guard.last, rest)


def _with(e: Expression, values: Mapping[str, Expression]) -> Expression:
    """An index with values for some variables."""
    if isinstance(e, Variable):
        return values.get(e.name, e)
    if isinstance(e, Apply) and e.function in ("add", "sub", "mul"):
        return arithmetic(e.function, *(_with(argument, values) for argument in e.arguments))
    return e


class _Unasked:
    """Rewrites what depends on some variables: selects without the guards, indices as they are under them."""

    def __init__(self, names: frozenset[str], guards: Mapping[int, list[Expression]], settled: set[Expression]) -> None:
        self.names, self.guards = names, guards
        self.plain: dict[Expression, Expression] = {}  # by what keeps the index inside of the tensor
        self.some: set[Expression] = set()  # the last places of extents that are not 0
        self.known: dict[int, Expression] = {}
        for condition in settled:
            guard = _guard(condition)
            if guard is None or guard.last is None or Apply("less_equal", (index(0), guard.moved), "bool") not in settled:
                continue
            clamped = arithmetic("max", arithmetic("min", guard.moved, guard.last), index(0))
            self.plain[clamped] = guard.moved
            self.some.add(guard.last)

    def of(self, e: Expression) -> Expression:
        """Expression of the same value where all guards hold."""
        if not self.names & free_variables(e) or isinstance(e, Variable):
            return self.plain.get(e, e) if not isinstance(e, Fold) else e
        if id(e) not in self.known:
            self.known[id(e)] = self._made(e)
        return self.known[id(e)]

    def _made(self, e: Expression) -> Expression:
        if e in self.plain:
            return self.plain[e]
        if isinstance(e, Load):
            stored = tuple(item for item in e.nonempty if arithmetic("sub", sized(item), index(1)) not in self.some)
            return replace(e, indices=tuple(map(self.of, e.indices)), nonempty=stored)
        if isinstance(e, Fold):
            return replace(e, value=self.of(e.value))
        assert isinstance(e, Apply)
        if id(e) in self.guards:
            left = _together([argument for argument in _conjuncts(e.arguments[0]) if argument not in self.guards[id(e)]])
            if left is None:
                return self.of(e.arguments[1])
            return replace(e, arguments=(left, *map(self.of, e.arguments[1:])))
        return replace(e, arguments=tuple(map(self.of, children(e))))
