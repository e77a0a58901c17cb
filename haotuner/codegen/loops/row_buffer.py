"""Row buffers: terms that are summed and read again, as a softmax's, wait in the output's row, and are computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haotuner.codegen.expressions import (
    Apply,
    Expression,
    Fold,
    Load,
    Merged,
    Variable,
    dtype_of,
    free_variables,
    parts,
)
from haotuner.codegen.loops.loop_partition import clipped
from haotuner.graph.extents import same
from haotuner.graph.graph import Graph
from haotuner.ops.functions import TRANSCENDENTAL

DEAR = TRANSCENDENTAL  # a store and a load take less
NOT_NEGATIVE = ("exp", "sigmoid")
MOST = 40  # expressions of an element that are looked through


@dataclass(frozen=True, slots=True)
class RowBuffer:
    """The sum whose terms are stored where the output's elements will be, and an element as made of what is stored."""

    fold: Fold
    rows: tuple[str, ...]  # the output's places but the last: a variable, or 0 where there is one
    value: Expression
    by_inverse: Expression | None  # the same, of a sum that is far from the ends of float32: products, which take less


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
            return RowBuffer(fold, rows, made, _by_inverse(made, term, fold))
    return None


def _by_inverse(made: Expression, term: Expression, fold: Fold) -> Expression | None:
    """The element with products instead of quotients of terms by their sum; None: it has no such quotient.

    Terms are numbers from 0 to the sum, so that no infinity and no negative zero is divided.
    """
    if not isinstance(term, Apply) or term.function not in NOT_NEGATIVE:
        return None
    inverse = Apply("reciprocal", (fold,), "fp32")

    def replaced(e: Expression) -> Expression:
        if not isinstance(e, Apply):
            return e
        if e.function == "div" and isinstance(e.arguments[0], Load) and e.arguments[1] is fold:
            return Apply("div_by_inverse", (*e.arguments, inverse), e.dtype)
        arguments = tuple(map(replaced, e.arguments))
        same_ones = all(a is b for a, b in zip(arguments, e.arguments, strict=True))
        return e if same_ones else Apply(e.function, arguments, e.dtype)

    result = replaced(made)
    return None if result is made else result


def _replaced(e: Expression, term: Expression, stored: Load) -> Expression:
    """The expression with a part of it, told by identity, replaced; what folds hold is left."""
    if e is term:
        return stored
    if isinstance(e, Apply):
        return Apply(e.function, tuple(_replaced(argument, term, stored) for argument in e.arguments), e.dtype)
    return e
