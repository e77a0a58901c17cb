"""Reductions that the loops of a group would compute again and again: such a tensor is better made before."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from haotuner.codegen.expressions import Apply, Expression, Fold, Number, Size, Variable, children, free_variables, parts
from haotuner.codegen.loops.c_ordered import ordered_node
from haotuner.codegen.loops.elements import elements_of
from haotuner.graph.extents import Extent
from haotuner.graph.graph import Graph

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
