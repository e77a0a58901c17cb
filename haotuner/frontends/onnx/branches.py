"""ONNX's If: conditions on sizes, the side that is taken where sizes decide it, else both sides.

A condition that the asked ranges of sizes settle leaves one side, and the graph refuses requests of other sizes. Where
sizes or data decide at a request, what each side makes has a guard; behind both stands what is chosen. Where the sides make
tensors of different ranks or types, what follows them in their graph is read once for each side, up to its results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy

from haotuner.errors import UsageError
from haotuner.frontends.onnx.constant_folding import Before, ConstantFolding
from haotuner.frontends.onnx.lengths import new_dimension
from haotuner.frontends.onnx.proofs import TRIED, every_request, interval_of, of_spans
from haotuner.frontends.onnx.typed_numbers import exact
from haotuner.frontends.onnx.value_analysis import PASSED, number_held
from haotuner.graph.extents import SHOWN, Extent, canonical, dimensions, evaluate, is_zero, largest, same, smallest, text
from haotuner.graph.graph import NEVER, GraphBuilder, Node, Required
from haotuner.spec.shape import Span

if TYPE_CHECKING:
    from haotuner.frontends.onnx.read import Reader

MOST_RUNS = 4  # ranges of sizes that people read


@dataclass(frozen=True, slots=True)
class Condition:
    """``extent``: 1 where it holds and 0 where not; ``words``: the same for people."""

    extent: Extent
    words: str

    @property
    def summary(self) -> str:
        """``words``, or where they are long what sizes they come to, if one dimension decides; else they are cut."""
        if len(self.words) <= SHOWN:
            return self.words
        names = sorted(dimensions(self.extent))
        runs = _runs(self.extent, names[0]) if len(names) == 1 else []
        if 0 < len(runs) <= MOST_RUNS:
            return f"{names[0]} is {' or '.join(map(_run, runs))}"
        return f"{self.words[: SHOWN // 2]} … {self.words[-SHOWN // 4 :]} (of {', '.join(names)})"

    def __invert__(self) -> Condition:
        return Condition(canonical(1 - self.extent), f"not {self.words}")


def _runs(extent: Extent, name: str) -> list[tuple[int, int]]:
    """First and last sizes, from 1 to ``TRIED``, between which an extent of one dimension is not 0."""
    result: list[tuple[int, int]] = []
    for size in range(1, TRIED + 1):
        if evaluate(extent, {name: size}):
            result[-1:] = [(result[-1][0], size)] if result and result[-1][1] == size - 1 else [*result[-1:], (size, size)]
    return result


def _run(run: tuple[int, int]) -> str:
    first, last = run
    return f"{first} or more" if last == TRIED else str(first) if first == last else f"{first}..{last}"


def compared(sign: str, extent: Extent, other: Extent) -> Condition | None:
    """Two extents by ``==``, ``!=``, ``<``, ``<=``, ``>`` or ``>=``; None where they are not whole."""
    if sign == "!=":
        return _differ(extent, other)
    if not sympy.sympify(extent - other).is_integer:
        return None
    build = next(build for build, known in _COMPARED.values() if known == sign)
    return Condition(build(canonical(extent - other)), f"{text(extent)} {sign} {text(other)}")


def condition_of(g: ConstantFolding, tensor: str) -> Condition | None:
    """The condition that a tensor of one element holds; None where data decide it, or it has no such arithmetic."""
    known = g.known(tensor)
    if known is not None:
        return _is_set(np.asarray(known))
    node = next((node for node in reversed(g.nodes) if node.output == tensor), None)
    if node is None or math.prod(extent if isinstance(extent, int) else 2 for extent in g.types[tensor].shape) != 1:
        return None
    if node.primitive in PASSED:
        return condition_of(g, node.inputs[0]) if g.types[node.inputs[0]].dtype == "bool" else _of_number(g, node.inputs[0])
    return _mapped(g, node) if node.primitive == "map" else None


def _is_set(known: Any) -> Condition | None:
    if known.size != 1:
        return None
    value = exact(known.reshape(-1)[0])
    return Condition(int(value != 0), text(value)) if isinstance(value, int) else _differ(value, 0)


def _of_number(g: ConstantFolding, tensor: str) -> Condition | None:
    number = _number_of(g, tensor)
    return None if number is None else Condition(int(number != 0), "") if isinstance(number, int) else _differ(number, 0)


def _mapped(g: ConstantFolding, node: Node) -> Condition | None:
    function = node.attributes["function"]
    if function in _LOGIC:
        parts = [condition_of(g, tensor) for tensor in node.inputs]
        if any(part is None for part in parts):
            return None
        words = [f"({part.words})" for part in parts if part is not None]
        joined = f"not {words[0]}" if function == "not" else f" {function} ".join(words)
        return Condition(_LOGIC[function](*(part.extent for part in parts if part is not None)), joined)
    if function not in _COMPARED:
        return None
    first, other = (_number_of(g, tensor) for tensor in node.inputs)
    return None if first is None or other is None else compared(_COMPARED[function][1], first, other)


def _differ(extent: Extent, other: Extent) -> Condition | None:
    if not sympy.sympify(extent - other).is_integer:
        return None
    return Condition(canonical(1 - is_zero(canonical(extent - other))), f"{text(extent)} != {text(other)}")


def _number_of(g: ConstantFolding, tensor: str) -> Extent | None:
    return number_held(g, {node.output: node for node in g.nodes}, tensor)


def _above(gap: Extent) -> Extent:
    return smallest([1, largest([0, gap])])


_COMPARED: Mapping[str, tuple[Callable[[Extent], Extent], str]] = {
    "equal": (is_zero, "=="),
    "less": (lambda gap: _above(canonical(-gap)), "<"),
    "greater": (_above, ">"),
    "less_equal": (lambda gap: canonical(1 - _above(gap)), "<="),
    "greater_equal": (lambda gap: canonical(1 - _above(canonical(-gap))), ">="),
}
_LOGIC: Mapping[str, Callable[..., Extent]] = {
    "not": lambda a: canonical(1 - a),
    "and": lambda a, b: smallest([a, b]),
    "or": lambda a, b: largest([a, b]),
    "xor": lambda a, b: canonical(largest([a, b]) - smallest([a, b])),
}


def settled(condition: Condition, ranges: Mapping[str, Span]) -> int | None:
    """1 or 0 where all sizes of these ranges make the condition so; None where they differ, or nobody asked for sizes."""
    if isinstance(condition.extent, int):
        return condition.extent
    names = sorted(dimensions(condition.extent))
    if not all(name in ranges for name in names):
        return None
    requests = every_request(names, ranges)
    if requests is not None:
        result = {evaluate(condition.extent, request) for request in requests}
        return result.pop() if len(result) == 1 else None
    bounds = interval_of(condition.extent, of_spans(ranges))
    return int(bounds.low) if bounds is not None and bounds.low == bounds.high else None


MOST_SPLITS = 64  # places behind which the rest of a graph is read twice


@dataclass(frozen=True, slots=True)
class _Alone:
    """The side that can be read, and why the other cannot."""

    value: int
    why: UsageError


@dataclass(frozen=True, slots=True)
class Rest:
    """Nodes behind a node in its graph, and the tensors that they give."""

    nodes: Sequence[Any]
    outputs: Sequence[str]


def branched(
    reader: Reader,
    node: Any,
    inputs: Sequence[str | None],
    names: MutableMapping[str, str],
    rest: Rest,
    opset: int,
    depth: int,
) -> list[str] | None:
    """Results of an If; None: what follows it was read, too, and ``names`` has the results of its graph.

    UsageError where neither side can be read, or where data may take one that cannot be read at any sizes.
    """
    tensor = inputs[0] if inputs else None
    if tensor is None:
        raise UsageError("its condition is missing")
    sides = {
        int(attribute.name == "then_branch"): attribute.g
        for attribute in node.attribute
        if attribute.name in ("then_branch", "else_branch")
    }
    if len(sides) != 2:
        raise UsageError("a branch is missing")
    own = _Branch(reader, tensor, sides, names, rest, opset, depth, node.output)
    known = reader.g.numbers(tensor)
    if known is not None:
        return own.side(int(bool(np.asarray(known).reshape(-1)[0])))
    condition = own.condition
    value = own.known()
    if value is None and condition is not None:
        value = settled(condition, reader.ranges)
        if value is not None:
            own.require(value)
    return own.side(value) if value is not None else own.both()


@dataclass(slots=True)
class _Branch:
    reader: Reader
    tensor: str  # of the condition
    sides: Mapping[int, Any]
    names: MutableMapping[str, str]
    rest: Rest
    opset: int
    depth: int
    outputs: Sequence[str]
    condition: Condition | None = field(init=False)

    def __post_init__(self) -> None:
        self.condition = condition_of(self.g, self.tensor)

    @property
    def g(self) -> ConstantFolding:
        """The builder."""
        return self.reader.g

    @property
    def key(self) -> Any:
        """Key that is the same of two branches of one condition."""
        return self.tensor if self.condition is None else str(self.condition.extent)

    def known(self) -> int | None:
        """Value of the condition on this side of branches around this one, or None."""
        return next((value for name, value in self.g.guard if self.reader.branches.get(name) == self.key), None)

    def side(self, value: int) -> list[str]:
        """Results of one side."""
        inner, graph = dict(self.names), self.sides[value]
        self.reader.run(graph, inner, self.opset, self.depth + 1)
        return [inner[item.name] for item in graph.output]

    def require(self, value: int) -> None:
        """Have the graph serve requests of one side alone."""
        assert self.condition is not None
        condition = self.condition if value else ~self.condition
        if not isinstance(condition.extent, int):
            words = f"this pack serves requests where {condition.summary}; tune with --shapes that hold others"
            requirement = Required(condition.extent, words, self.g.guard)
            if not any(
                (r.extent, r.guard) == (requirement.extent, requirement.guard[: len(r.guard)]) for r in self.g.required
            ):
                self.g.required.append(requirement)

    def both(self) -> list[str] | None:
        """Results of both sides, chosen when a request runs; one side where sizes may not be others."""
        before = Before.of(self.g)
        flag, branch = self._decided()
        sides = self._tried(branch, lambda value: [self._stored(item) for item in self.side(value)])
        if isinstance(sides, _Alone):
            return self._alone(sides, before)
        if all(self._alike(*pair) for pair in zip(sides[1], sides[0], strict=True)):
            return [self._chosen(flag, branch, *pair) for pair in zip(sides[1], sides[0], strict=True)]
        before.restore(self.g)
        return self._split(before)

    def _split(self, before: Before) -> list[str] | None:
        self.reader.splits += 1
        if self.reader.splits > MOST_SPLITS:
            raise UsageError(f"more than {MOST_SPLITS} branches whose sides have other ranks; {self._advice()}")
        flag, branch = self._decided()
        names = [name for name in dict.fromkeys(self.rest.outputs) if name not in self.names]

        def whole(value: int) -> list[str]:
            inner = dict(self.names)
            inner |= {name: item for name, item in zip(self.outputs, self.side(value), strict=False) if name}
            self.reader.walk(self.rest.nodes, inner, self.rest.outputs, self.opset, self.depth + 1)
            return [self._stored(inner[item]) for item in names]

        sides = self._tried(branch, whole)
        if isinstance(sides, _Alone):
            return self._alone(sides, before)
        for name, side, other in zip(names, sides[1], sides[0], strict=True):
            if not self._alike(side, other):
                if side in self.g.sequences or other in self.g.sequences:
                    raise UsageError(f"which side is taken decides how many tensors {name} has; {self._advice()}")
                kinds = f"{self.g.types[side]} or {self.g.types[other]}"
                raise UsageError(f"which side is taken decides the rank or type of {name}: {kinds}; {self._advice()}")
            self.names[name] = self._chosen(flag, branch, side, other)
        return None

    def _advice(self) -> str:
        if self.condition is None:
            return "data decide it; export the model for one side"
        dims = ", ".join(sorted(dimensions(self.condition.extent)))
        return f"say with --shapes sizes of {dims} of which all make it so or none: {self.condition.summary}"

    def _decided(self) -> tuple[str, str]:
        """The tensor that says which side is taken, and the branch's name; one for each condition."""
        for node in self.g.nodes:
            own = node.primitive == "decided" and self.reader.branches.get(node.attributes["branch"]) == self.key
            if own and self.g.seen(node.output):
                return node.output, node.attributes["branch"]
        taken = {node.attributes["branch"] for node in self.g.nodes if node.primitive == "decided"}
        branch = str(new_dimension(self.g, "branch", taken))
        self.reader.branches[branch] = self.key
        if self.condition is None:
            return GraphBuilder.add(self.g, "decided", self.g._nodes_of(self.tensor), branch=branch), branch
        return GraphBuilder.add(self.g, "decided", branch=branch, extent=self.condition.extent), branch

    def _tried(self, branch: str, read: Callable[[int], list[str]]) -> dict[int, list[str]] | _Alone:
        """Results of both sides by value, or the one that can be read.

        UsageError where neither can, or where data may take one that cannot be read at other sizes, either.
        """
        result: dict[int, list[str]] = {}
        wrong: dict[int, UsageError] = {}
        for value in (1, 0):
            before = Before.of(self.g)
            try:
                with guarded(self.g, branch, value):
                    result[value] = read(value)
            except UsageError as error:
                wrong[value] = error
                before.restore(self.g)
        if not wrong:
            return result
        value, why = next(iter(wrong.items()))
        if len(wrong) == 2:
            raise why
        if self.condition is None:
            self._of_other_sizes(branch, value, read)
        return _Alone(1 - value, why)

    def _of_other_sizes(self, branch: str, value: int, read: Callable[[int], list[str]]) -> None:
        """UsageError unless a side can be read where nobody asks for sizes: it lacks none of what has a rule."""
        before, ranges = Before.of(self.g), self.reader.ranges
        self.reader.ranges = {}
        try:
            with guarded(self.g, branch, value):
                read(value)
        finally:
            self.reader.ranges = ranges
            before.restore(self.g)

    def _alone(self, only: _Alone, before: Before) -> list[str]:
        """Results of the one side that can be read; requests of the other are refused once their condition is known."""
        before.restore(self.g)
        if self.condition is not None:
            self.require(only.value)
            return self.side(only.value)
        _, branch = self._decided()
        words = f"its data take the side of an If that cannot be had at the sizes of --shapes: {only.why}"
        self.g.required.append(Required(NEVER, words, (*self.g.guard, (branch, 1 - only.value))))
        return self.side(only.value)

    def _stored(self, tensor: str) -> str:
        """The tensor, of memory that segments hand on; of a sequence each."""
        if tensor in self.g.sequences:
            elements = self.g.sequences[tensor]
            return tensor if elements is None else self.g.sequence([self._stored(element) for element in elements])
        plain = self.g._nodes_of(tensor)
        return self.g.plain("reshape", plain, shape=self.g.types[plain].shape) if plain in self.g.constants else plain

    def _alike(self, name: str, other: str) -> bool:
        if name in self.g.sequences or other in self.g.sequences:
            first, second = self.g.sequences.get(name), self.g.sequences.get(other)
            if first is None or second is None:
                return name == other
            return len(first) == len(second) and all(map(self._alike, first, second))
        kinds = self.g.types[name], self.g.types[other]
        return kinds[0].dtype == kinds[1].dtype and kinds[0].rank == kinds[1].rank

    def _chosen(self, flag: str, branch: str, name: str, other: str) -> str:
        if name == other:
            return name
        first, second = self.g.sequences.get(name), self.g.sequences.get(other)
        if first is not None and second is not None:
            return self.g.sequence([self._chosen(flag, branch, *both) for both in zip(first, second, strict=True)])
        shape: list[Extent] = []
        choices: list[tuple[int, Extent]] = []
        for axis, pair in enumerate(zip(self.g.types[name].shape, self.g.types[other].shape, strict=True)):
            alike = same(*pair)
            shape.append(pair[0] if alike else new_dimension(self.g, "either", {str(extent) for _, extent in choices}))
            choices += [] if alike else [(axis, shape[-1])]
        return GraphBuilder.add(self.g, "chosen", flag, name, other, branch=branch, shape=tuple(shape), told=tuple(choices))


@contextmanager
def guarded(g: ConstantFolding, branch: str, value: int) -> Iterator[None]:
    """Context manager: what is added inside lies on one side of a branch; nothing outside may take it for its own."""
    outer, written, lengths = g.guard, dict(g.written), dict(g.lengths)
    g.guard = (*outer, (branch, value))
    try:
        yield
    finally:
        g.guard, g.written, g.lengths = outer, written, lengths
