"""Strided reads of loops: a cache line for each element, where the output's neighbours lie apart.

Sums are then made for a block of the output's last axis at a time; what is read as it is, is turned in squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haotuner.codegen.expressions import Expression, Fold, Load, Variable, free_variables, parts
from haotuner.codegen.loops.concat_loops import interleaved_parts
from haotuner.codegen.loops.loop_partition import interior_of
from haotuner.codegen.mixed_radix import merged
from haotuner.graph.extents import Extent
from haotuner.graph.graph import Graph

BLOCK, LEAST_WIDE = 64, 8  # elements of the last axis that are summed side by side; of an axis of fewer it is not worth it
PART = 128  # terms that are summed before they are added to the sum: of 50,000 in one row the last ones lose four digits
ROWS = 16  # elements of the other axis of what is turned: a cache line


@dataclass(frozen=True, slots=True)
class StridedLoad:
    """``digits``: its indices with their extents; ``behind``: the extents behind that of the output's last variable."""

    load: Load
    digits: tuple[tuple[Expression, Extent], ...]
    behind: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class StridedReads:
    """Loads whose neighbours lie along the output's axis ``place``, not along its last one."""

    index: int
    loads: tuple[StridedLoad, ...]


def strided_folds(value: Expression, variables: Sequence[Variable]) -> list[Fold]:
    """Sums whose terms lie side by side along the output's last axis and apart along their own: as of a row times a matrix.

    In the order of plain loops, sum innermost, every term would be a cache line's; summed a block of the last axis at a time
    they are read as they lie.
    """
    known = {variable.name for variable in variables}  # one inside of another sum needs that one's loops, too
    folds = [part for part in parts(value) if isinstance(part, Fold) and free_variables(part) <= known]
    return [fold for fold in folds if _across(fold, variables[-1])]


def _across(fold: Fold, last: Variable) -> bool:
    inside, own = list(parts(fold.value)), {variable.name for variable, _ in fold.axes}
    if fold.how != "sum" or fold.dtype != "fp32" or any(isinstance(index, Fold) for index in inside):
        return False
    beside = [index for index in inside if isinstance(index, Load) and last.name in free_variables(index)]
    return all(_beside(index, last) for index in beside) and any(own & free_variables(index) for index in beside)


def _beside(load: Load, last: Variable) -> bool:
    """True if what is read for neighbours along the last axis lies side by side, or where loads that do so tell.

    Elements that are chosen lie anywhere in either order; their indices and factors then come as they lie.
    """
    moved = [index for index in load.indices if last.name in free_variables(index)]
    as_it_lies = moved[0] is load.indices[-1] and isinstance(moved[0], Variable)
    return len(moved) == 1 and (as_it_lies or isinstance(moved[0], Load))


def wide(extent: Extent) -> bool:
    """True if sums of a row are worth blocks of it."""
    return not isinstance(extent, int) or extent >= LEAST_WIDE


def strided_loads(graph: Graph, variables: Sequence[Variable], value: Expression) -> StridedReads | None:
    """Strided reads of an element; None where there are none, or where rows have other loops that are faster.

    All of them lie along one axis: that of most loads, the first of several such. Sums have loops of their own.
    """
    shape = graph.types[graph.outputs[0]].shape
    if not variables or not wide(shape[-1]) or any(isinstance(part, Fold) for part in parts(value)):
        return None
    result: dict[int, list[StridedLoad]] = {}
    for part in parts(value):
        if isinstance(part, Load) and not part.nonempty and part.dtype == "fp32":
            digits = _digits(part, graph)
            axis = _along(digits, variables)
            if axis is not None and wide(shape[axis]):
                at = [index for index, _ in digits].index(variables[-1])
                behind = tuple(extent for _, extent in digits[at + 1 :])
                result.setdefault(axis, []).append(StridedLoad(part, tuple(digits), behind))
    if (
        not result
        or interior_of(value, variables[-1], shape[-1]) is not None
        or interleaved_parts(value, variables[-1]) is not None
    ):
        return None
    axis = max(sorted(result), key=lambda item: len(result[item]))
    return StridedReads(axis, tuple(result[axis]))


def _digits(load: Load, graph: Graph) -> list[tuple[Expression, Extent]]:
    """A load's indices with their extents, those of one element left out."""
    digits = merged(list(zip(load.indices, graph.types[load.tensor].shape, strict=True)))
    return [(index, extent) for index, extent in digits if extent != 1]


def _along(digits: Sequence[tuple[Expression, Extent]], variables: Sequence[Variable]) -> int | None:
    """The place of the variable that is the last digit, where the output's last one is another, and neither is elsewhere."""
    indices, last = [digit for digit, _ in digits], variables[-1]
    along = indices[-1] if indices else last
    if not isinstance(along, Variable) or along not in variables[:-1] or indices.count(last) != 1:
        return None
    others = [index for index in indices[:-1] if index != last]
    return None if any({last.name, along.name} & free_variables(item) for item in others) else variables.index(along)
