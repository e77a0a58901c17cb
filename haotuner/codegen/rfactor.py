"""Folds over an axis that no output has, in parts: what a call on a part of the axis gives, and how parts are joined.

Ansor's rule 6 (rfactor) over workers. The same program serves a part; the runtime joins the parts in the axis's order.
"""

from __future__ import annotations

from haotuner.codegen.access import Accesses
from haotuner.codegen.expressions import Apply, Expression, Fold, Load, Number, Size, parts
from haotuner.graph.extents import dimension, dimensions, same
from haotuner.graph.graph import Graph

JOINS = ("", "sum", "max", "min", "prod", "mean")  # by the runtime's numbers (native/kinds/sliced.h)


def joined(graph: Graph) -> dict[str, str]:
    """Dimensions over which the output is one fold, and how results of parts of it are joined; ``mean``: by their shares.

    Nothing else may depend on the extent, and operands that have the axis are read at the fold's own place.
    """
    if len(graph.outputs) > 1:
        return {}
    (out,) = graph.outputs
    accesses = Accesses(graph)
    value: Expression = accesses.computed(out, tuple(accesses.variable("i") for _ in graph.types[out].shape))
    result, every = {}, {str(e) for name in graph.inputs for e in graph.types[name].shape if getattr(e, "is_Symbol", False)}
    for axis in sorted(every - {name for e in graph.types[out].shape for name in dimensions(e)}):
        fold, how = _outermost(value, axis)
        if fold is not None and graph.types[out].dtype == "fp32" and _apart(graph, fold, axis):
            result[axis] = how
    return result


def _outermost(value: Expression, axis: str) -> tuple[Fold | None, str]:
    """The fold that a value is, or is the mean of over the axis."""
    if isinstance(value, Fold):
        return value, value.how
    if isinstance(value, Apply) and value.function in ("div", "mul") and isinstance(value.arguments[0], Fold):
        fold, divisor = value.arguments
        while isinstance(divisor, Apply) and divisor.function == "cast":
            divisor = divisor.arguments[0]
        whole = isinstance(divisor, Size) and same(divisor.extent, dimension(axis))
        if value.function == "div" and isinstance(fold, Fold) and fold.how == "sum" and whole:
            return fold, "mean"
        if isinstance(divisor, Number) and isinstance(fold, Fold) and fold.how == "sum":
            return fold, "sum"  # a sum, scaled
    return None, ""


def _apart(graph: Graph, fold: Fold, axis: str) -> bool:
    own = [variable for variable, extent in fold.axes if same(extent, dimension(axis))]
    if len(own) != 1 or any(axis in dimensions(extent) for variable, extent in fold.axes if variable != own[0]):
        return False
    for part in parts(fold.value):
        if isinstance(part, Size) and axis in dimensions(part.extent):
            return False
        if isinstance(part, Fold):
            return False  # what is folded before depends on more than the part, or is the same for all parts
        if isinstance(part, Load):
            for extent, size in zip(graph.types[part.tensor].shape, part.indices, strict=True):
                if axis in dimensions(extent) and (not same(extent, dimension(axis)) or size != own[0]):
                    return False
    return True
