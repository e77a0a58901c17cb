"""The elements that a group's loops compute: of its first output, whose loops they are, and of what it writes beside it.

An output may lie beside another one where it has the same points, or is a row of them: its extents are the first ones of the
loops. The loops inside of a row are then of fixed extents, so that no row is without a point.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from haotuner.codegen.access import Accesses
from haotuner.codegen.expressions import Expression, Fold, Load, Variable, index, parts
from haotuner.codegen.sibling_outputs import SiblingOutput
from haotuner.graph.extents import Extent, same
from haotuner.graph.graph import Graph


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
    there = all(not load.held and tuple(i for i in load.indices[:-1] if i in rows) == rows for load in loads)
    return result if selected and there else None


def _elements(graph: Graph, before: Collection[str]) -> Elements:
    first, *others = graph.outputs
    shape, accesses = graph.types[first].shape, Accesses(graph, {sibling: sibling for sibling in before})
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
