"""Evaluation of expressions on a machine: index analysis, maxima that may drop NaN, stores.

Maxima whose NaN the outputs have anyway, so that folding them need not keep it: one instruction a vector, not three.

The case is a softmax: where a row of x has a NaN, so has its sum of exp(x - max x), whatever max x is. Every output that
reads the maximum reads that sum, too. These are conditions on the graph; none names an operator.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from haotuner.codegen.builder import Builder, Value
from haotuner.codegen.expressions import (
    Apply,
    Expression,
    Fold,
    Load,
    Number,
    Size,
    Variable,
    children,
    free_variables,
    has_folds,
    index,
    parts,
    slope,
)
from haotuner.codegen.schedule import CachedRow, Plan
from haotuner.graph.extents import Extent
from haotuner.graph.graph import Graph, Node
from haotuner.ops.formula import TRANSCENDENTAL


def step_along(e: Expression, along: frozenset[str]) -> int | None:
    """Step of an index from lane to lane; None where it does not grow evenly."""
    own = [name for name in along if name in free_variables(e)]
    return 0 if not own else slope(e, own[0])


def extents_of(fold: Fold) -> tuple[Extent, ...]:
    """Extents of the axes that are folded."""
    return tuple(extent for _, extent in fold.axes)


def is_ready(keep: CachedRow, inside: set[str]) -> bool:
    """True if only the keep's own axes are missing."""
    own = {variable.name for variable, _ in keep.axes}
    return not (free_variables(keep.value) - own) & inside


def missing_folds(
    e: Expression, known: Container[Fold], first: Mapping[Fold, Expression], seen: set[int], result: list[Fold]
) -> None:
    """Add the folds in an expression that have no value yet, inner ones first.

    ``first``: what is folded in place of a fold's own value; ``seen``: expressions, by identity, that were looked through.
    """
    if not has_folds(e) or id(e) in seen or isinstance(e, Fold) and e in known:
        return
    seen.add(id(e))
    for child in (first.get(e, e.value),) if isinstance(e, Fold) else children(e):
        missing_folds(child, known, first, seen, result)
    if isinstance(e, Fold):
        result.append(e)


def offsets(count: int, lanes: int, pitch: int) -> list[int]:
    """Offsets of the vectors of an iteration: ``pitch`` of them at neighbours, lanes so far apart, then the next ones."""
    return [index // pitch * lanes * pitch + index % pitch for index in range(count)]


def maskable(
    value: Expression,
    indices: Sequence[Expression],
    along: frozenset[str],
    *,
    unmasked: Container[str] = (),
    padded: bool = False,
) -> bool:
    """True if all that a vector touches is one row of neighbours, so that masked instructions can leave lanes out.

    ``unmasked``: tensors whose loads need no mask; ``padded``: whether elements of padded tensors are loaded with a mask.
    """
    clamped = {id(item.arguments[1]) for item in parts(value) if isinstance(item, Apply) and _padded(item, along)}
    for part in parts(value):
        if isinstance(part, Load) and free_variables(part) & along and part.tensor not in unmasked:
            steps = [step_along(index, along) for index in part.indices]
            if (steps[-1] != 1 or any(steps[:-1])) and not (padded and id(part) in clamped):
                return False
        if isinstance(part, Fold):
            axes = {variable.name for variable, _ in part.axes}
            assert not axes & along, "a fold's own axes are loops of their own"
    return not indices or [index for index in indices if isinstance(index, Variable) and index.name in along] == [
        indices[-1]
    ]


# NaN where an argument is.
STRICT = (TRANSCENDENTAL - {"pow"}) | {"add", "sub", "mul", "div", "reciprocal", "neg", "abs", "sqrt", "rsqrt"}


def nan_propagating_maxima(graph: Graph) -> frozenset[str]:
    """Tensors that are such maxima."""
    return frozenset(node.output for node in graph.nodes if _folds(node, ("max",)) and _propagates_nan(graph, node))


def _propagates_nan(graph: Graph, most: Node) -> bool:
    """True if all that reads a maximum stays in its row, and outputs among it are NaN where the row has one."""
    axes = most.attributes["axes"]
    reading, spoiled = {most.output}, {most.inputs[0]}  # by the maximum; by a NaN of the same element
    rows = set[str]()  # by a NaN anywhere in the row
    for node in graph.nodes:
        inputs_, strict = set(node.inputs), node.primitive == "map" and node.attributes["function"] in STRICT
        if reading & inputs_:
            if node.primitive != "map" and not _folds(node, ("sum", "mean", "max", "min"), axes):
                return False  # elsewhere rows could meet
            reading.add(node.output)
        if strict and spoiled & inputs_:
            spoiled.add(node.output)
        if rows & inputs_ and strict or spoiled & inputs_ and _folds(node, ("sum", "mean"), axes):
            rows.add(node.output)
    ranks = {graph.types[row].rank for row in (*reading, *rows)}
    return reading & set(graph.outputs) <= rows and len(ranks) == 1


def _folds(node: Node, how: Sequence[str], axes: Sequence[int] | None = None) -> bool:
    """True if a node folds so, over these axes if given, and keeps them as ones."""
    if node.primitive != "reduce" or node.attributes["how"] not in how or not node.attributes.get("keepdims", False):
        return False
    return axes is None or tuple(node.attributes["axes"]) == tuple(axes)


_NOT_YET = object()


@dataclass(slots=True)
class Frame:
    """Context of an expression: values of loop variables and folds, and which variables run along the lanes."""

    variables: dict[str, Value] = field(default_factory=dict)
    folds: dict[Fold, Value] = field(default_factory=dict)
    lanes: int = 1
    along: frozenset[str] = frozenset()
    mask: Value = None
    pitch: int = 1  # of what runs along the lanes, from lane to lane
    known: dict[int, Value] = field(default_factory=dict)  # by identity of the expression

    def inner(self, **variables: Value) -> Frame:
        """Copy with more loop variables."""
        own = {**self.variables, **variables}
        return Frame(own, dict(self.folds), self.lanes, self.along, self.mask, self.pitch, dict(self.known))


class Values:
    """Says expressions to a machine."""

    def __init__(self, machine: Builder, graph: Graph | None = None) -> None:
        self.machine = machine
        self._noticed = nan_propagating_maxima(graph) if graph is not None else frozenset()

    def how(self, fold: Fold) -> str:
        """Operation that joins partial results of a fold."""
        return "any_max" if fold.tensor in self._noticed else fold.how

    def scalar(self, e: Expression, frame: Frame) -> Value:
        """An index at the first lane."""
        if not free_variables(e) & frame.along:
            return self.evaluate(e, frame)
        return self.evaluate(e, Frame(frame.variables, frame.folds, pitch=frame.pitch))

    def evaluate(self, e: Expression, frame: Frame) -> Value:
        """The value of an expression, computed once a frame."""
        result = frame.known.get(id(e), _NOT_YET)
        if result is _NOT_YET:
            result = frame.known[id(e)] = self._lowered(e, frame)
        return result

    def _lowered(self, e: Expression, frame: Frame) -> Value:
        machine = self.machine
        if isinstance(e, Number):
            return machine.number(e.value, e.dtype)
        if isinstance(e, Size):
            return machine.size(e.extent)
        if isinstance(e, Variable):
            value = frame.variables[e.name]
            return machine.ramp(value, frame.lanes, frame.pitch) if e.name in frame.along else value
        if isinstance(e, Fold):
            return frame.folds[e]
        if isinstance(e, Load):
            steps = [step_along(index, frame.along) for index in e.indices]
            conditions = [machine.size(condition) for condition in e.nonempty]
            if None in steps:
                vectors = [self.evaluate(index, frame) for index in e.indices]
                return machine.load(e.tensor, vectors, None, frame.lanes, frame.mask, conditions)
            known = [step * frame.pitch for step in steps if step is not None]
            first = [self.scalar(index, frame) for index in e.indices]
            return machine.load(e.tensor, first, known, frame.lanes, frame.mask, conditions)
        padded = _padded(e, frame.along) if machine.predicates else None
        if padded is not None:
            return self._masked(*padded, frame)
        arguments = [self.evaluate(argument, frame) for argument in e.arguments]
        return machine.apply(e.function, arguments, e.dtype, frame.lanes if free_variables(e) & frame.along else 1)

    def _masked(self, inside: Expression, load: Load, fill: Number, frame: Frame) -> Value:
        """Neighbours of a padded tensor by a masked load: lanes outside of it are not touched, and none is gathered."""
        machine, lanes = self.machine, frame.lanes
        mask = self.evaluate(inside, frame)
        combined = mask if frame.mask is None else machine.apply("and", [mask, frame.mask], "bool", lanes)
        indices = [self.scalar(index, frame) for index in load.indices]
        steps = [step_along(index, frame.along) or 0 for index in load.indices]
        conditions = [machine.size(condition) for condition in load.nonempty]
        value = machine.load(load.tensor, indices, [step * frame.pitch for step in steps], lanes, combined, conditions)
        return machine.apply("select", [mask, value, machine.number(fill.value, fill.dtype)], load.dtype, lanes)


def _padded(e: Expression, along: frozenset[str]) -> tuple[Expression, Load, Number] | None:
    """Of an element of a padded tensor: the condition that it is inside, its load without clamps, and the fill outside.

    None where elements are no neighbours along the lanes, or none of them can be outside.
    """
    if not isinstance(e, Apply) or e.function != "select" or e.dtype == "bool":
        return None
    inside, load, fill = e.arguments
    if not isinstance(load, Load) or not isinstance(fill, Number) or not load.indices or not free_variables(load) & along:
        return None
    *outer, last = load.indices
    if any(free_variables(index) & along for index in outer) or not isinstance(last, Apply) or last.function != "max":
        return None
    least = last.arguments[0]
    if not isinstance(least, Apply) or least.function != "min" or step_along(least.arguments[0], along) != 1:
        return None
    moved = least.arguments[0]
    comparisons = [part for part in parts(inside) if isinstance(part, Apply) and part.function == "less_equal"]
    if not {(index(0), moved), least.arguments} <= {part.arguments for part in comparisons}:
        return None
    return inside, Load(load.tensor, (*outer, moved), load.dtype, load.nonempty), fill


@dataclass(frozen=True, slots=True)
class Store:
    """An expression that is folded, or else stored: in ``tensor``, which is the program's output where it has no name."""

    axes: tuple[tuple[Variable, Extent], ...]
    value: Expression
    fold: Fold | None = None
    indices: tuple[Expression, ...] = ()
    tensor: str = ""


def stores_of(plan: Plan) -> tuple[list[Store], list[Store]]:
    """Those at every point of a program's loops, its own output first, and those of outer loops alone."""
    points, rows = [Store(plan.loops, plan.value, indices=plan.indices)], list[Store]()
    for sibling in plan.beside:
        whole = sibling.axes == len(plan.indices)
        result = Store(
            plan.loops if whole else plan.loops[: sibling.axes],
            sibling.value,
            indices=sibling.indices,
            tensor=sibling.tensor,
        )
        (points if whole else rows).append(result)
    return points, rows
