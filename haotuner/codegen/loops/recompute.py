"""Reuse in loops: terms kept in row buffers, and reductions that loops would compute again and again.

Row buffers: terms that are summed and read again, as a softmax's, wait in the output's row, and are computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from haotuner.codegen.expressions import (
    Apply,
    Expression,
    Fold,
    Load,
    Merged,
    Number,
    Size,
    Variable,
    children,
    dtype_of,
    free_variables,
    parts,
)
from haotuner.codegen.loops.c_ordered import ordered_node
from haotuner.codegen.loops.loop_nest import elements_of
from haotuner.codegen.loops.loop_partition import clipped
from haotuner.graph.extents import Extent, same
from haotuner.graph.graph import Graph
from haotuner.ops.formula import TRANSCENDENTAL

DEAR = TRANSCENDENTAL  # a store and a load take less
MOST = 40  # expressions of an element that are looked through


@dataclass(frozen=True, slots=True)
class RowBuffer:
    """The sum whose terms are stored where the output's elements will be, and an element as made of what is stored."""

    fold: Fold
    rows: tuple[str, ...]  # the output's places but the last: a variable, or 0 where there is one
    value: Expression


def row_buffer_of(graph: Graph, variables: Sequence[Variable], value: Expression) -> RowBuffer | None:
    """Of the output's element at its variables. None: no sum over the row has dear terms that the element is made of.

    Nothing else may be read for an element but sums and maxima, so what is stored over is not asked for again.
    """
    out = graph.types[graph.outputs[0]]
    if out.dtype != "fp32" or not variables or sum(1 for _ in parts(value)) > MOST:
        return None
    merged, last = Merged(), variables[-1]
    whole = merged.renamed(value, {})
    for fold in parts(whole):
        if not isinstance(fold, Fold) or (fold.how, fold.dtype, len(fold.axes)) != ("sum", "fp32", 1):
            continue
        own, along = fold.axes[0]
        outer = zip(variables[:-1], out.shape[:-1], strict=True)
        rows = tuple("0" if extent == 1 else variable.name for variable, extent in outer)
        if not same(along, out.shape[-1]) or free_variables(fold) != set(rows) - {"0"} or clipped(fold):
            continue
        term = merged.renamed(fold.value, {own.name: last})
        inside = parts(term, into_folds=False)
        if dtype_of(term) != "fp32" or not any(isinstance(item, Apply) and item.function in DEAR for item in inside):
            continue
        made = _replaced(whole, term, Load(graph.outputs[0], tuple(variables), "fp32"))
        loads = [part.tensor for part in parts(made, into_folds=False) if isinstance(part, Load)]
        if loads and set(loads) == {graph.outputs[0]}:
            return RowBuffer(fold, rows, made)
    return None


def _replaced(e: Expression, term: Expression, stored: Load) -> Expression:
    """The expression with a part of it, told by identity, replaced; what folds hold is left."""
    if e is term:
        return stored
    if isinstance(e, Apply):
        return Apply(e.function, tuple(_replaced(argument, term, stored) for argument in e.arguments), e.dtype)
    return e


LARGEST = 1_500  # expressions of a group; more is made in parts
WIDE = 4096  # elements that are dear to reduce once more


def recomputed_reductions(graph: Graph) -> str | None:
    """A tensor whose reduction the loops would repeat; None if each is computed once. It is better made before.

    One that no loop changes is repeated, too: by every thread, and by every group that needs it.
    """
    if ordered_node(graph) is not None:
        return None
    elements = elements_of(graph)
    extents = graph.types[graph.outputs[0]].shape
    order = [variable.name for variable in elements.variables]
    count = 0
    for part in (part for value in elements.values for part in parts(value)):
        count += 1
        if not isinstance(part, Fold) or part.tensor.split(" ")[0] in graph.outputs:
            continue
        free = free_variables(part)
        inner = free - set(order)
        own = [index for index, name in enumerate(order) if name in free]
        skipped = [index for index in range(max(own, default=-1)) if order[index] not in free and extents[index] != 1]
        everywhere = not free and _wide(extent for _, extent in part.axes) and any(extent != 1 for extent in extents)
        if skipped or inner or everywhere or free - _named(part):
            return part.tensor.split(" ")[0]
    return _largest(graph) if count > LARGEST else None


def _wide(extents: Iterable[Extent]) -> bool:
    """True if there may be many elements."""
    count = 1
    for extent in extents:
        if not isinstance(extent, int):
            return True
        count *= extent
    return count >= WIDE


@lru_cache(maxsize=100_000)
def _named(e: Expression) -> frozenset[str]:
    """Variables that an expression depends on but by a quotient, which many values of them share."""
    if isinstance(e, Apply) and e.function == "floordiv" and isinstance(e.arguments[1], (Number, Size)):
        return frozenset()
    return frozenset({e.name}) if isinstance(e, Variable) else frozenset().union(*map(_named, children(e)))


def _largest(graph: Graph) -> str | None:
    """Tensor at which an expression that is too long is cut: in the middle."""
    inner = [node.output for node in graph.nodes if node.output not in graph.outputs and node.primitive != "size"]
    return inner[len(inner) // 2] if inner else None
