"""Tensors that a program reads along another axis than its lanes', so that squares of elements are worth turning.

Asked of loops and expressions alone; ``register_transpose.py`` makes the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haotuner.codegen.expressions import Expression, Fold, Load, Variable, free_variables, parts, slope
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, same

Loops = Sequence[tuple[Variable, Extent]]


@dataclass(frozen=True, slots=True)
class TransposedLoad:
    """``row``: the loop whose elements lie next to each other in ``loads``; the last loop's do in the output."""

    row: tuple[Variable, Extent]
    column: tuple[Variable, Extent]
    loads: tuple[Load, ...]


def transposed_load_of(loops: Loops, value: Expression, indices: Sequence[Expression]) -> TransposedLoad:
    """The turn of a program: over the axis along which most loads have neighbours.

    UsageError where it folds, writes other than along its lanes, reads nothing across them, or reads what no vector takes.
    """
    *outer, column = loops
    lanes, every = column[0].name, list(parts(value))
    refused = "squares are turned where tensors are read across the lanes and written along them: "
    if any(isinstance(item, Fold) for item in every):
        raise UsageError(refused + "this program folds")
    if not indices or indices[-1] != column[0]:
        raise UsageError(refused + "this one writes across them")
    loads = [item for item in every if isinstance(item, Load) and lanes in free_variables(item) and item.dtype != "bool"]
    result = [TransposedLoad(row, column, tuple(load for load in loads if _across(load, row[0].name, lanes)))
             for row in outer if not same(row[1], 1)]  # fmt: skip
    best = max(result, key=lambda item: len(item.loads), default=None)
    if best is None or not best.loads:
        raise UsageError(refused + "this one reads none so")
    left = (item for item in every if isinstance(item, Load) and lanes in free_variables(item) and item not in best.loads)
    for item in left:
        if not _even(item, lanes):
            raise UsageError(refused + f"what this one reads of {item.tensor} are no neighbours along any axis")
    return best


def _even(load: Load, name: str) -> bool:
    """True if elements lie next to each other along a loop."""
    return slope(load.indices[-1], name) == 1 and not any(name in free_variables(index) for index in load.indices[:-1])


def _across(load: Load, row: str, lanes: str) -> bool:
    return bool(load.indices) and _even(load, row) and lanes not in free_variables(load.indices[-1])
