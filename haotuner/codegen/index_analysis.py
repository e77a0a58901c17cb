"""Index analysis for the emitter: steps of indices along the lanes, what is ready, what can be masked."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from haotuner.codegen.expressions import Expression, Fold, Load, Variable, children, free_variables, has_folds, parts, slope
from haotuner.codegen.schedule import CachedRow
from haotuner.graph.extents import Extent


def step_along(e: Expression, along: frozenset[str]) -> int | None:
    """Step of an index from lane to lane; None where it does not grow evenly."""
    own = [name for name in along if name in free_variables(e)]
    return 0 if not own else slope(e, own[0])


def extents_of(fold: Fold) -> tuple[Extent, ...]:
    """Extents of the axes that are folded."""
    return tuple(extent for _, extent in fold.axes)


def is_ready(keep: CachedRow, inside: set[str]) -> bool:
    """True if only the keep's own axes are missing."""
    own = {variable.name for variable, _ in keep.axes}
    return not (free_variables(keep.value) - own) & inside


def missing_folds(
    e: Expression, known: Container[Fold], first: Mapping[Fold, Expression], seen: set[int], result: list[Fold]
) -> None:
    """Add the folds in an expression that have no value yet, inner ones first.

    ``first``: what is folded in place of a fold's own value; ``seen``: expressions, by identity, that were looked through.
    """
    if not has_folds(e) or id(e) in seen or isinstance(e, Fold) and e in known:
        return
    seen.add(id(e))
    for child in (first.get(e, e.value),) if isinstance(e, Fold) else children(e):
        missing_folds(child, known, first, seen, result)
    if isinstance(e, Fold):
        result.append(e)


def offsets(count: int, lanes: int, pitch: int) -> list[int]:
    """Offsets of the vectors of an iteration: ``pitch`` of them at neighbours, lanes so far apart, then the next ones."""
    return [index // pitch * lanes * pitch + index % pitch for index in range(count)]


def maskable(value: Expression, indices: Sequence[Expression], along: frozenset[str]) -> bool:
    """True if all that a vector touches is one row of neighbours, so that masked instructions can leave lanes out."""
    for part in parts(value):
        if isinstance(part, Load) and free_variables(part) & along:
            steps = [step_along(index, along) for index in part.indices]
            if steps[-1] != 1 or any(steps[:-1]):
                return False
        if isinstance(part, Fold):
            axes = {variable.name for variable, _ in part.axes}
            assert not axes & along, "a fold's own axes are loops of their own"
    return not indices or [index for index in indices if isinstance(index, Variable) and index.name in along] == [
        indices[-1]
    ]
