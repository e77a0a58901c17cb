"""Cache reads: copies of a tiled fold's operands in memory near the core, in the order in which its blocks read them.

Ansor's caching rule (OSDI 2020, section 4.1) and what libraries call packing (Goto and van de Geijn, TOMS 2008). A copy
holds the elements of a tensor that a tile reads: a box, as every index of the tensor grows evenly with each loop. A pad, or
another primitive that makes the tensor, is computed once for each element of the box and not once for each read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from haotuner.codegen.access import Accesses
from haotuner.codegen.expressions import Expression, Fold, Load, Variable, free_variables, parts, slope
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent
from haotuner.graph.graph import Graph

COLUMNS, ROWS = 1, 2  # bits: the operand that is read along the lanes, and the one that is read row by row
MOST_FLOATS = 1 << 15  # of a program's copies: 128 KiB, half of a pool thread's stack (runtime/native/pool.c)
VIEWS = ("window", "transpose", "broadcast", "slice")  # primitives that read an element at an even place
Axis = tuple[Variable, Extent]


@dataclass(frozen=True, slots=True)
class CacheRead:
    """Copy of a box of a tensor. ``name``: of the copy; ``tile_variable``: that of the tile's axis that it follows.

    ``indices``: of the tensor, as the fold reads it; ``slopes``: of each index in each variable of ``terms`` and in
    ``tile_variable``; ``variables`` and ``value``: an element of the tensor; ``order``: axes as they lie in the copy.
    """

    name: str
    tile_variable: Variable
    terms: tuple[tuple[Variable, int], ...]
    indices: tuple[Expression, ...]
    slopes: tuple[tuple[int, ...], ...]
    variables: tuple[Variable, ...]
    value: Expression
    order: tuple[int, ...]

    def spans(self, tile: int) -> tuple[int, ...]:
        """Extents of the box for a tile of so many points, by axis of the tensor."""
        extents = (*(extent for _, extent in self.terms), tile)
        return tuple(
            1 + sum(factor * (extent - 1) for factor, extent in zip(slopes, extents, strict=True)) for slopes in self.slopes
        )

    def floats(self, tile: int) -> int:
        """Elements of the copy."""
        return prod(self.spans(tile))

    def strides(self, tile: int) -> tuple[int, ...]:
        """Steps in the copy, by axis of the tensor."""
        spans, result, step = self.spans(tile), [0] * len(self.order), 1
        for axis in reversed(self.order):
            result[axis] = step
            step *= spans[axis]
        return tuple(result)

    def steps(self, tile: int) -> tuple[int, ...]:
        """Steps in the copy of each variable of ``terms``, then of ``tile_variable``."""
        strides = self.strides(tile)
        return tuple(
            sum(slopes[at] * stride for slopes, stride in zip(self.slopes, strides, strict=True))
            for at in range(len(self.terms) + 1)
        )


def sources(graph: Graph, fold: str) -> tuple[str, ...]:
    """Tensors that a fold's operands are views of, in their order; each is a graph's input or computed."""
    node = graph.producer(fold)
    result = []
    for tensor in node.inputs if node is not None and node.primitive == "contract" else ():
        producer = graph.producer(tensor)
        while producer is not None and producer.primitive in VIEWS:
            tensor = producer.inputs[0]
            producer = graph.producer(tensor)
        result.append(tensor)
    return tuple(dict.fromkeys(result))


def copy_name(tensor: str) -> str:
    """Name of a tensor's copy."""
    return f"copy of {tensor}"


def reading(graph: Graph, fold: Fold, row: Variable, column: Variable) -> dict[int, str]:
    """The tensor that can be copied for columns and the one for rows, by their bit; of a fold that reads tensors only."""
    result: dict[int, str] = {}
    for tensor in sources(graph, fold.tensor):
        loads = _loads(fold, tensor)
        if len(loads) != 1:
            continue
        free = free_variables(loads[0])
        if column.name in free and row.name not in free:
            result.setdefault(COLUMNS, tensor)
        elif row.name in free and column.name not in free:
            result.setdefault(ROWS, tensor)
    return result


def _loads(fold: Fold, tensor: str) -> list[Load]:
    return [part for part in parts(fold.value) if isinstance(part, Load) and part.tensor in (tensor, copy_name(tensor))]


def cache_read(accesses: Accesses, fold: Fold, value: Expression, tensor: str, tile_variable: Variable) -> CacheRead:
    """The copy of a tensor that a fold reads. UsageError where a tile's elements of it are no box of a known size."""
    graph = accesses.graph
    refused = UsageError(f"what a tile reads of {tensor} is no box of a known size: it cannot be copied")
    loads = _loads(fold, tensor)
    outside = [
        part for part in parts(value, into_folds=False) if isinstance(part, Load) and part.tensor == copy_name(tensor)
    ]
    if len(loads) != 1 or outside or loads[0].nonempty or graph.types[tensor].dtype != "fp32":
        raise refused
    terms = [(variable, extent) for variable, extent in fold.axes if isinstance(extent, int)]
    if len(terms) < len(fold.axes):
        raise refused
    indices = loads[0].indices
    rows = [[slope(index, variable.name) for variable in (*(name for name, _ in terms), tile_variable)] for index in indices]
    slopes = [tuple(item for item in row if item is not None and item >= 0) for row in rows]
    if any(len(item) < len(terms) + 1 for item in slopes):
        raise refused
    variables = tuple(accesses.variable("t") for _ in indices)
    plain = Accesses(graph)
    element = Load(tensor, variables, "fp32") if tensor in graph.inputs else plain.computed(tensor, variables)
    if any(isinstance(part, Fold) for part in parts(element)):
        raise refused
    order = sorted(range(len(indices)), key=lambda axis: slopes[axis][-1] > 0)
    name, element_order = copy_name(tensor), tuple(order)
    return CacheRead(name, tile_variable, tuple(terms), indices, tuple(slopes), variables, element, element_order)


def floats(reads: Sequence[CacheRead], tiles: Sequence[int]) -> int:
    """Elements of all copies; ``tiles``: points of the axis that each follows."""
    return sum(read.floats(tile) for read, tile in zip(reads, tiles, strict=True))
