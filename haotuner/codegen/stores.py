"""Stores of a nest of loops: what it does with an expression at every point; of a program, one a tensor written."""

from __future__ import annotations

from dataclasses import dataclass

from haotuner.codegen.expressions import Expression, Fold, Variable
from haotuner.codegen.schedule import Plan
from haotuner.graph.extents import Extent


@dataclass(frozen=True, slots=True)
class Store:
    """An expression that is folded, or else stored: in ``tensor``, which is the program's output where it has no name."""

    axes: tuple[tuple[Variable, Extent], ...]
    value: Expression
    fold: Fold | None = None
    indices: tuple[Expression, ...] = ()
    tensor: str = ""


def stores_of(plan: Plan) -> tuple[list[Store], list[Store]]:
    """Those at every point of a program's loops, its own output first, and those of outer loops alone."""
    points, rows = [Store(plan.loops, plan.value, indices=plan.indices)], list[Store]()
    for sibling in plan.beside:
        whole = sibling.axes == len(plan.indices)
        result = Store(
            plan.loops if whole else plan.loops[: sibling.axes],
            sibling.value,
            indices=sibling.indices,
            tensor=sibling.tensor,
        )
        (points if whole else rows).append(result)
    return points, rows
