"""The elements that a group's loops compute: of its first output, whose loops they are, and of what it writes beside it.

An output may lie beside another one where it has the same points, or is a row of them: its extents are the first ones of the
loops. The loops inside of a row are then of fixed extents, so that no row is without a point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haotuner.generate.access import Accesses
from haotuner.generate.expressions import Expression, Variable, index
from haotuner.graph.extents import Extent, same
from haotuner.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Beside:
    """An output that is written in the first ``axes`` of the loops, at these indices."""

    tensor: str
    axes: int
    indices: tuple[Expression, ...]
    value: Expression


@dataclass(frozen=True, slots=True)
class Elements:
    """``value``: the first output's at its ``variables``, one for each loop; what is ``beside`` it may share its parts."""

    variables: tuple[Variable, ...]
    value: Expression
    beside: tuple[Beside, ...] = ()

    @property
    def values(self) -> tuple[Expression, ...]:
        """Of all outputs."""
        return (self.value, *(one.value for one in self.beside))


def elements_of(graph: Graph) -> Elements:
    """The elements of all outputs. ValueError for one that does not lie beside the first."""
    first, *others = graph.outputs
    shape, accesses = graph.types[first].shape, Accesses(graph)
    variables = tuple(accesses.variable("i") for _ in shape)
    value = accesses.computed(first, variables)
    found = []
    for one in others:
        lies = lies_beside(graph.types[one].shape, shape)
        if lies is None:
            raise ValueError(f"{one} {graph.types[one]} has other points than {first} {graph.types[first]}")
        indices = tuple(index(0) if place is None else variables[place] for place in lies)
        axes = max((place + 1 for place in lies if place is not None), default=0)
        found.append(Beside(one, axes, indices, accesses.computed(one, indices)))
    return Elements(variables, value, tuple(found))


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
