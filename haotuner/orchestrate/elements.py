"""The elements that a group's loops compute: of its first output, whose loops they are, and of what it writes beside it.

An output may lie beside another one where it has the same points, or is a row of them: its extents are the first ones of the
loops. The loops inside of a row are then of fixed extents, so that no row is without a point.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from haotuner.generate.access import Accesses
from haotuner.generate.expressions import Expression, Fold, Load, Variable, index, parts
from haotuner.generate.sibling_outputs import SiblingOutput
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
        return (self.value, *(one.value for one in (*self.beside, *self.before)))


def elements_of(graph: Graph) -> Elements:
    """The elements of all outputs. ValueError for one that does not lie beside the first."""
    return _elements(graph, ())


def rows_before(graph: Graph) -> Elements | None:
    """The same where sums over a row read what is written of it, once computed; None where none does.

    A sum is then of the row in hand: all loops but the last are in the place of what it reads.
    """
    plain = elements_of(graph)
    rows = plain.variables[:-1]
    full = [one.tensor for one in plain.beside
            if one.axes == len(plain.variables) and graph.types[one.tensor].dtype == "fp32"]  # fmt: skip
    folds = [part for value in _elements(graph, full).values for part in parts(value) if isinstance(part, Fold)]
    read = {part.tensor for fold in folds for part in parts(fold.value) if isinstance(part, Load)}
    kept = [one for one in full if one in read]
    found = _elements(graph, kept)
    loads = [part for value in found.values for part in parts(value) if isinstance(part, Load) and part.tensor in kept]
    there = all(not one.held and tuple(i for i in one.indices[:-1] if i in rows) == rows for one in loads)
    return found if kept and there else None


def _elements(graph: Graph, before: Collection[str]) -> Elements:
    first, *others = graph.outputs
    shape, accesses = graph.types[first].shape, Accesses(graph, {one: one for one in before})
    variables = tuple(accesses.variable("i") for _ in shape)
    value = accesses.computed(first, variables)
    found, order = list[SiblingOutput](), {node.output: place for place, node in enumerate(graph.nodes)}
    for one in others:
        lies = lies_beside(graph.types[one].shape, shape)
        if lies is None:
            raise ValueError(f"{one} {graph.types[one]} has other points than {first} {graph.types[first]}")
        indices = tuple(index(0) if place is None else variables[place] for place in lies)
        axes = max((place + 1 for place in lies if place is not None), default=0)
        found.append(SiblingOutput(one, axes, indices, accesses.computed(one, indices)))
    rows = sorted((one for one in found if one.tensor in before), key=lambda one: order[one.tensor])
    return Elements(variables, value, tuple(one for one in found if one.tensor not in before), tuple(rows))


def lies_beside(shape: Sequence[Extent], loops: Sequence[Extent]) -> list[int | None] | None:
    """For each axis of an output the loop that it is, None where it has one point; None: it does not lie beside."""
    places: list[int | None] = []
    left = [place for place, extent in enumerate(loops) if extent != 1]
    for extent in shape:
        if extent == 1:
            places.append(None)
        elif not left or not same(extent, loops[left[0]]):
            return None
        else:
            places.append(left.pop(0))
    fixed = all(isinstance(loops[place], int) and int(loops[place]) > 0 for place in left)
    return places if fixed and any(place is not None for place in places) else None
