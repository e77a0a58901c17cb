"""Counts of operations in a group's plain loops, by the loops around them: the features of its expected time.

A C compiler makes vectors of a loop whose loads lie side by side or are the same for all its steps. A loop that divides
indices, keeps them inside of a tensor, or holds another loop computes an element at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from haotuner.codegen.expressions import (
    INDEX,
    Apply,
    Expression,
    Fold,
    Load,
    Number,
    Variable,
    dtype_of,
    free_variables,
    parts,
    slope,
)
from haotuner.codegen.loops.c_sums import MOST_UNROLLED, needs_unrolling, summed_by_function
from haotuner.codegen.loops.concat_loops import interleaved_parts, pieces
from haotuner.codegen.loops.loop_nest import elements_of, rows_before
from haotuner.codegen.loops.loop_partition import interior_of
from haotuner.codegen.loops.recompute import row_buffer_of
from haotuner.codegen.loops.strided_reads import strided_folds, strided_loads, wide
from haotuner.codegen.mixed_radix import merged
from haotuner.graph.extents import Extent
from haotuner.graph.graph import Graph
from haotuner.graph.types import numpy_dtype
from haotuner.ops.formula import TRANSCENDENTAL

QUOTIENTS = frozenset({"div", "rsqrt", "sqrt", "reciprocal", "fmod", "mod"})
ACROSS = 1_000  # depth of the loop over an output's last axis where it is inside of a reduction's
LoopNames: TypeAlias = tuple[str, ...]  # sorted; what is counted happens once for each value of these variables

# What is counted. Arithmetic in vectors, and an element at a time.
SIMPLE, QUOTIENT, FUNCTION = "simple", "quotient", "function"
SCALAR = {SIMPLE: "simple scalar", QUOTIENT: "quotient scalar", FUNCTION: "function scalar"}
INDEXED, DIVIDED, DIVIDED_BY_SIZE = "indexed", "divided", "divided by a size"  # of indices
TURNED, ROW, REDUCTION = "turned", "row", "reduction"  # loads in squares; starts of an innermost loop, of a reduction
STRIDED, STRIDED_FAR, BYTES = "strided", "strided far", "bytes"  # at a request; of bytes those of every tensor once


@dataclass(frozen=True, slots=True)
class LoopCounts:
    """``counts``: numbers by kind and loops; ``loads``: by tensor the loops, with the bytes of an element.

    ``strided``: loads that read another cache line in each step: the loops, and those after which a line is read again.
    ``extents``: of every variable.
    """

    counts: Mapping[tuple[str, LoopNames], float]
    loads: Mapping[str, Sequence[tuple[LoopNames, int]]]
    strided: Sequence[tuple[LoopNames, LoopNames]]
    extents: Mapping[str, Extent]


def loop_counts(graph: Graph, *, reuses_row: bool) -> LoopCounts:
    """Counts of a group. ``reuses_row``: whether terms of sums may wait in the output's row."""
    return _GroupCounter(graph, reuses_row=reuses_row).counted()


@dataclass(slots=True)
class _Nest:
    """Loops around some expressions: variables by depth. ``scalar``: those whose loops become no vectors."""

    depth: dict[str, int] = field(default_factory=dict)
    scalar: set[str] = field(default_factory=set)

    def innermost(self, free: Iterable[str]) -> str:
        """The innermost of some variables; empty where none has a loop."""
        return max((name for name in free if name in self.depth), key=self.depth.__getitem__, default="")

    def around(self, free: frozenset[str]) -> frozenset[str]:
        """The loops around an expression of these variables: it is computed in the outermost that knows them."""
        inner = self.innermost(free)
        if not inner:
            return free
        return free.union(name for name, depth in self.depth.items() if depth <= self.depth[inner])


class _GroupCounter:
    """Counter of one group. ``writes_out`` is false where a compiler writes no reduction out."""

    def __init__(self, graph: Graph, *, reuses_row: bool) -> None:
        self.graph, self.reuses_row = graph, reuses_row
        self.counts: dict[tuple[str, LoopNames], float] = {}
        self.loads: dict[str, dict[tuple[LoopNames, int], None]] = {}
        self.strided: list[tuple[LoopNames, LoopNames]] = []
        self.extents: dict[str, Extent] = {}
        self.fold_nests: dict[int, _Nest] = {}
        self.writes_out = True
        self._indexed = set[Expression]()
        self._digits: dict[int, list[tuple[Expression, Extent]]] = {}

    def counted(self) -> LoopCounts:
        graph, single = self.graph, len(self.graph.outputs) == 1
        elements = (rows_before(graph) if self.reuses_row and not single else None) or elements_of(graph)
        variables, values = elements.variables, elements.values
        shape = graph.types[graph.outputs[0]].shape
        self.extents = {variable.name: extent for variable, extent in zip(variables, shape, strict=True)}
        row = row_buffer_of(graph, variables, elements.value) if self.reuses_row and single else None
        values = values if row is None else (row.value,)
        plain = single and row is None and bool(variables)
        for value, share in (self._pieces(values[0], variables[-1], shape[-1]) if plain else []) or [(None, 1.0)]:
            self._count(values if value is None else (value,), variables, share)
        self._add(ROW, self._looped(variables[:-1]), 1.0)
        loads = {tensor: tuple(tensor_loads) for tensor, tensor_loads in self.loads.items()}
        return LoopCounts(self.counts, loads, self.strided, self.extents)

    def _looped(self, variables: Iterable[Variable]) -> list[str]:
        return [variable.name for variable in variables if self.extents[variable.name] != 1]

    def _pieces(self, value: Expression, last: Variable, extent: Extent) -> list[tuple[Expression | None, float]]:
        """Values of the parts that a row is written in, with their shares; none where it is written at once."""
        if not any(isinstance(part, Apply) and part.function == "select" for part in parts(value)):
            return []
        if isinstance(extent, int) and (row := pieces(value, last, extent)):
            return [(piece.value, (piece.end - piece.first) / extent) for piece in row]
        middle = interior_of(value, last, extent)
        self.writes_out = middle is None
        return [] if middle is None else [(middle.value, 1.0)]

    def _count(self, values: Sequence[Expression], variables: Sequence[Variable], share: float) -> None:
        """Count the parts of values, each object once; ``share`` of the last variable's steps."""
        all_parts = list({id(part): part for value in values for part in parts(value)}.values())
        folds = [part for part in all_parts if isinstance(part, Fold)]
        for fold in folds:
            self.extents |= {variable.name: extent for variable, extent in fold.axes}
        last = variables[-1].name if variables else ""
        single = len(values) == 1 and bool(variables)
        across = strided_folds(values[0], variables) if single and folds and wide(self.extents[last]) else []
        turned = strided_loads(self.graph, variables, values[0]) if single and not folds else None
        squares = set[int]() if turned is None else {id(load.load) for load in turned.loads}
        outer = _Nest({name: depth for depth, name in enumerate(self._looped(variables))})
        nests = self._nests(folds, outer, last, {id(fold) for fold in across})
        for part in all_parts:
            nest = nests.get(id(part), outer)
            if isinstance(part, Load) and id(part) not in squares and self._uneven(part, inner := nest.innermost(part.free)):
                nest.scalar.add(inner)
        if single and interleaved_parts(values[0], variables[-1]) is not None:
            outer.scalar.discard(last)  # its strands are written side by side
        for part in all_parts:
            nest = nests.get(id(part), outer)
            loops = nest.around(free_variables(part))
            self._part(part, nest, loops, share if last in loops else 1.0, turned=id(part) in squares)

    def _nests(self, folds: Sequence[Fold], outer: _Nest, last: str, across: set[int]) -> dict[int, _Nest]:
        """By expression the loops around it, for those inside of reductions: those of the innermost one."""
        result: dict[int, _Nest] = {}
        for fold in reversed(folds):  # inner ones come first
            around = result.get(id(fold), outer)
            at = around.depth.get(around.innermost(fold.free), -1)
            inner = _Nest({name: depth for name, depth in around.depth.items() if depth <= at})
            if self.writes_out and _is_unrolled(fold) and not summed_by_function(fold):
                inner = around  # the loop around it has all terms in each step
            else:
                if id(fold) in across:
                    inner.depth.pop(last, None)
                elif at >= 0:
                    around.scalar.add(around.innermost(fold.free))
                inner.depth |= {name: at + 1 + depth for depth, name in enumerate(self._looped(v for v, _ in fold.axes))}
                if id(fold) in across:
                    inner.depth[last] = ACROSS
            self.fold_nests[id(fold)] = inner
            result |= dict.fromkeys(map(id, parts(fold.value)), inner)
        return result

    def _part(self, part: Expression, nest: _Nest, loops: frozenset[str], share: float, *, turned: bool) -> None:
        if isinstance(part, Load):
            self._load(part, nest, loops, share, turned=turned)
        elif isinstance(part, Fold):
            fold_nest, axes = self.fold_nests[id(part)], {variable.name for variable, _ in part.axes}
            terms = fold_nest.around(part.free | axes)
            self._add(SCALAR[SIMPLE] if fold_nest.innermost(terms) in fold_nest.scalar else SIMPLE, terms, share)
            if fold_nest is not nest:
                self._add(REDUCTION, terms - {fold_nest.innermost(terms)}, share)
        elif isinstance(part, Apply) and dtype_of(part) != INDEX:
            self._index(nest, (argument for argument in part.arguments if dtype_of(argument) == INDEX))
            kind = FUNCTION if part.function in TRANSCENDENTAL else QUOTIENT if part.function in QUOTIENTS else SIMPLE
            self._add(SCALAR[kind] if nest.innermost(part.free) in nest.scalar else kind, loops, share)

    def _load(self, load: Load, nest: _Nest, loops: frozenset[str], share: float, *, turned: bool) -> None:
        size = numpy_dtype(load.dtype).itemsize
        self.loads.setdefault(load.tensor, {})[tuple(sorted(load.free)), size] = None
        if turned:
            self._add(TURNED, loops, share)
            return
        digits, inner = [digit for digit, _ in self._digits_of(load)], nest.innermost(load.free)
        self._index(nest, digits)
        if inner and any(inner in free_variables(digit) for digit in digits[:-1]):
            along = nest.depth.get(nest.innermost(free_variables(digits[-1])), -1)
            revisit_loops = (name for name in loops if nest.depth.get(name, -1) > along)
            self.strided.append((tuple(sorted(loops)), tuple(sorted(revisit_loops))))

    def _digits_of(self, load: Load) -> list[tuple[Expression, Extent]]:
        """A load's indices with their extents, those of one element left out."""
        if id(load) not in self._digits:
            digits = merged(list(zip(load.indices, self.graph.types[load.tensor].shape, strict=True)))
            self._digits[id(load)] = [(digit, extent) for digit, extent in digits if extent != 1]
        return self._digits[id(load)]

    def _uneven(self, load: Load, inner: str) -> bool:
        """True if the indices of a load do not grow evenly in its innermost loop."""
        return bool(inner) and any(slope(digit, inner) is None for digit, _ in self._digits_of(load))

    def _index(self, nest: _Nest, indices: Iterable[Expression]) -> None:
        """Count arithmetic of indices that do not grow evenly, each expression once."""
        for index in indices:
            if all(slope(index, name) is not None for name in free_variables(index)):
                continue
            for part in parts(index):
                if isinstance(part, Apply) and part.free and part not in self._indexed:
                    self._indexed.add(part)
                    divides = part.function in ("floordiv", "mod")
                    number_divisor = divides and isinstance(part.arguments[1], Number)
                    kind = DIVIDED if number_divisor else DIVIDED_BY_SIZE if divides else INDEXED
                    self._add(kind, nest.around(part.free), 1.0)

    def _add(self, kind: str, loops: Iterable[str], share: float) -> None:
        key = kind, tuple(sorted(loops))
        self.counts[key] = self.counts.get(key, 0.0) + share


def _is_unrolled(fold: Fold) -> bool:
    """True if a compiler writes a reduction's terms out."""
    extents = [extent for _, extent in fold.axes if isinstance(extent, int)]
    return needs_unrolling(fold) or (len(extents) == len(fold.axes) and prod(extents) <= MOST_UNROLLED)
