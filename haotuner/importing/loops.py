"""Loops: a body read once, whose nodes become the body of the graph's loop.

What of a body depends on no turn joins the graph around it, so it is computed once. A carried value that no turn changes is
none. Loops of few turns, known now, are written out turn by turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.data_dependent_shapes import HOST, made_dimensions
from haotuner.graph.extents import Extent, dimensions, smallest
from haotuner.graph.graph import Body, GraphBuilder, Node, Required, sizes_of
from haotuner.importing.constant_folding import Before, ConstantFolding
from haotuner.importing.growth import Growth, changing_sizes, growth_of, named_anew, settles
from haotuner.importing.layout import cut, joined, reshaped
from haotuner.importing.lengths import new_dimension
from haotuner.importing.loop_hoisting import HoistedSequences, hoist_loop_invariants
from haotuner.importing.node_context import NodeContext
from haotuner.importing.trip_count import always, counted, counters
from haotuner.importing.unrolled import UNROLLED_NODES, known_trip_count, runs_once, unrolled

if TYPE_CHECKING:
    from haotuner.importing.read import Reader

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
    asked: str | None = None
    fixed: dict[int, str] = field(default_factory=dict)  # states that no turn changes
    first: int = 0  # turns that were written out before
    changing: dict[tuple[int, int], Extent] = field(default_factory=dict)  # of a state and its axis: the size in a turn

    @property
    def g(self) -> ConstantFolding:
        """The builder of the graph."""
        return self.reader.g

    def shape_of(self, place: int) -> list[Extent]:
        """Of a state as a turn has it."""
        shape = self.g.types[self.states[place]].shape
        return [self.changing.get((place, axis), extent) for axis, extent in enumerate(shape)]

    def said(self, place: int) -> str:
        """What the file calls a state behind a turn."""
        return str(self.graph.output[place + self.counts].name)

    def turn(self, turn: str, states: Sequence[str], rows: Sequence[str]) -> list[str]:
        """The body's outputs, one turn added to the graph."""
        inner, given = dict(self.names), [*states, *rows]
        if self.counts:
            turn = self.g.map("add", turn, self.first) if self.first else turn
            given = [turn, self.g.constant(True, "bool"), *given]
        if len(given) != len(self.graph.input):
            raise UsageError(f"its body takes {len(self.graph.input)} inputs, and {len(given)} are given")
        inner |= zip((one.name for one in self.graph.input), given, strict=True)
        self.reader.run(self.graph, inner, self.opset, self.depth + 1)
        missing = [one.name for one in self.graph.output if one.name not in inner]
        if missing:
            raise UsageError(f"its body's output {missing[0]!r} is made by no node")
        return [inner[one.name] for one in self.graph.output]

    def parted(self, found: Sequence[str]) -> tuple[str | None, list[str], list[str]]:
        """Of a turn's outputs: the condition, the states, what becomes rows."""
        goes_on, rest = (found[0], list(found[1:])) if self.counts else (None, list(found))
        if len(rest) < len(self.states):
            raise UsageError(f"its body gives {len(rest)} of {len(self.states)} carried values")
        return goes_on, rest[: len(self.states)], rest[len(self.states) :]


def loop_results(
    reader: Reader, node: Any, inputs: Sequence[str | None], names: Mapping[str, str], opset: int, depth: int
) -> list[str]:
    """Results of a Loop. UsageError for carried values that change their rank or type."""
    g = reader.g
    states = [one for one in inputs[2:] if one is not None]
    if len(states) != len(inputs[2:]):
        raise UsageError("a first value that is carried is left out")
    limit, asked = ([*inputs, None, None])[:2]
    if asked is not None and always(g, asked):
        asked = None
    return loop_outputs(LoopReader(reader, body_of_loop(node), names, opset, depth, states, [], True, limit, asked))


def body_of_loop(node: Any) -> Any:
    """The graph of a turn."""
    found = next((one.g for one in node.attribute if one.name == "body"), None)
    if found is None:
        raise UsageError("attribute body is missing")
    return found


def loop_outputs(t: LoopReader) -> list[str]:
    """Final states, then stacks of rows. UsageError as of ``loop_results``."""
    count, lists = known_trip_count(t), [one for one in t.states if one in t.g.sequences]
    most = UNROLLED_INSIDE if lists else UNROLLED
    if (
        count is not None
        and (lists or count > 0)
        and count <= most
        and t.asked is None
        and t.reader.turns * count <= UNROLLED_INSIDE
    ):
        t.reader.turns *= count
        try:
            found = unrolled(t, count)
        finally:
            t.reader.turns //= count
        if found is not None:
            return found
    if lists:
        raise UsageError(
            f"it carries a sequence, whose length must be known when the file is read: at most {UNROLLED_INSIDE} turns of "
            f"{UNROLLED_NODES} nodes in all, of a number that the file gives; export the model with a tensor that grows"
        )
    return _looped(t)


def _variable(g: ConstantFolding, stem: str, shape: Sequence[Extent], dtype: str) -> str:
    """A tensor that a turn is given."""
    found = GraphBuilder.add(g, "loop_result", name=stem, place=0, shape=tuple(shape), dtype=dtype)
    g.nodes.pop()
    return found


def _looped(t: LoopReader) -> list[str]:
    """The loop as one; read again until no carried value is left that no turn changes."""
    g = t.g
    while True:
        before = Before.of(g)
        turn = _variable(g, "turn", (), "int64")
        rows = [_variable(g, "row", g.types[one].shape[1:], g.types[one].dtype) for one in t.rows]
        states = [
            t.fixed.get(place) or _variable(g, "carried", t.shape_of(place), g.types[one].dtype)
            for place, one in enumerate(t.states)
        ]
        goes_on, after, made = t.parted(t.turn(turn, states, rows))
        same_ones = {place: t.states[place] for place, one in enumerate(after) if one in (states[place], t.states[place])}
        moving = [place for place in range(len(states)) if place not in t.fixed]
        outside = set().union(*(dimensions(one) for kind in before.held["types"].values() for one in kind.shape))
        ends = [(place, states[place], after[place]) for place in moving]
        if not t.first and settles(g, t.states, t.changing, ends, outside) and runs_once(t):
            before.restore(g)
            return _behind_first(t)
        changing = changing_sizes(t.states, t.changing, ends, t.said, g)
        if same_ones.keys() <= t.fixed.keys() and changing == t.changing:
            break
        t.fixed |= same_ones
        before.restore(g)
        t.changing = named_anew(g, changing)
    pairs = [(states[place], after[place]) for place in moving]
    firsts = [t.states[place] for place in moving]
    told = _turns(t, goes_on, pairs, firsts)
    asks = None if goes_on is None or always(g, goes_on) else goes_on
    if told is not None:
        every, sizes = (turn, *counters(g, pairs, firsts)), set(map(str, t.changing.values()))
        sequences = HoistedSequences(g, before.nodes, told, every, dict(zip(rows, t.rows, strict=True)), sizes)
        kept = [*after, *made, *([asks] if asks else [])]
        for stack, row in sequences.rows((turn, *(one for one, _ in pairs), *rows), kept):
            t.rows.append(stack)
            rows.append(row)
    growth = growth_of(t.states, t.changing, dict(enumerate(after)), outside, g)
    loop = _Loop(g, before.nodes, turn, pairs, firsts, rows, made, asks, growth)
    return loop.results(t, told, moving)


def _behind_first(t: LoopReader) -> list[str]:
    """The first turn written out, then the loop of the others, whose carried values are as that turn made them."""
    g, c = t.g, NodeContext(t.g, "Loop", (), {}, t.opset, 1)
    rows = [reshaped(c, cut(c, one, 0, 0, 1), g.types[one].shape[1:]) for one in t.rows]
    goes_on, states, made = t.parted(t.turn(g.constant(0, "int64"), t.states, rows))
    rest = replace(
        t,
        states=states,
        rows=[cut(c, one, 0, 1, g.types[one].shape[0]) for one in t.rows],
        limit=None if t.limit is None else g.map("sub", t.limit, 1),
        asked=None if goes_on is None or always(g, goes_on) else goes_on,
        first=1,
        fixed={},
        changing={},
    )
    found = loop_outputs(rest)
    firsts = [reshaped(c, one, (1, *g.types[one].shape)) for one in made]
    stacks = [joined(c, list(both), 0) for both in zip(firsts, found[len(states) :], strict=True)]
    return [*found[: len(states)], *stacks]


def _same_rows(g: ConstantFolding, body: Body) -> None:
    """UsageError for rows whose sizes each turn tells anew."""
    own = set().union(*(made_dimensions(node.primitive, node.attributes) for node in body.graph.nodes))
    own |= {str(extent) for _, _, extent in body.changing}
    for one in body.made:
        if own & set().union(*map(dimensions, g.types[one].shape)):
            raise UsageError(
                f"a turn makes {one} {g.types[one]}, of a size that its data tell, or the turns before it; rows of one "
                "result are alike: have the model carry what grows, and give it behind the last turn"
            )


def _turns(t: LoopReader, goes_on: str | None, pairs: Sequence[tuple[str, str]], firsts: Sequence[str]) -> Extent | None:
    """How many turns there are, whatever the data are; None: they tell."""
    g, most = t.g, [t.g.types[row].shape[0] for row in t.rows]
    if t.limit is not None and g.known(t.limit) is not None:
        most.append(_turns_at_most(g, t.limit))
    elif t.limit is not None:
        return None
    if goes_on is not None and not always(g, goes_on):
        by_count = counted(g, goes_on, t.asked, pairs, firsts)
        if by_count is None:
            return None
        most.append(by_count)
    elif t.asked is not None:
        return None
    if not most:
        raise UsageError("it never ends: there is no limit, and its condition is always true")
    found = smallest(most) if len(most) > 1 else most[0]
    if isinstance(found, int) and found > MOST_TURNS:
        raise UsageError(f"it makes {found} turns whatever the request is; at most {MOST_TURNS} are read")
    return found


def _turns_at_most(g: ConstantFolding, limit: str) -> Extent:
    """The known limit of turns, an extent; none below 0."""
    (found,) = (one if not isinstance(one, np.generic) else int(one) for one in np.asarray(g.known(limit)).reshape(-1))
    return found if not isinstance(found, int) else max(found, 0)


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

    def results(self, t: LoopReader, told: Extent | None, moving: Sequence[int]) -> list[str]:
        """The loop's node and what it gives."""
        g, body = self.g, self._body()
        changing = [(moving.index(place), axis, extent) for (place, axis), extent in t.changing.items()]
        body = replace(body, changing=tuple(changing))
        _same_rows(g, body)
        ends: dict[str, Any] = {"limited": t.limit is not None, "asked": t.asked is not None, "body": body}
        given = [*([t.limit] if t.limit else []), *([t.asked] if t.asked else []), *self.firsts, *t.rows, *body.shared]
        extent = told if told is not None else new_dimension(g, "turns")
        if told is not None:
            ends["turns"] = told
        elif t.limit is not None and g.known(t.limit) is not None:
            ends["most"] = _turns_at_most(g, t.limit)
        if self.growth.steps:
            ends["growth"] = self.growth.told()
        token = GraphBuilder.add(g, "loop", *(self._outside(one) for one in given), name="loop", **ends)
        if told is None:
            GraphBuilder.add(g, "turns", token, extent=extent)
        found: list[str] = []
        telling: dict[int, Any] = {}
        kinds = [g.types[one] for one in self.firsts]
        for number, place in enumerate(moving):
            shape, changed = self.growth.last_shape(g, place, kinds[number].shape, extent)
            kinds[number] = replace(kinds[number], shape=shape)
            if changed:
                telling[number] = changed
        kinds += [replace(g.types[one], shape=(extent, *g.types[one].shape)) for one in body.made]
        for place, kind in enumerate(kinds):
            more = {"told": telling[place]} if place in telling else {}
            found.append(GraphBuilder.add(g, "loop_result", token, place=place, shape=kind.shape, dtype=kind.dtype, **more))
        after = iter(found)
        every = {place: next(after) for place in moving} | t.fixed
        return [*(every[place] for place in range(len(t.states))), *after]

    def _outside(self, tensor: str) -> str:
        """An operand of the loop, which a node or a request makes."""
        plain = self.g._nodes_of(tensor)
        if plain in self.g.constants:
            return GraphBuilder.add(self.g, "reshape", plain, shape=self.g.types[plain].shape)
        return plain

    def _body(self) -> Body:
        g = self.g
        written = {
            one: g._nodes_of(one) for one in (*(pair[1] for pair in self.pairs), *self.made, self.goes_on or self.turn)
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
            found = written[tensor]
            if found not in plain or found in ends:
                found = GraphBuilder.add(g, "reshape", found, shape=g.types[found].shape)
                inside.append(g.nodes.pop())
            ends.append(found)
            return found

        pairs = tuple((before, end(after)) for before, after in self.pairs)
        made = tuple(map(end, self.made))
        goes_on = None if self.goes_on is None else end(self.goes_on)
        outer = len(g.guard)
        sizes = set().union(*(made_dimensions(node.primitive, node.attributes) for node in inside))
        sizes |= {str(extent) for extent in self.growth.changing.values()}
        required = [
            one
            for one in g.required
            if not branches.isdisjoint(name for name, _ in one.guard) or not sizes.isdisjoint(dimensions(one.extent))
        ]
        g.required = [one for one in g.required if one not in required]
        asked = [replace(one, guard=one.guard[outer:]) for one in required]
        graph = replace(_Builder(g, inside, asked).finish(*ends), inputs=())
        guards = {one: g.guards[one][outer:] for one in graph.types if len(g.guards.get(one, ())) > outer}
        graph = replace(graph, guards=guards)
        read = {one for node in graph.nodes for one in node.inputs} - graph.constants.keys()
        read -= {node.output for node in graph.nodes}
        own = {self.turn, *(pair[0] for pair in pairs), *self.rows}
        shared = [one for one in g.types if one in read - own]
        wanted = set().union(*(sizes_of(node, g.types) for node in graph.nodes))
        sized = {one for one, _ in pairs if any(str(extent) in wanted for extent in g.types[one].shape)}
        named = [one for one in (self.turn, *(pair[0] for pair in pairs), *self.rows) if one in read or one in sized]
        shared += self._tellers(graph.nodes, (*named, *shared))
        types = {**graph.types, **{one: g.types[one] for one in (*own, *shared)}}
        graph = replace(graph, inputs=(*named, *shared), types=types)
        return Body(graph, self.turn, pairs, tuple(self.rows), tuple(shared), made, goes_on)

    def _tellers(self, nodes: Sequence[Node], inputs: Sequence[str]) -> list[str]:
        """Tensors from outside whose shapes tell dimensions that a turn needs and none of its inputs tells."""
        g = self.g
        wanted = set().union(*(sizes_of(node, g.types) for node in nodes))
        wanted |= {str(one) for name in inputs for extent in g.types[name].shape for one in dimensions(extent)}
        wanted = wanted.difference(*(made_dimensions(node.primitive, node.attributes) for node in nodes))
        wanted -= {str(extent) for name in inputs for extent in g.types[name].shape if getattr(extent, "is_Symbol", False)}
        found: list[str] = []
        makers = (one for one in g.nodes if one.primitive != "loop" and made_dimensions(one.primitive, one.attributes))
        for name in (*g.inputs, *(node.output for node in makers)):
            told = {str(extent) for extent in g.types[name].shape if getattr(extent, "is_Symbol", False)}
            if told & wanted:
                found.append(name)
                wanted -= told
        if wanted:
            raise UsageError(f"a turn needs the sizes {', '.join(sorted(wanted))}, which no tensor outside of it has")
        return found


class _Builder(GraphBuilder):
    """Of the nodes of a turn alone."""

    def __init__(self, g: ConstantFolding, nodes: Sequence[Node], required: Sequence[Required]) -> None:
        GraphBuilder.__init__(self, [], list(nodes), g.types, g.constants, required=list(required))
