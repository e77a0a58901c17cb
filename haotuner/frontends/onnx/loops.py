"""Loops: a body read once, whose nodes become the body of the graph's loop or are written out turn by turn.

What of a body depends on no turn joins the graph around it, so it is computed once. A carried value that no turn changes is
none. Loops of few turns, known now, are written out turn by turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.onnx.constant_folding import Before, ConstantFolding
from haotuner.frontends.onnx.layout import cut, joined, reshaped
from haotuner.frontends.onnx.lengths import new_dimension
from haotuner.frontends.onnx.loop_analysis import (
    Growth,
    HoistedSequences,
    always,
    changing_sizes,
    counted,
    counters,
    growth_of,
    hoist_loop_invariants,
    named_anew,
    settles,
)
from haotuner.frontends.onnx.node_context import NodeContext
from haotuner.graph.control_flow import HOST, made_dimensions
from haotuner.graph.extents import Extent, dimensions, largest, smallest
from haotuner.graph.graph import Body, GraphBuilder, Node, Required, sizes_of
from haotuner.graph.typed_extents import never_negative

if TYPE_CHECKING:
    from haotuner.frontends.onnx.read import Reader

if TYPE_CHECKING:
    pass

UNROLLED_NODES = 512  # that they may come to


def known_trip_count(t: LoopReader) -> int | None:
    """Turns at most, where that is a number known now."""
    result = t.g.numbers(t.limit) if t.limit is not None else None
    most = [] if result is None else [int(np.asarray(result).reshape(-1)[0])]
    most += [extent for extent in (t.g.types[row].shape[0] for row in t.rows) if isinstance(extent, int)]
    return min(most) if most and len(most) == len(t.rows) + (t.limit is not None) else None


def unrolled(t: LoopReader, count: int) -> list[str] | None:
    """Turn after turn; None where a condition depends on data, or where that would be too much."""
    g, before = t.g, Before.of(t.g)
    states, stacks = list(t.states), list[list[str]]()
    c = NodeContext(g, "Loop", (), {}, t.opset, 1)
    for turn in range(count):
        rows = [reshaped(c, cut(c, row, 0, turn, turn + 1), g.types[row].shape[1:]) for row in t.rows]
        goes_on, states, made = t.parted(t.turn(g.constant(turn, "int64"), states, rows))
        for index, item in enumerate(made):
            stacks += [[]] if turn == 0 else []
            stacks[index].append(reshaped(c, item, (1, *g.types[item].shape)))
        known = True if goes_on is None else g.numbers(goes_on)
        if known is None or (len(g.nodes) - before.nodes) * (count if turn == 0 else 1) > UNROLLED_NODES:
            before.restore(g)
            return None
        if not np.asarray(known).reshape(-1)[0]:
            break
    return [*states, *(g.add("concat", *stack, axis=0) for stack in stacks)]


def runs_once(t: LoopReader) -> bool:
    """True if the first turn runs at any request."""
    limit = None if t.limit is None else t.g.numbers(t.limit)
    counts = [t.g.types[row].shape[0] for row in t.rows]
    known = t.limit is None or (limit is not None and int(np.asarray(limit).reshape(-1)[0]) > 0)
    return known and t.goes_on is None and all(isinstance(count, int) and count > 0 for count in counts)


UNROLLED = 16  # turns that are written out; more make a model that takes long to compile for a gain of a microsecond a turn
UNROLLED_INSIDE = 64  # turns of loops in loops that are written out, or reading them would never end
MOST_TURNS = 1 << 24  # of any request: seconds, if a turn takes a microsecond


@dataclass(slots=True)
class LoopReader:
    """A Loop or Scan: ``places`` of its body's inputs and outputs."""

    reader: Reader
    graph: Any  # the body
    names: Mapping[str, str]
    opset: int
    depth: int
    states: list[str]
    rows: list[str]  # along their first axis
    counts: bool  # Loop: the body's first inputs are the turn and the condition, its first output is the condition
    limit: str | None = None
    goes_on: str | None = None
    fixed: dict[int, str] = field(default_factory=dict)  # states that no turn changes
    first: int = 0  # turns that were written out before
    changing: dict[tuple[int, int], Extent] = field(default_factory=dict)  # of a state and its axis: the size in a turn

    @property
    def g(self) -> ConstantFolding:
        """The builder of the graph."""
        return self.reader.g

    def shape_of(self, index: int) -> list[Extent]:
        """Of a state as a turn has it."""
        shape = self.g.types[self.states[index]].shape
        return [self.changing.get((index, axis), extent) for axis, extent in enumerate(shape)]

    def said(self, index: int) -> str:
        """Name that the file has for a state behind a turn."""
        return str(self.graph.output[index + self.counts].name)

    def turn(self, turn: str, states: Sequence[str], rows: Sequence[str]) -> list[str]:
        """The body's outputs, one turn added to the graph."""
        inner, inputs = dict(self.names), [*states, *rows]
        if self.counts:
            turn = self.g.map("add", turn, self.first) if self.first else turn
            inputs = [turn, self.g.constant(True, "bool"), *inputs]
        if len(inputs) != len(self.graph.input):
            raise UsageError(f"its body takes {len(self.graph.input)} inputs, and {len(inputs)} are given")
        inner |= zip((item.name for item in self.graph.input), inputs, strict=True)
        self.reader.run(self.graph, inner, self.opset, self.depth + 1)
        missing = [item.name for item in self.graph.output if item.name not in inner]
        if missing:
            raise UsageError(f"its body's output {missing[0]!r} is made by no node")
        return [inner[item.name] for item in self.graph.output]

    def parted(self, result: Sequence[str]) -> tuple[str | None, list[str], list[str]]:
        """Of a turn's outputs: the condition, the states, what becomes rows."""
        goes_on, rest = (result[0], list(result[1:])) if self.counts else (None, list(result))
        if len(rest) < len(self.states):
            raise UsageError(f"its body gives {len(rest)} of {len(self.states)} carried values")
        return goes_on, rest[: len(self.states)], rest[len(self.states) :]


def loop_results(
    reader: Reader, node: Any, inputs: Sequence[str | None], names: Mapping[str, str], opset: int, depth: int
) -> list[str]:
    """Results of a Loop. UsageError for carried values that change their rank or type."""
    g = reader.g
    states = [operand for operand in inputs[2:] if operand is not None]
    if len(states) != len(inputs[2:]):
        raise UsageError("a first value that is carried is left out")
    limit, requested = ([*inputs, None, None])[:2]
    if requested is not None and always(g, requested):
        requested = None
    return loop_outputs(LoopReader(reader, body_of_loop(node), names, opset, depth, states, [], True, limit, requested))


def body_of_loop(node: Any) -> Any:
    """The graph of a turn."""
    result = next((item.g for item in node.attribute if item.name == "body"), None)
    if result is None:
        raise UsageError("attribute body is missing")
    return result


def loop_outputs(t: LoopReader) -> list[str]:
    """Final states, then stacks of rows. UsageError as of ``loop_results``."""
    count, lists = known_trip_count(t), [state for state in t.states if state in t.g.sequences]
    most = UNROLLED_INSIDE if lists else UNROLLED
    if (
        count is not None
        and (lists or count > 0)
        and count <= most
        and t.goes_on is None
        and t.reader.turns * count <= UNROLLED_INSIDE
    ):
        t.reader.turns *= count
        try:
            result = unrolled(t, count)
        finally:
            t.reader.turns //= count
        if result is not None:
            return result
    if lists:
        raise UsageError(
            f"it carries a sequence, whose length must be known when the file is read: at most {UNROLLED_INSIDE} turns of "
            f"{UNROLLED_NODES} nodes in all, of a number that the file gives; export the model with a tensor that grows"
        )
    return _looped(t)


def _variable(g: ConstantFolding, stem: str, shape: Sequence[Extent], dtype: str) -> str:
    """A tensor that a turn is given."""
    result = GraphBuilder.add(g, "loop_result", name=stem, place=0, shape=tuple(shape), dtype=dtype)
    g.nodes.pop()
    return result


def _looped(t: LoopReader) -> list[str]:
    """The loop as one; read again until no carried value is left that no turn changes."""
    g = t.g
    while True:
        before = Before.of(g)
        turn = _variable(g, "turn", (), "int64")
        rows = [_variable(g, "row", g.types[row].shape[1:], g.types[row].dtype) for row in t.rows]
        states = [
            t.fixed.get(index) or _variable(g, "carried", t.shape_of(index), g.types[state].dtype)
            for index, state in enumerate(t.states)
        ]
        goes_on, after, made = t.parted(t.turn(turn, states, rows))
        same_ones = {index: t.states[index] for index, item in enumerate(after) if item in (states[index], t.states[index])}
        moving = [index for index in range(len(states)) if index not in t.fixed]
        outside = set().union(
            *(dimensions(extent) for kind in before.known_values["types"].values() for extent in kind.shape)
        )
        ends = [(position, states[position], after[position]) for position in moving]
        if not t.first and settles(g, t.states, t.changing, ends, outside) and runs_once(t):
            before.restore(g)
            return _behind_first(t)
        changing = changing_sizes(t.states, t.changing, ends, t.said, g)
        if same_ones.keys() <= t.fixed.keys() and changing == t.changing:
            break
        t.fixed |= same_ones
        before.restore(g)
        t.changing = named_anew(g, changing)
    pairs = [(states[position], after[position]) for position in moving]
    firsts = [t.states[position] for position in moving]
    description = _turns(t, goes_on, pairs, firsts)
    asks = None if goes_on is None or always(g, goes_on) else goes_on
    if description is not None:
        every, sizes = (turn, *counters(g, pairs, firsts)), set(map(str, t.changing.values()))
        sequences = HoistedSequences(g, before.nodes, description, every, dict(zip(rows, t.rows, strict=True)), sizes)
        selected = [*after, *made, *([asks] if asks else [])]
        for stack, row in sequences.rows((turn, *(item for item, _ in pairs), *rows), selected):
            t.rows.append(stack)
            rows.append(row)
    growth = growth_of(t.states, t.changing, dict(enumerate(after)), outside, g)
    loop = _Loop(g, before.nodes, turn, pairs, firsts, rows, made, asks, growth)
    return loop.results(t, description, moving)


def _behind_first(t: LoopReader) -> list[str]:
    """The first turn written out, then the loop of the others, whose carried values are as that turn made them."""
    g, c = t.g, NodeContext(t.g, "Loop", (), {}, t.opset, 1)
    rows = [reshaped(c, cut(c, row, 0, 0, 1), g.types[row].shape[1:]) for row in t.rows]
    goes_on, states, made = t.parted(t.turn(g.constant(0, "int64"), t.states, rows))
    rest = replace(
        t,
        states=states,
        rows=[cut(c, row, 0, 1, g.types[row].shape[0]) for row in t.rows],
        limit=None if t.limit is None else g.map("sub", t.limit, 1),
        goes_on=None if goes_on is None or always(g, goes_on) else goes_on,
        first=1,
        fixed={},
        changing={},
    )
    result = loop_outputs(rest)
    firsts = [reshaped(c, item, (1, *g.types[item].shape)) for item in made]
    stacks = [joined(c, list(both), 0) for both in zip(firsts, result[len(states) :], strict=True)]
    return [*result[: len(states)], *stacks]


def _same_rows(g: ConstantFolding, body: Body) -> None:
    """UsageError for rows whose sizes each turn tells anew."""
    own = set().union(*(made_dimensions(node.primitive, node.attributes) for node in body.graph.nodes))
    own |= {str(extent) for _, _, extent in body.changing}
    for item in body.made:
        if own & set().union(*map(dimensions, g.types[item].shape)):
            raise UsageError(
                f"a turn makes {item} {g.types[item]}, of a size that its data tell, or the turns before it; rows of one "
                "result are alike: have the model carry what grows, and give it behind the last turn"
            )


def _turns(t: LoopReader, goes_on: str | None, pairs: Sequence[tuple[str, str]], firsts: Sequence[str]) -> Extent | None:
    """Number of turns, whatever the data are; None: they tell."""
    g, most = t.g, [t.g.types[row].shape[0] for row in t.rows]
    if t.limit is not None and g.known(t.limit) is not None:
        most.append(_turns_at_most(g, t.limit))
    elif t.limit is not None:
        return None
    if goes_on is not None and not always(g, goes_on):
        by_count = counted(g, goes_on, t.goes_on, pairs, firsts)
        if by_count is None:
            return None
        most.append(by_count)
    elif t.goes_on is not None:
        return None
    if not most:
        raise UsageError("it never ends: there is no limit, and its condition is always true")
    result = smallest(most) if len(most) > 1 else most[0]
    if isinstance(result, int) and result > MOST_TURNS:
        raise UsageError(f"it makes {result} turns whatever the request is; at most {MOST_TURNS} are read")
    return result


def _turns_at_most(g: ConstantFolding, limit: str) -> Extent:
    """The known limit of turns, an extent; none below 0."""
    (result,) = (item if not isinstance(item, np.generic) else int(item) for item in np.asarray(g.known(limit)).reshape(-1))
    return result if never_negative(result) else largest([result, 0])


@dataclass(slots=True)
class _Loop:
    """Takes the nodes of a turn out of the graph and puts the loop there."""

    g: ConstantFolding
    start: int
    turn: str
    pairs: list[tuple[str, str]]
    firsts: list[str]
    rows: list[str]
    made: list[str]
    goes_on: str | None
    growth: Growth

    def results(self, t: LoopReader, facts: Extent | None, moving: Sequence[int]) -> list[str]:
        """The loop's node and what it gives."""
        g, body = self.g, self._body()
        changing = [(moving.index(position), axis, extent) for (position, axis), extent in t.changing.items()]
        body = replace(body, changing=tuple(changing))
        _same_rows(g, body)
        ends: dict[str, Any] = {"limited": t.limit is not None, "asked": t.goes_on is not None, "body": body}
        inputs = [*([t.limit] if t.limit else []), *([t.goes_on] if t.goes_on else []), *self.firsts, *t.rows, *body.shared]
        extent = facts if facts is not None else new_dimension(g, "turns")
        if facts is not None:
            ends["turns"] = facts
        elif t.limit is not None and g.known(t.limit) is not None:
            ends["most"] = _turns_at_most(g, t.limit)
        if self.growth.steps:
            ends["growth"] = self.growth.linear_sizes()
        token = GraphBuilder.add(g, "loop", *(self._outside(item) for item in inputs), name="loop", **ends)
        if facts is None:
            GraphBuilder.add(g, "turns", token, extent=extent)
        result: list[str] = []
        telling: dict[int, Any] = {}
        kinds = [g.types[first] for first in self.firsts]
        for number, position in enumerate(moving):
            shape, changed = self.growth.last_shape(g, position, kinds[number].shape, extent)
            kinds[number] = replace(kinds[number], shape=shape)
            if changed:
                telling[number] = changed
        kinds += [replace(g.types[item], shape=(extent, *g.types[item].shape)) for item in body.made]
        for index, kind in enumerate(kinds):
            more = {"told": telling[index]} if index in telling else {}
            result.append(GraphBuilder.add(g, "loop_result", token, place=index, shape=kind.shape, dtype=kind.dtype, **more))
        after = iter(result)
        every = {position: next(after) for position in moving} | t.fixed
        return [*(every[index] for index in range(len(t.states))), *after]

    def _outside(self, tensor: str) -> str:
        """An operand of the loop, which a node or a request makes."""
        plain = self.g._nodes_of(tensor)
        if plain in self.g.constants:
            return GraphBuilder.add(self.g, "reshape", plain, shape=self.g.types[plain].shape)
        return plain

    def _body(self) -> Body:
        g = self.g
        written = {
            pair: g._nodes_of(pair) for pair in (*(pair[1] for pair in self.pairs), *self.made, self.goes_on or self.turn)
        }
        own = {self.turn, *(pair[0] for pair in self.pairs), *self.rows}
        if any(node.primitive == "random" for node in g.nodes[self.start :]):
            raise UsageError("random numbers in the body of a loop are not read; draw them before it")
        turned, branches = hoist_loop_invariants(g, g.nodes[self.start :], own, map(str, self.growth.changing.values()))
        inside = [node for node in g.nodes[self.start :] if node.output in turned]
        g.nodes[self.start :] = [node for node in g.nodes[self.start :] if node.output not in turned]
        ends: list[str] = []
        plain = {node.output for node in inside if node.primitive not in HOST}

        def end(tensor: str) -> str:
            """A tensor of memory of its own that a node makes each turn."""
            result = written[tensor]
            if result not in plain or result in ends:
                result = GraphBuilder.add(g, "reshape", result, shape=g.types[result].shape)
                inside.append(g.nodes.pop())
            ends.append(result)
            return result

        pairs = tuple((before, end(after)) for before, after in self.pairs)
        made = tuple(map(end, self.made))
        goes_on = None if self.goes_on is None else end(self.goes_on)
        outer = len(g.guard)
        sizes = set().union(*(made_dimensions(node.primitive, node.attributes) for node in inside))
        sizes |= {str(extent) for extent in self.growth.changing.values()}
        required = [
            item
            for item in g.required
            if not branches.isdisjoint(name for name, _ in item.guard) or not sizes.isdisjoint(dimensions(item.extent))
        ]
        g.required = [item for item in g.required if item not in required]
        requested = [replace(item, guard=item.guard[outer:]) for item in required]
        graph = replace(_Builder(g, inside, requested).finish(*ends), inputs=())
        guards = {dtype: g.guards[dtype][outer:] for dtype in graph.types if len(g.guards.get(dtype, ())) > outer}
        graph = replace(graph, guards=guards)
        read = {tensor for node in graph.nodes for tensor in node.inputs} - graph.constants.keys()
        read -= {node.output for node in graph.nodes}
        own = {self.turn, *(pair[0] for pair in pairs), *self.rows}
        shared = [dtype for dtype in g.types if dtype in read - own]
        expected = set().union(*(sizes_of(node, g.types) for node in graph.nodes))
        sized = {item for item, _ in pairs if any(str(extent) in expected for extent in g.types[item].shape)}
        named = [pair for pair in (self.turn, *(pair[0] for pair in pairs), *self.rows) if pair in read or pair in sized]
        shared += self._tellers(graph.nodes, (*named, *shared))
        types = {**graph.types, **{item: g.types[item] for item in (*own, *shared)}}
        graph = replace(graph, inputs=(*named, *shared), types=types)
        return Body(graph, self.turn, pairs, tuple(self.rows), tuple(shared), made, goes_on)

    def _tellers(self, nodes: Sequence[Node], inputs: Sequence[str]) -> list[str]:
        """Tensors from outside whose shapes tell dimensions that a turn needs and none of its inputs tells."""
        g = self.g
        required = set().union(*(sizes_of(node, g.types) for node in nodes))
        required |= {str(dimension) for name in inputs for extent in g.types[name].shape for dimension in dimensions(extent)}
        required = required.difference(*(made_dimensions(node.primitive, node.attributes) for node in nodes))
        required -= {str(extent) for name in inputs for extent in g.types[name].shape if getattr(extent, "is_Symbol", False)}
        result: list[str] = []
        makers = (node for node in g.nodes if node.primitive != "loop" and made_dimensions(node.primitive, node.attributes))
        for name in (*g.inputs, *(node.output for node in makers)):
            description = {str(extent) for extent in g.types[name].shape if getattr(extent, "is_Symbol", False)}
            if description & required:
                result.append(name)
                required -= description
        if required:
            raise UsageError(f"a turn needs the sizes {', '.join(sorted(required))}, which no tensor outside of it has")
        return result


class _Builder(GraphBuilder):
    """Of the nodes of a turn alone."""

    def __init__(self, g: ConstantFolding, nodes: Sequence[Node], required: Sequence[Required]) -> None:
        GraphBuilder.__init__(self, [], list(nodes), g.types, g.constants, required=list(required))
