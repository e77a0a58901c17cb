"""Outputs that one program writes beside its own: those over the same points, or over the rows of these.

A graph's first output is the one whose points the loops are. Another of its shape is written element by element where that
one is; one that has its leading axes alone (a row's mean beside the row) is written once a row, when it is known. What they
have in common is one expression, so it is computed once, and folds over one axis share a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haotuner.codegen.access import Accesses, Indices
from haotuner.codegen.expressions import Expression, Variable, index
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, same
from haotuner.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class SiblingOutput:
    """An output beside the first: its element at the first ``axes`` loops of the program."""

    tensor: str
    axes: int
    indices: tuple[Expression, ...]
    value: Expression


def written(graph: Graph) -> tuple[str, ...]:
    """The tensors that a program writes in the order of a call: its own output comes last."""
    first, *others = graph.outputs
    return (*others, first)


def leading(shape: Sequence[Extent], whole: Sequence[Extent]) -> int | None:
    """Number of another shape's leading axes that one has, with nothing but ones behind; all if alike. None: neither."""
    shared = 0
    while shared < min(len(shape), len(whole)) and same(shape[shared], whole[shared]):
        shared += 1
    if shared == len(whole) == len(shape):
        return shared
    while shared and shared == len(shape) and len(shape) < len(whole) and shape[shared - 1] == 1:
        shared -= 1
    rest = shape[shared:]
    return shared if shared and len(shape) <= len(whole) and all(extent == 1 for extent in rest) else None


def sibling_outputs(accesses: Accesses, lane_axis: int, variables: tuple[Variable, ...]) -> tuple[SiblingOutput, ...]:
    """The other outputs of a graph, in their order. UsageError for one that lies over other points, or across the lanes."""
    graph, result = accesses.graph, []
    whole = graph.types[graph.outputs[0]].shape
    for tensor in graph.outputs[1:]:
        shape = graph.types[tensor].shape
        axes = leading(shape, whole)
        if axes is None or 0 <= lane_axis < axes < len(whole):
            why = "lies over other points" if axes is None else "has a row across the lanes"
            raise UsageError(f"{tensor} {why} than {graph.outputs[0]}: a program writes both where rows are the same")
        indices: Indices = (*variables[:axes], *[index(0)] * len(shape[axes:]))
        result.append(SiblingOutput(tensor, axes, indices, accesses.computed(tensor, indices)))
    return tuple(result)
