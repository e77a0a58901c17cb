"""The space of schedules of a graph: its sketches, and the annotation of each: holes with a few choices, by node.

A point has one choice for every hole. Holes that mean nothing in a sketch hold their first choice, so equal programs are
equal points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np

from haotuner.codegen.cache_read import COLUMNS, CacheRead, floats
from haotuner.codegen.cache_read import MOST_FLOATS as MOST_COPIED
from haotuner.codegen.cache_read import ROWS as ROW_BIT
from haotuner.codegen.schedule import FOLDS, MOST_FLOATS, Schedule, planned, shareable, stageable, tileable, turnable
from haotuner.codegen.sketch import Sketch, lane_axes, sketches
from haotuner.codegen.template import FOLD_UNROLL, Template
from haotuner.errors import UsageError
from haotuner.graph.graph import Graph

Point: TypeAlias = tuple[int, ...]  # the place of each hole's choice
VECTORS = (1, 2, 4, 8)  # an iteration: an addition takes 3 to 4 cycles and two start in each, so 8 keep every pipe busy
ROWS = (1, 2, 4)
TILE_ROWS = (1, 2, 4, 6, 8)  # of blocks in registers, where operands are used again
SLICES = 2  # parts of a folded axis for each worker: a free one helps a late one (runtime/native/kinds/sliced.c)
BLOCKS = (1, 4, 16)  # of rows, and of vectors, in a tile of the cache
SQUARES = (0, 1, 4, 16)  # that are turned in a tile, along either axis; 0: none is turned
TERMS = (0, 64, 256)  # that come at a time; 0: all
TILES = ("row blocks", "vector blocks", "terms")  # holes, in the order of ``Schedule.tiles``
CACHE_READ = "cache read"  # hole of the operands that tiles read copies of
ALONE = ("sketch", "axis", "unroll", "parts")  # holes of rows that workers share in stages
STRUCTURE = "structure"  # the node of holes that are the whole program's


@dataclass(frozen=True, slots=True)
class Hole:
    """One decision: of which node it is, and its choices."""

    name: str
    node: str
    choices: tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """All schedules of a graph for vectors of so many lanes, and so many workers.

    ``scratch``: whether sums may wait in memory of the thread's own; ``parts``: of a fold or of rows that are shared, where
    workers do not say;
    ``turns``: whether squares of elements may be turned in registers; ``copies``: whether tiles may read copies of operands;
    ``template``: values that a user allows.
    """

    graph: Graph
    lanes: int
    workers: int = field(default=1, kw_only=True)
    scratch: bool = field(default=True, kw_only=True)
    parts: tuple[int, ...] = field(default=(), kw_only=True)
    turns: bool = field(default=True, kw_only=True)
    copies: bool = field(default=True, kw_only=True)
    template: Template | None = field(default=None, kw_only=True)

    @cached_property
    def sketches(self) -> tuple[Sketch, ...]:
        """The structures."""
        return sketches(self.graph)

    @cached_property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """Of each sketch, the axes along which lanes may run."""
        return tuple(lane_axes(self.graph, sketch) for sketch in self.sketches)

    @cached_property
    def folds(self) -> tuple[str, ...]:
        """The folds that have vectors of their own, in the graph's order."""
        own = (node.output for node in self.graph.nodes if node.primitive in ("reduce", "arg_reduce"))
        return tuple(item for item in own if item not in self.graph.outputs)

    @cached_property
    def holes(self) -> tuple[Hole, ...]:
        """In the order in which decisions are made: structure first, then node by node."""
        out = self.graph.outputs[0]
        rank = self.graph.types[out].rank
        return (
            Hole("sketch", STRUCTURE, tuple(range(len(self.sketches)))),
            Hole("axis", STRUCTURE, tuple(range(max(len(axes) for axes in self.axes)))),
            *(Hole("unroll", fold, VECTORS) for fold in self.folds),
            Hole("unroll", out, VECTORS),
            Hole("rows", out, (TILE_ROWS if self._tiled_axes and self.copies else ROWS) if rank > 1 else (1,)),
            Hole("masked", out, (1, 0)),
            *([Hole("parts", out, self.parts or (1, SLICES * self.workers))] if self._shared_axes else []),
            *(self._tile_holes(out) if self._tiled_axes else self._square_holes(out) if self._turned_axes else []),
        )

    def _tile_holes(self, out: str) -> list[Hole]:
        terms = TERMS if self.scratch else TERMS[:1]
        tiles = [Hole("row blocks", out, BLOCKS), Hole("vector blocks", out, BLOCKS[:2]), Hole("terms", out, terms)]
        copies = sorted({bits for axis_copies in self._copied.values() for bits in axis_copies})
        return [*tiles, *([Hole(CACHE_READ, out, (0, *copies))] if copies else [])]

    def _square_holes(self, out: str) -> list[Hole]:
        return [Hole("row blocks", out, SQUARES), Hole("vector blocks", out, SQUARES[1:])]

    @cached_property
    def _turned_axes(self) -> frozenset[int]:
        """Axes of lanes whose programs may turn squares."""
        every = {axis for axes in self.axes for axis in axes} if self.turns and self.lanes > 1 else set()
        return frozenset(axis for axis in every if turnable(self.graph, axis))

    @cached_property
    def _tiled_axes(self) -> frozenset[int]:
        """Axes of lanes whose programs may be tiled in two levels."""
        tiled = [axes for axes, sketch in zip(self.axes, self.sketches, strict=True) if sketch.tiled]
        return frozenset(axis for axis in set().union(*tiled) if tileable(self.graph, axis))

    @cached_property
    def _copied(self) -> dict[int, dict[int, tuple[CacheRead, ...]]]:
        """Of axes whose tiles may read copies: the copies, by the bits of the operands."""
        result: dict[int, dict[int, tuple[CacheRead, ...]]] = {}
        for axis in self._tiled_axes if self.copies else ():
            item = Schedule(lane_axis=axis, lanes=1, unroll=1, tiles=(1, 1, 0))
            for bits in (COLUMNS, ROW_BIT, COLUMNS | ROW_BIT):
                try:
                    result.setdefault(axis, {})[bits] = planned(self.graph, replace(item, cache_read=bits)).reads
                except UsageError:
                    continue
        return result

    @cached_property
    def _shared_axes(self) -> frozenset[int]:
        """Axes of lanes whose programs may have their fold shared by workers."""
        every = {axis for axes in self.axes for axis in axes} if self.workers > 1 or self.parts else set()
        return frozenset(axis for axis in every if shareable(self.graph, axis) or stageable(self.graph, axis))

    @cached_property
    def _staged_axes(self) -> frozenset[int]:
        """Axes of lanes whose programs have their rows shared in stages, which are all that such a program has."""
        return frozenset(axis for axis in self._shared_axes if not self.parts and not shareable(self.graph, axis))

    def _knob(self, hole: Hole) -> str:
        return FOLD_UNROLL if hole.node in self.folds else hole.name.replace(" ", "_")

    @cached_property
    def knobs(self) -> dict[str, tuple[int, ...]]:
        """Choices of every knob by the name that templates have for it."""
        return {self._knob(hole): hole.choices for hole in self.holes}

    @cached_property
    def allowed(self) -> tuple[tuple[int, ...], ...]:
        """Of each hole, the places of the choices that the template allows."""
        if self.template is None:
            return tuple(tuple(range(len(hole.choices))) for hole in self.holes)
        allows = self.template.allows
        return tuple(
            tuple(at for at, choice in enumerate(hole.choices) if allows(self._knob(hole), choice)) for hole in self.holes
        )

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every point that has a program, each once."""
        every = product(*self.allowed)
        return tuple(dict.fromkeys(point_ for point in every if (point_ := self.canonical(point)) is not None))

    def canonical(self, point: Sequence[int]) -> Point | None:
        """The point of the same program; None where there is none, or none that the template allows."""
        result = self._canonical(point)
        if result is None or self.template is None:
            return result
        barred = [index for index, at in enumerate(result) if at not in self.allowed[index]]
        return result if all(self._is_idle(result, index) for index in barred) else None

    def _is_idle(self, point: Point, index: int) -> bool:
        """True if a hole means nothing in a point's program."""
        every = range(len(self.holes[index].choices))
        return all(self._canonical((*point[:index], at, *point[index + 1 :])) == point for at in every)

    def _canonical(self, point: Sequence[int]) -> Point | None:
        if point[1] >= len(self.axes[point[0]]):
            return None
        axis, values = self.axes[point[0]][point[1]], list(point)
        if axis >= 0 and not self.sketches[point[0]].nodes("factor"):  # each lane folds its own: no vectors of a fold
            for index, hole in enumerate(self.holes):
                values[index] = 0 if hole.node in self.folds else values[index]
        if axis < 0:  # the output comes element by element
            for position, hole in enumerate(self.holes):
                values[position] = 0 if hole.node == self.graph.outputs[0] and hole.name == "rows" else values[position]
        if axis not in self._shared_axes:
            values = [0 if hole.name == "parts" else at for hole, at in zip(self.holes, values, strict=True)]
        elif axis in self._staged_axes and self._value(values, "parts") > 1:  # stages decide on vectors alone
            if self.sketches[point[0]].cached:
                return None
            own = [hole.name in ALONE and hole.node not in self.folds for hole in self.holes]
            return tuple(at if counts else 0 for counts, at in zip(own, values, strict=True))
        if axis in self._turned_axes:
            return self._squared(values)
        if axis not in self._tiled_axes or not self.sketches[point[0]].tiled:
            values = [0 if hole.name in (*TILES, CACHE_READ) else at for hole, at in zip(self.holes, values, strict=True)]
        elif self._sums(values) > MOST_FLOATS or not self._copies_fit(axis, values):
            return None
        return tuple(values)

    def _copies_fit(self, axis: int, point: Sequence[int]) -> bool:
        """True if a program has the copies that a point asks for, and memory for them."""
        value = {hole.name: hole.choices[at] for hole, at in zip(self.holes, point, strict=True)}  # the output's come last
        bits = value.get(CACHE_READ, 0)
        if not bits:
            return True
        reads = self._copied.get(axis, {}).get(bits, ())
        tile = {COLUMNS: value["vector blocks"] * value["unroll"] * self.lanes, ROW_BIT: value["row blocks"] * value["rows"]}
        return bool(reads) and floats(reads, [tile[bit] for bit in (COLUMNS, ROW_BIT) if bits & bit]) <= MOST_COPIED

    def _value(self, point: Sequence[int], name: str) -> int:
        """Value of a hole of the output."""
        return next(
            hole.choices[at] for hole, at in zip(reversed(self.holes), reversed(point), strict=True) if hole.name == name
        )

    def _squared(self, point: Sequence[int]) -> Point:
        """Of a program that may turn squares: either squares, or what an iteration of whole rows takes."""
        blocks = next(at for hole, at in zip(self.holes, point, strict=True) if hole.name == "row blocks")
        without = ("unroll", "rows", "masked") if blocks else ("vector blocks",)
        return tuple(0 if hole.name in without else at for hole, at in zip(self.holes, point, strict=True))

    def _sums(self, point: Sequence[int]) -> int:
        """Sums of a tile that wait in memory for further terms."""
        value = {hole.name: hole.choices[at] for hole, at in zip(self.holes, point, strict=True)}  # the output's come last
        sums = prod(value[name] for name in ("row blocks", "vector blocks", "rows", "unroll")) * self.lanes
        return sums if value["terms"] else 0

    def schedule(self, point: Point) -> Schedule:
        """The schedule of a point."""
        value = {(hole.name, hole.node): hole.choices[at] for hole, at in zip(self.holes, point, strict=True)}
        out = self.graph.outputs[0]
        tiles = tuple(value.get((name, out), first) for name, first in zip(TILES, (1, 1, 0), strict=True))
        copies = value.get((CACHE_READ, out), 0)
        return Schedule(
            lane_axis=self.axes[point[0]][point[1]],
            lanes=self.lanes,
            unroll=value["unroll", out],
            folds=tuple(value.get(("unroll", node.output), 1) for node in self.graph.nodes if node.primitive in FOLDS),
            rows=value["rows", out],
            masked=bool(value["masked", out]),
            cached=self.sketches[point[0]].cached,
            parts=value.get(("parts", out), 1),
            tiles=() if not tiles[0] or (tiles == (1, 1, 0) and not self._turned_axes and not copies) else tiles,
            cache_read=copies,
        )

    def nodes(self) -> tuple[str, ...]:
        """Units that crossover exchanges: the structure, and each node that has decisions."""
        return tuple(dict.fromkeys(hole.node for hole in self.holes))

    def drawn(self, rng: np.random.Generator) -> Point:
        """A point by chance: every hole alike."""
        while True:
            point = self.canonical([places[int(rng.integers(len(places)))] for places in self.allowed])
            if point is not None:
                return point

    def neighbours(self, point: Point) -> Iterator[Point]:
        """Points that differ in one decision, by one step of those that are sizes."""
        for index, hole in enumerate(self.holes):
            places = self.allowed[index]
            sizes = hole.name in ("unroll", "rows", *TILES) and point[index] in places
            for step, at in enumerate(places):
                if at != point[index] and (not sizes or abs(step - places.index(point[index])) == 1):
                    point_ = self.canonical((*point[:index], at, *point[index + 1 :]))
                    if point_ is not None and point_ != point:
                        yield point_
