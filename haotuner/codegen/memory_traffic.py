"""Bytes that a program moves between a memory level and what lies beyond it, from the tally of its loops.

A level keeps what one iteration of a loop touches if that fits: then what the whole loop touches is moved once. Of a loop
whose iterations do not fit, each part is looked at by itself. That is the reuse that a schedule decides on; what a cache
keeps beyond it is chance. An element that was stored before it is loaded is not brought; what is stored is written back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from haotuner.codegen.op_counter import DEEPEST, Access, Loop, Places, touched

EVERY = 64  # iterations of the loops around that are looked at one by one
MOST_ALIKE = 60  # sets of places whose union is counted exactly


class Whole:
    """All of so many places: of an axis whose index is not known, or has too many values to look at."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count


Set: TypeAlias = NDArray[np.int64] | Whole


@dataclass(frozen=True, slots=True)
class Level:
    """A memory level: what it holds, and how many elements come together."""

    bytes: int
    line: int = 1


class MemoryTraffic:
    """Counts what one program moves, at any number of levels: sets of places are made once.

    Up to ``every`` iterations of loops are looked at one by one: that is exact; of more the middle one stands for all, which
    is as exact where all are alike, as they are but for the edges of pads.
    """

    def __init__(self, top: Loop, every: int = EVERY) -> None:
        self.top, self._every = top, every
        self._sets: dict[Any, Set] = {}
        self._alike: dict[bytes, Set] = {}
        self._wholes: dict[int, Set] = {}
        self._joins: dict[tuple[int, ...], Set] = {}

    def bytes(self, level: Level) -> int:
        """Bytes brought into a level and written back from it."""
        return self._of_loop(self.top, (), level)

    def least(self, line: int = 1) -> int:
        """Bytes that the program touches: the least that any order of its work moves."""
        return self._distinct(list(_accesses(self.top)), (), line)

    def _of_loop(self, loop: Loop, counts: tuple[int, ...], level: Level) -> int:
        accesses = list(_accesses(loop))
        inside = (*counts, loop.count) if loop.depth >= 0 else counts
        if max(self._distinct(accesses, at, level.line) for at, _ in self._iterations(inside)) <= level.bytes:
            return sum(times * self._distinct(accesses, at, level.line) for at, times in self._iterations(counts))
        total = 0
        for part in loop.body:
            if isinstance(part, Loop):
                total += self._of_loop(part, inside, level)
            elif isinstance(part, Access):
                alone = part.lanes == 1 or not part.even
                total += touched(part, inside) * part.bytes * (level.line if alone else 1)
        return total

    def _iterations(self, counts: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
        """Iterations of nested loops with how many each stands for."""
        total = int(np.prod(counts, dtype=np.int64))
        if total > self._every:
            yield tuple(count // 2 for count in counts), total
            return
        for at in product(*(range(count) for count in counts)):
            yield at, 1

    def _distinct(self, accesses: Sequence[Access], at: tuple[int, ...], line: int) -> int:
        """Bytes that accesses touch in one iteration of the loops around: each place brought once, written back once."""
        by: dict[str, list[Access]] = {}
        for access in accesses:
            by.setdefault(access.tensor, []).append(access)
        total = 0
        for own in by.values():
            stored = self._union([a for a in own if a.store], at, line)
            if own[0].store:
                brought = self._union(own, at, line) - stored if any(not a.store for a in own) else 0
            else:
                brought = self._union([a for a in own if not a.store], at, line)
            total += (stored + brought) * own[0].bytes * line
        return total

    def _union(self, accesses: Sequence[Access], at: tuple[int, ...], line: int) -> int:
        """Places (lines of them) that some accesses of one tensor touch together."""
        if not accesses:
            return 0
        groups = _groups(accesses, len(at))
        rows = [tuple(self._set(access, at, group, line) for group in groups) for access in accesses]
        return self._counted(list(dict.fromkeys(_Row(row) for row in rows)))

    def _set(self, access: Access, at: tuple[int, ...], group: tuple[int, ...], line: int) -> Set:
        """The places of one group of axes, as numbers; an axis that hangs on data counts whole."""
        indices, last = access.indices, len(access.indices) - 1
        masked = access.mask is not None and _masked(access) in group
        known = [item for item in (*(indices[axis] for axis in group), access.mask if masked else None) if item is not None]
        own = tuple(value if any(item.shape[dim] > 1 for item in known) else -1 for dim, value in enumerate(at))
        key = (id(access), group, own, line)
        if key not in self._sets:
            if any(indices[axis] is None for axis in group):
                counts = [-(-access.extents[axis] // (line if axis == last else 1)) for axis in group]
                return self._sets.setdefault(key, self._whole(int(np.prod(counts, dtype=np.int64))))
            code = np.zeros((1,) * DEEPEST, np.int64)
            for item, axis in zip(known, group, strict=False):
                item = _at(item, at)
                code = code * (1 << 31) + (item // line if axis == last and line > 1 else item)
            if masked and access.mask is not None:
                mask = _at(access.mask, at)
                shape = np.broadcast_shapes(code.shape, mask.shape)
                code = np.broadcast_to(code, shape)[np.broadcast_to(mask, shape)]
            self._sets[key] = self._interned(_ascending(code))
        return self._sets[key]

    def _whole(self, count: int) -> Set:
        return self._wholes.setdefault(count, Whole(count))

    def _interned(self, result: NDArray[np.int64]) -> Set:
        """One object for equal sets."""
        return self._alike.setdefault(result.tobytes(), result)

    def _joined(self, sets: Sequence[Set]) -> Set:
        whole = [row for row in sets if isinstance(row, Whole)]
        if whole:
            return max(whole, key=len)
        key = tuple(sorted({id(row) for row in sets}))
        if key not in self._joins:
            self._joins[key] = self._interned(
                _ascending(np.concatenate([row for row in sets if not isinstance(row, Whole)]))
            )
        return self._joins[key]

    def _counted(self, distinct: Sequence[_Row]) -> int:
        """Size of a union of products of sets."""
        rows = [row.sets for row in distinct if all(len(item) for item in row.sets)]
        for group in range(len(rows[0]) if rows else 0):  # what is not known is taken for all of it, in every row
            whole = [row[group] for row in rows if isinstance(row[group], Whole)]
            if whole:
                rows = [(*row[:group], max(whole, key=len), *row[group + 1 :]) for row in rows]
        for group in range(len(rows[0]) if rows else 0):  # those that differ in one group alone are one product
            merged: dict[tuple[int, ...], list[tuple[Set, ...]]] = {}
            for row in rows:
                merged.setdefault(tuple(id(item) for at, item in enumerate(row) if at != group), []).append(row)
            rows = [
                (*alike[0][:group], self._joined([row[group] for row in alike]), *alike[0][group + 1 :])
                for alike in merged.values()
            ]
        if len(rows) > MOST_ALIKE or len(rows) < 2 or not rows[0]:
            return sum(int(np.prod([len(item) for item in row], dtype=np.int64)) for row in rows)
        state = {(1 << len(rows)) - 1: 1}  # by which rows a point may still belong to
        for group in range(len(rows[0])):
            classes = _classes([row[group] for row in rows])
            following: dict[int, int] = {}
            for name, count in state.items():
                for other, more in classes.items():
                    if name & other:
                        following[name & other] = following.get(name & other, 0) + count * more
            state = following
        return sum(state.values())


class _Row:
    """A product of interned sets; equal where they are the same objects."""

    __slots__ = ("sets",)

    def __init__(self, sets: tuple[Set, ...]) -> None:
        self.sets = sets

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.sets)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Row) and all(first is two for first, two in zip(self.sets, other.sets, strict=True))


def _accesses(loop: Loop) -> Iterator[Access]:
    for part in loop.body:
        if isinstance(part, Loop):
            yield from _accesses(part)
        elif isinstance(part, Access):
            yield part


def _at(places: Places, at: tuple[int, ...]) -> Places:
    for dim, value in enumerate(at):
        if places.shape[dim] > 1:
            places = places.take([value], axis=dim)
    return places


def _masked(access: Access) -> int:
    """The axis along which a mask leaves lanes out: one whose index grows with them, else the last."""
    along = (axis for axis, index in enumerate(access.indices) if index is not None and index.shape[-1] > 1)
    return next(along, len(access.indices) - 1)


def _groups(accesses: Sequence[Access], fixed: int) -> list[tuple[int, ...]]:
    """Axes of a tensor that vary together in some access, in dimensions from ``fixed`` on; groups are independent."""
    rank = len(accesses[0].indices)
    group = list(range(rank))
    for access in accesses:
        known = [
            (axis, {dim for dim in range(fixed, DEEPEST) if index.shape[dim] > 1})
            for axis, index in enumerate(access.indices)
            if index is not None
        ]
        for index, (axis, dims) in enumerate(known):
            for other, others in known[:index]:
                if dims & others and group[axis] != group[other]:
                    old, new = group[axis], group[other]
                    group = [new if item == old else item for item in group]
    return [tuple(axis for axis in range(rank) if group[axis] == name) for name in dict.fromkeys(group)]


def _ascending(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each value once, in order. Most come in order, in one run or a few: numpy's own hashes every value."""
    flat = places.ravel()
    if (flat[1:] < flat[:-1]).any():
        flat = np.sort(flat, kind="stable")  # takes runs as they are
    return flat[np.append(True, flat[1:] != flat[:-1])] if len(flat) else flat


def _classes(sets: Sequence[Set]) -> dict[int, int]:
    """Number of values by the exact sets that they lie in, as bits."""
    if isinstance(sets[0], Whole):  # then all are
        return {(1 << len(sets)) - 1: len(sets[0])}
    arrays = [item for item in sets if not isinstance(item, Whole)]
    values = _ascending(np.concatenate(arrays))
    member = np.zeros(len(values), np.int64)
    for index, array in enumerate(arrays):
        member |= np.isin(values, array, assume_unique=True).astype(np.int64) << index
    result, counts = np.unique(member, return_counts=True)
    return dict(zip(result.tolist(), counts.tolist(), strict=True))
