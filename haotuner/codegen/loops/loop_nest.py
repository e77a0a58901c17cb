"""Loop nest of a group: the elements that it computes, axes collapsed to rows, and bodies while they are written.

Groups of tensors with the same elements in the same order, with one axis each: a row, whatever axes it has.

Loops over rows of 24 elements leave half a vector unused in each.

The elements that a group's loops compute: of its first output, whose loops they are, and of what it writes beside it.

An output may lie beside another one where it has the same points, or is a row of them: its extents are the first ones of the
loops. The loops inside of a row are then of fixed extents, so that no row is without a point.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from haotuner.codegen.access import Accesses
from haotuner.codegen.expressions import Expression, Fold, Load, Variable, index, parts
from haotuner.codegen.sibling_outputs import SiblingOutput
from haotuner.graph.extents import Extent, product, same
from haotuner.graph.graph import Graph
from haotuner.graph.types import TensorType


def collapsed(graph: Graph) -> Graph:
    """The group over one axis; itself where some tensor has other axes, or something moves or is summed."""
    shape = graph.types[graph.outputs[0]].shape
    names = [*graph.inputs, *(node.output for node in graph.nodes)]
    if len(shape) < 2 or any(node.primitive not in ("map", "cast") for node in graph.nodes):
        return graph
    if any(graph.types[name].shape != shape for name in names):
        return graph
    row = (product(shape),)
    types = {**graph.types, **{name: TensorType(row, graph.types[name].dtype) for name in names}}
    types |= {name: TensorType((), graph.types[name].dtype) for name in graph.constants}
    constants = {name: np.asarray(value).reshape(()) for name, value in graph.constants.items()}
    return replace(graph, types=types, constants=constants)


@dataclass(frozen=True, slots=True)
class Elements:
    """``value``: the first output's at its ``variables``, one for each loop; what is ``beside`` it may share its parts.

    ``before``: whole rows that are written before others are computed, which read them there.
    """

    variables: tuple[Variable, ...]
    value: Expression
    beside: tuple[SiblingOutput, ...] = ()
    before: tuple[SiblingOutput, ...] = ()

    @property
    def values(self) -> tuple[Expression, ...]:
        """Of all outputs."""
        return (self.value, *(sibling.value for sibling in (*self.beside, *self.before)))


def elements_of(graph: Graph) -> Elements:
    """The elements of all outputs. ValueError for one that does not lie beside the first."""
    return _elements(graph, ())


def rows_before(graph: Graph) -> Elements | None:
    """Elements where sums over a row read what is written of it, once computed; None where none does.

    A sum is then of the row in hand: all loops but the last are in the place of what it reads.
    """
    plain = elements_of(graph)
    rows = plain.variables[:-1]
    full = [sibling.tensor for sibling in plain.beside
            if sibling.axes == len(plain.variables) and graph.types[sibling.tensor].dtype == "fp32"]  # fmt: skip
    folds = [part for value in _elements(graph, full).values for part in parts(value) if isinstance(part, Fold)]
    read = {part.tensor for fold in folds for part in parts(fold.value) if isinstance(part, Load)}
    selected = [sibling for sibling in full if sibling in read]
    result = _elements(graph, selected)
    loads = [part for value in result.values for part in parts(value) if isinstance(part, Load) and part.tensor in selected]
    there = all(not load.nonempty and tuple(i for i in load.indices[:-1] if i in rows) == rows for load in loads)
    return result if selected and there else None


def _elements(graph: Graph, before: Collection[str]) -> Elements:
    first, *others = graph.outputs
    shape, accesses = graph.types[first].shape, Accesses(graph, {item: item for item in before}, inverts=True)
    variables = tuple(accesses.variable("i") for _ in shape)
    value = accesses.computed(first, variables)
    result, order = list[SiblingOutput](), {node.output: position for position, node in enumerate(graph.nodes)}
    for sibling in others:
        lies = lies_beside(graph.types[sibling].shape, shape)
        if lies is None:
            raise ValueError(f"{sibling} {graph.types[sibling]} has other points than {first} {graph.types[first]}")
        indices = tuple(index(0) if node_index is None else variables[node_index] for node_index in lies)
        axes = max((node_index + 1 for node_index in lies if node_index is not None), default=0)
        result.append(SiblingOutput(sibling, axes, indices, accesses.computed(sibling, indices)))
    rows = sorted((sibling for sibling in result if sibling.tensor in before), key=lambda item: order[item.tensor])
    return Elements(variables, value, tuple(sibling for sibling in result if sibling.tensor not in before), tuple(rows))


def lies_beside(shape: Sequence[Extent], loops: Sequence[Extent]) -> list[int | None] | None:
    """For each axis of an output the loop that it is, None where it has one point; None: it does not lie beside."""
    places: list[int | None] = []
    left = [position for position, extent in enumerate(loops) if extent != 1]
    for extent in shape:
        if extent == 1:
            places.append(None)
        elif not left or not same(extent, loops[left[0]]):
            return None
        else:
            places.append(left.pop(0))
    fixed = all(isinstance(loops[position], int) and int(loops[position]) > 0 for position in left)
    return places if fixed and any(position is not None for position in places) else None


@dataclass(slots=True)
class Scope:
    """A loop's body: lines and inner loops in their order; what it has computed, by the text and by the expression."""

    bound: frozenset[str]
    lines: list[Any] = field(default_factory=list)
    by_text: dict[str, str] = field(default_factory=dict)
    by_identity: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """The C of a group and what a call passes it: tensors in order, the outputs last, of which the last one's are the loops.

    Of a device (``cuda_loops.py``): ``lanes`` threads for each point of the first ``points`` loops, and the lines of the
    size table that it reads.
    """

    source: str
    tensors: tuple[str, ...]
    loops: tuple[Extent, ...]
    points: int = 0
    lanes: int = 1
    sizes: tuple[int, ...] = ()


def text_of(lines: Sequence[Any], depth: int) -> list[str]:
    """Lines with their loops' bodies indented."""
    result: list[str] = []
    for line in lines:
        if isinstance(line, str):
            result.append("  " * depth + line)
        else:
            head, *body = line
            result += ["  " * depth + head + " {", *text_of(body, depth + 1), "  " * depth + "}"]
    return result
