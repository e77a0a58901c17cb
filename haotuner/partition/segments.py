"""A model cut where a size or a branch is known only from data: segments planned like whole models, and what lies between.

A segment holds what can run once the same sizes are known, of one side of a branch. Between two of them the host finds the
places of what is not 0, counts up to a number, or draws random numbers. Or it asks which side of a branch is taken, or runs
a loop's body, segments of its own, turn by turn (both: haotuner/graph/control_flow.py). Their results' shapes tell the next
segment's dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from haotuner.graph.control_flow import BRANCHING, HOST, made_dimensions
from haotuner.graph.extents import Extent, canonical, dimensions, evaluate, product
from haotuner.graph.graph import Graph, Guard, Node, Required, bodies, sizes_of

MOST_COUNTED = 1 << 20  # what is more is no size that anybody asks for


@dataclass(frozen=True, slots=True)
class Segment:
    """``host``: what the host computes before the ``graph`` runs; both where the branches of ``guard`` are taken so.

    ``turns``: how often a request runs it.
    """

    host: tuple[Node, ...]
    graph: Graph | None  # None: nothing is left to run
    guard: Guard = ()
    required: tuple[Required, ...] = ()  # of requests, in a model of several segments
    turns: Extent = 1


def data_dimensions(graph: Graph) -> tuple[str, ...]:
    """Dimensions that the data decide, in the order in which they are known, those of bodies of loops behind the others."""
    return tuple(name for node in _every(graph) for name in made_dimensions(node.primitive, node.attributes))


def branches(graph: Graph) -> tuple[str, ...]:
    """Branches whose sides a request takes, those of bodies of loops behind the others."""
    return tuple(str(node.attributes["branch"]) for node in _every(graph) if node.primitive == "decided")


def _every(graph: Graph) -> Iterator[Node]:
    for body in (graph, *(body.graph for body in bodies(graph))):
        yield from body.nodes


def flattened(segments: Iterable[Segment], turns: Extent = 1) -> Iterator[Segment]:
    """Segments with those of bodies of loops, in the order in which a chain names them: a body before what is behind it."""
    for segment in segments:
        for node in segment.host:
            if node.primitive == "loop":
                yield from flattened(cut(node.attributes["body"].graph), turns * _turns(segment, node))
        yield replace(segment, turns=canonical(turns))


def _turns(segment: Segment, loop: Node) -> Extent:
    """Number of turns of a loop; 1 where nothing tells."""
    counts = (
        node.attributes["extent"] for node in segment.host if node.primitive == "turns" and node.inputs[0] == loop.output
    )
    result: Extent = loop.attributes.get("turns") or next(counts, 1)
    return result


def cut(graph: Graph) -> tuple[Segment, ...]:
    """The segments in their order; one that holds the whole graph where no size and no branch depends on data."""
    if not any(node.primitive in HOST for node in graph.nodes):
        return (Segment((), graph),)
    levels = _Levels.of(graph)
    result: list[Segment] = []
    for level in range(max((level for level, _ in levels.keys), default=0) + 1):
        hosts = [node for node in graph.nodes if node.primitive in HOST and levels.nodes[node.output] == level]
        guards = [guard for at, guard in levels.keys if at == level]
        # The host of an outer side tells which inner one is taken; segments of an outer side make what inner ones read.
        for guard in sorted(dict.fromkeys(guards), key=len):
            own = tuple(host for host in hosts if graph.guards.get(host.output, ()) == guard)
            result.append(_segment(graph, levels, level, guard, own))
    return tuple(result)


def chained(segments: Sequence[Segment]) -> bool:
    """True if a runtime goes through segments, or what the host computes: one segment behind random numbers is no model."""
    return len(segments) > 1 or bool(segments[0].host)


@dataclass(slots=True)
class _Levels:
    """Number of cuts before each node, and before each dimension. ``free``: nodes of sizes alone, made where needed.

    ``keys``: levels with guards, which are the segments, in the order of the graph.
    """

    nodes: dict[str, int] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    free: set[str] = field(default_factory=set)
    keys: dict[tuple[int, Guard], None] = field(default_factory=lambda: {(0, ()): None})
    required: dict[tuple[int, Guard], list[Required]] = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph) -> _Levels:
        result = _Levels()
        for node in graph.nodes:
            guard = graph.guards.get(node.output, ())
            before = [result.nodes.get(tensor, 0) for tensor in node.inputs] + [result.dims[branch] for branch, _ in guard]
            known = [result.dims.get(size, 0) for size in sizes_of(node, graph.types)]
            dims = made_dimensions(node.primitive, node.attributes)
            if node.primitive in ("turns", "loop_result"):  # known with the loop
                own = max(before)
            elif node.primitive == "loop":
                own = max([*before, *known], default=0) + 1
            elif dims or node.primitive in BRANCHING and node.inputs:
                own = max(before, default=0) + 1
            else:
                own = max([*before, *known], default=0)
                if node.primitive not in HOST and all(
                    tensor in graph.constants or tensor in result.free for tensor in node.inputs
                ):
                    result.free.add(node.output)
            result.dims |= dict.fromkeys((*dims, *([node.attributes["branch"]] if node.primitive == "decided" else [])), own)
            result.nodes[node.output] = own
            result.keys[own, guard] = None
        for item in graph.required:
            names = (*dimensions(item.extent), *(branch for branch, _ in item.guard))
            key = max((result.dims.get(name, 0) for name in names), default=0), item.guard
            result.keys[key] = None
            result.required.setdefault(key, []).append(item)
        return result

    def key(self, graph: Graph, tensor: str) -> tuple[int, Guard]:
        """The segment that makes a tensor."""
        return self.nodes[tensor], graph.guards.get(tensor, ())


def _segment(graph: Graph, levels: _Levels, level: int, guard: Guard, host: tuple[Node, ...]) -> Segment:
    own = {node for node in levels.nodes if levels.key(graph, node) == (level, guard)}
    wanted_tensors = {tensor for node in graph.nodes for tensor in node.inputs if _needs(levels, node, tensor, own)} | {
        tensor for tensor in graph.outputs if tensor in own
    }
    made = {node.output for node in host}
    nodes: list[Node] = []
    needed = wanted_tensors - made
    outputs = tuple(node.output for node in graph.nodes if node.output in needed)
    for node in reversed(graph.nodes):
        here = node.output in own and node.output not in made
        if node.output in needed and (here or node.output in levels.free):
            nodes.append(node)
            needed.update(node.inputs)
    inside = {node.output for node in nodes}
    inputs = [tensor for tensor in graph.types if tensor in needed - inside - graph.constants.keys()]
    if level == 0 and not guard:
        inputs = [*graph.inputs, *(tensor for tensor in inputs if tensor not in graph.inputs)]
    inputs += _carriers(graph, nodes, inputs, guard)
    types = {
        tensor: kind for tensor, kind in graph.types.items() if tensor in inside or tensor in needed or tensor in inputs
    }
    constants = {name: value for name, value in graph.constants.items() if name in needed}
    part = replace(graph, inputs=tuple(inputs), outputs=outputs, nodes=tuple(reversed(nodes)), types=types,
                   constants=constants, guards={}, required=(), defaults={})  # fmt: skip
    return Segment(host, part if nodes else None, guard, tuple(levels.required.get((level, guard), ())))


def _needs(levels: _Levels, node: Node, tensor: str, own: set[str]) -> bool:
    """True if a node outside of a segment, or of the host, reads one of its tensors."""
    later = node.primitive in HOST or node.output not in own
    return later and tensor in own and (tensor not in levels.free or node.primitive in HOST)


def _carriers(graph: Graph, nodes: Iterable[Node], inputs: Iterable[str], guard: Guard) -> list[str]:
    """Tensors whose shapes tell the dimensions that a segment needs and that no other input of it tells."""
    required = set().union(*(sizes_of(node, graph.types) for node in nodes), set())
    for name in inputs:
        required |= set().union(*(dimensions(extent) for extent in graph.types[name].shape), set())
    known = {str(extent) for tensor in inputs for extent in graph.types[tensor].shape if getattr(extent, "is_Symbol", False)}
    made = (node.output for node in graph.nodes if made_dimensions(node.primitive, node.attributes))
    there = (item for item in made if graph.guards.get(item, ()) == guard[: len(graph.guards.get(item, ()))])
    result: list[str] = []
    for tensor in (*graph.inputs, *there):
        dims = {str(extent) for extent in graph.types[tensor].shape if getattr(extent, "is_Symbol", False)}
        if dims & (required - known):
            result.append(tensor)
            known |= dims
    return result


def counts(graph: Graph, largest: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Dimensions that count elements of a tensor, or that branches differ in, with the most that they can be."""
    known = dict(largest)
    for node in graph.nodes:
        for name, extents in _bounds(graph, node):
            if all(dimensions(extent) <= known.keys() for extent in extents):
                most = max(1, *(evaluate(extent, known) for extent in extents))
                if most <= MOST_COUNTED:
                    known.setdefault(name, most)
                    yield name, known[name]
        if node.primitive == "loop":
            for name, most in counts(node.attributes["body"].graph, known):
                known.setdefault(name, most)
                yield name, most


def _bounds(graph: Graph, node: Node) -> Iterator[tuple[str, list[Extent]]]:
    """Dimensions of a node's result, each with extents of which it is none larger than the largest."""
    shapes = [graph.types[tensor].shape for tensor in node.inputs]
    if node.primitive == "nonzero":
        yield str(node.attributes["extent"]), [product(shapes[0])]
    if node.primitive == "chosen":
        for axis, extent in node.attributes["told"]:
            yield str(extent), [shape[axis] for shape in shapes[1:]]
    if node.primitive == "loop":
        turns: Extent | None = node.attributes.get("turns")
        counts = (
            other_node
            for other_node in graph.nodes
            if other_node.primitive == "turns" and other_node.inputs[0] == node.output
        )
        for count in counts:
            turns = count.attributes["extent"]
            if node.attributes.get("most") is not None:
                yield str(turns), [node.attributes["most"]]
        for extent, first, step in node.attributes.get("growth", ()):
            if turns is not None:
                yield extent, [first, canonical(first + step * turns)]


def origins(graph: Graph, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Dimensions of the data with the tensors that tell them, in words."""
    for node in graph.nodes:
        for name in made_dimensions(node.primitive, node.attributes):
            if name in names:
                yield name, _origin(graph, node)
        if node.primitive == "loop":
            yield from origins(node.attributes["body"].graph, names)


def _origin(graph: Graph, node: Node) -> str:
    if node.primitive == "chosen":
        then, other = (graph.types[tensor] for tensor in node.inputs[1:])
        return f"which side of a branch makes {node.output}, {then} or {other}"
    if node.primitive == "loop":
        return "how large a value that a loop carries is before a turn"
    if node.primitive == "loop_result":
        return f"how large {node.output}, which a loop carries, is behind its last turn"
    if node.primitive == "turns":
        made = (
            other_node.output
            for other_node in graph.nodes
            if other_node.primitive == "loop_result" and other_node.inputs == node.inputs
        )
        return f"how many turns the loop makes whose results are {', '.join(made)}"
    tensor = node.inputs[0]
    of = "how many elements are not 0 in" if node.primitive == "nonzero" else f"element {node.attributes['place']} of"
    return f"{of} {tensor} {graph.types[tensor]}"
