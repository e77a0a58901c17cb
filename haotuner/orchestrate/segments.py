"""A model cut where a size is known only from data: segments that are planned like whole models, and what lies between.

A segment holds what can run once the same sizes are known. Between two of them the host finds the places of what is not 0,
counts up to a number, draws random numbers (haotuner/graph/data_sizes.py), or runs a loop's body, segments of its own, turn
by turn (haotuner/graph/loops.py); their results' shapes tell the next segment's dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from haotuner.graph.data_sizes import HOST, MAKING
from haotuner.graph.extents import Extent, canonical, dimensions, evaluate, product
from haotuner.graph.graph import Graph, Node, bodies, sizes_of


@dataclass(frozen=True, slots=True)
class Segment:
    """``host``: what the host computes before the ``graph`` runs; ``turns``: how often a request runs it."""

    host: tuple[Node, ...]
    graph: Graph | None  # None: nothing is left to run
    turns: Extent = 1


def data_dimensions(graph: Graph) -> tuple[str, ...]:
    """Dimensions that the data decide, in the order in which they are known, those of bodies of loops behind the others."""
    every = [node for one in (graph, *(body.graph for body in bodies(graph))) for node in one.nodes]
    return tuple(str(node.attributes["extent"]) for node in every if node.primitive in MAKING)


def flattened(segments: Iterable[Segment], turns: Extent = 1) -> Iterator[Segment]:
    """Segments with those of bodies of loops, in the order in which a chain names them: a body before what is behind it."""
    for segment in segments:
        for node in segment.host:
            if node.primitive == "loop":
                yield from flattened(cut(node.attributes["body"].graph), turns * _turns(segment, node))
        yield replace(segment, turns=canonical(turns))


def _turns(segment: Segment, loop: Node) -> Extent:
    """How many turns a loop makes; 1 where nothing tells."""
    told = (one.attributes["extent"] for one in segment.host if one.primitive == "turns" and one.inputs[0] == loop.output)
    found: Extent = loop.attributes.get("turns") or next(told, 1)
    return found


def cut(graph: Graph) -> tuple[Segment, ...]:
    """The segments in their order; one that holds the whole graph where no size depends on data."""
    if not any(node.primitive in HOST for node in graph.nodes):
        return (Segment((), graph),)
    levels = _Levels.of(graph)
    last = max(levels.nodes.values(), default=0)
    return tuple(_segment(graph, levels, level) for level in range(last + 1))


def chained(segments: Sequence[Segment]) -> bool:
    """Whether a runtime goes through segments, or what the host computes: one segment behind random numbers is no model."""
    return len(segments) > 1 or bool(segments[0].host)


@dataclass(slots=True)
class _Levels:
    """How many cuts lie before each node, and before each dimension. ``free``: nodes of sizes alone, made where needed."""

    nodes: dict[str, int] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    free: set[str] = field(default_factory=set)

    @staticmethod
    def of(graph: Graph) -> _Levels:
        found = _Levels()
        for node in graph.nodes:
            before = [found.nodes.get(one, 0) for one in node.inputs]
            if node.primitive == "turns":  # known with the loop
                own = found.dims[str(node.attributes["extent"])] = max(before)
            elif node.primitive == "loop":
                own = max([*before, *(found.dims.get(one, 0) for one in sizes_of(node, graph.types))], default=0) + 1
            elif node.primitive in MAKING:
                own = found.dims[str(node.attributes["extent"])] = max(before, default=0) + 1
            else:
                own = max([*before, *(found.dims.get(one, 0) for one in sizes_of(node, graph.types))], default=0)
                if node.primitive not in HOST and all(one in graph.constants or one in found.free for one in node.inputs):
                    found.free.add(node.output)
            found.nodes[node.output] = own
        return found


def _segment(graph: Graph, levels: _Levels, level: int) -> Segment:
    host = tuple(one for one in graph.nodes if one.primitive in HOST and levels.nodes[one.output] == level)
    asked = {one for node in graph.nodes for one in node.inputs if _needs(levels, node, one, level)} | {
        one for one in graph.outputs if levels.nodes.get(one) == level
    }
    made = {one.output for one in host}
    nodes: list[Node] = []
    needed = {one for one in asked if levels.nodes.get(one) == level and one not in made}
    outputs = tuple(node.output for node in graph.nodes if node.output in needed)
    for node in reversed(graph.nodes):
        here = levels.nodes[node.output] == level and node.output not in made
        if node.output in needed and (here or node.output in levels.free):
            nodes.append(node)
            needed.update(node.inputs)
    inside = {node.output for node in nodes}
    inputs = [one for one in graph.types if one in needed - inside - graph.constants.keys()]
    if level == 0:
        inputs = [*graph.inputs, *(one for one in inputs if one not in graph.inputs)]
    inputs += _carriers(graph, nodes, inputs)
    types = {one: kind for one, kind in graph.types.items() if one in inside or one in needed or one in inputs}
    constants = {one: value for one, value in graph.constants.items() if one in needed}
    part = replace(graph, inputs=tuple(inputs), outputs=outputs, nodes=tuple(reversed(nodes)), types=types,
                   constants=constants)  # fmt: skip
    return Segment(host, part if nodes else None)


def _needs(levels: _Levels, node: Node, tensor: str, level: int) -> bool:
    """Whether a node behind a segment, or of the host, reads one of its tensors."""
    later = node.primitive in HOST or levels.nodes[node.output] > level
    return later and levels.nodes.get(tensor) == level and (tensor not in levels.free or node.primitive in HOST)


def _carriers(graph: Graph, nodes: Iterable[Node], inputs: Iterable[str]) -> list[str]:
    """Tensors whose shapes tell the dimensions that a segment needs and that no other input of it tells."""
    wanted = set().union(*(sizes_of(node, graph.types) for node in nodes), set())
    for one in inputs:
        wanted |= set().union(*(dimensions(extent) for extent in graph.types[one].shape), set())
    known = {str(extent) for one in inputs for extent in graph.types[one].shape if getattr(extent, "is_Symbol", False)}
    tellers = [*graph.inputs, *(node.output for node in graph.nodes if node.primitive in MAKING)]
    found: list[str] = []
    for tensor in tellers:
        told = {str(extent) for extent in graph.types[tensor].shape if getattr(extent, "is_Symbol", False)}
        if told & (wanted - known):
            found.append(tensor)
            known |= told
    return found


def counts(graph: Graph, largest: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Dimensions that count elements of a tensor, with the most that they can be."""
    known = dict(largest)
    for node in graph.nodes:
        extent = product(graph.types[node.inputs[0]].shape) if node.primitive == "nonzero" else None
        if extent is not None and dimensions(extent) <= known.keys():
            name = str(node.attributes["extent"])
            known[name] = max(1, evaluate(extent, known))
            yield name, known[name]


def origins(graph: Graph, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Dimensions of the data with the tensors that tell them, in words."""
    for node in graph.nodes:
        if node.primitive in MAKING and str(node.attributes["extent"]) in names:
            tensor = node.inputs[0]
            said = {
                "nonzero": "how many elements are not 0 in {}",
                "turns": "how many turns the loop makes whose results are {}",
            }
            of = said.get(node.primitive, f"element {node.attributes.get('place')} of {{}}")
            made = [one.output for one in graph.nodes if one.primitive == "loop_result" and one.inputs == node.inputs]
            told = ", ".join(made) if node.primitive == "turns" else f"{tensor} {graph.types[tensor]}"
            yield str(node.attributes["extent"]), of.format(told)
    for node in graph.nodes:
        if node.primitive == "loop":
            yield from origins(node.attributes["body"].graph, names)
