"""Sizes of carried values that change from turn to turn, as of a key-value cache to which each turn adds a row.

A turn knows such a size by a dimension of its own. Where every turn adds the same to it, the size behind the last turn
follows from how many there were; otherwise it is a dimension that the turns tell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from haotuner.errors import UsageError
from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.lengths import new_dimension
from haotuner.graph.extents import Extent, canonical, dimensions, same, text

Sizes = dict[tuple[int, int], Extent]  # of a carried value and an axis: its size as a turn has it
NEW = -1  # the size that a turn has no dimension for yet


@dataclass(frozen=True, slots=True)
class Growth:
    """``steps``: what each turn adds to a size, by the carried value and the axis; None: not always the same.

    ``firsts``: that size before the first turn; ``changing``: as a turn has it.
    """

    steps: Mapping[tuple[int, int], Extent | None]
    firsts: Mapping[tuple[int, int], Extent]
    changing: Sizes

    def told(self) -> tuple[tuple[str, Extent, Extent], ...]:
        """Of sizes that grow by the same each turn: the dimension of a turn, the first size, the step."""
        known = ((key, step) for key, step in self.steps.items() if step is not None)
        return tuple((str(self.changing[key]), self.firsts[key], step) for key, step in known)

    def last_shape(
        self, g: ConstantFolding, index: int, first: Sequence[Extent], turns: Extent
    ) -> tuple[tuple[Extent, ...], tuple[tuple[int, Extent], ...]]:
        """Of a carried value behind the last turn: its shape, and the axes whose sizes only the turns tell."""
        shape, values = list(first), list[tuple[int, Extent]]()
        for (own, axis), step in self.steps.items():
            if own == index and step is not None:
                shape[axis] = canonical(self.firsts[own, axis] + step * turns)
            elif own == index:
                shape[axis] = new_dimension(g, "grown", {str(item) for _, item in values})
                values.append((axis, shape[axis]))
        return tuple(shape), tuple(values)


def settles(
    g: ConstantFolding, firsts: Sequence[str], known: Sizes, moving: Sequence[tuple[int, str, str]], outside: Collection[str]
) -> bool:
    """True if a turn makes a carried value of a shape that depends on none of its own, unlike the first value's."""
    for position, before, after in moving:
        shape, now = g.types[before].shape, g.types[after].shape
        if len(shape) != len(now):
            return True
        for axis, extent in enumerate(now):
            own = known.get((position, axis))
            first = g.types[firsts[position]].shape[axis]
            if own is not None and own != NEW and dimensions(extent) <= set(outside) and not same(extent, first):
                return True
    return False


def changing_sizes(
    firsts: Sequence[str],
    known: Sizes,
    moving: Sequence[tuple[int, str, str]],
    message: Callable[[int], str],
    g: ConstantFolding,
) -> Sizes:
    """``known`` and the sizes that a turn was found to change; those that grow alike have one dimension.

    ``moving``: places of carried values, with their names before and behind a turn; ``message``: what the file calls one.
    UsageError where the type or the number of axes changes.
    """
    result = dict(known)
    for position, before, after in moving:
        kind, now = g.types[before], g.types[after]
        if kind.dtype != now.dtype or kind.rank != now.rank:
            raise UsageError(
                f"{message(position)!r} is {g.types[firsts[position]]} before the first turn and {now} behind it; "
                "values that a loop carries keep their type and their number of axes: reshape the first one before the loop"
            )
        for axis, pair in enumerate(zip(kind.shape, now.shape, strict=True)):
            if (position, axis) not in result and not same(*pair):
                result[position, axis] = NEW
    if result == known:
        alike: dict[tuple[str, str], Extent] = {}
        behind = {position: after for position, _, after in moving}
        for (index, axis), extent in result.items():
            first, step = g.types[firsts[index]].shape[axis], canonical(g.types[behind[index]].shape[axis] - extent)
            if str(extent) not in dimensions(step):
                result[index, axis] = alike.setdefault((text(first), text(step)), extent)
    return result


def named_anew(g: ConstantFolding, sizes: Sizes) -> Sizes:
    """Copy of the sizes with a dimension for each that has none."""
    result: Sizes = {}
    for key, extent in sizes.items():
        fresh = isinstance(extent, int)
        result[key] = (
            new_dimension(g, "carried", {str(extent) for extent in (*sizes.values(), *result.values())}) if fresh else extent
        )
    return result


def growth_of(
    firsts: Sequence[str], changing: Sizes, behind: Mapping[int, str], outside: Collection[str], g: ConstantFolding
) -> Growth:
    """Growth of sizes. ``behind``: carried values after a turn; ``outside``: dimensions known before the loop."""
    steps: dict[tuple[int, int], Extent | None] = {}
    before: dict[tuple[int, int], Extent] = {}
    for (position, axis), extent in changing.items():
        step = canonical(g.types[behind[position]].shape[axis] - extent)
        steps[position, axis] = step if dimensions(step) <= set(outside) else None
        before[position, axis] = g.types[firsts[position]].shape[axis]
    return Growth(steps, before, changing)
