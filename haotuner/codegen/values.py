"""Evaluation of expressions on a machine, which every emitter of programs shares."""

from __future__ import annotations

from dataclasses import dataclass, field

from haotuner.codegen.builder import Builder, Value
from haotuner.codegen.expressions import Expression, Fold, Load, Number, Size, Variable, free_variables
from haotuner.codegen.index_analysis import step_along
from haotuner.codegen.nan_propagation import nan_propagating_maxima
from haotuner.graph.graph import Graph

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
            result = frame.known[id(e)] = self._made(e, frame)
        return result

    def _made(self, e: Expression, frame: Frame) -> Value:
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
            conditions = [machine.size(condition) for condition in e.held]
            if None in steps:
                vectors = [self.evaluate(index, frame) for index in e.indices]
                return machine.load(e.tensor, vectors, None, frame.lanes, frame.mask, conditions)
            known = [step * frame.pitch for step in steps if step is not None]
            first = [self.scalar(index, frame) for index in e.indices]
            return machine.load(e.tensor, first, known, frame.lanes, frame.mask, conditions)
        arguments = [self.evaluate(argument, frame) for argument in e.arguments]
        return machine.apply(e.function, arguments, e.dtype, frame.lanes if free_variables(e) & frame.along else 1)
