"""Document of how a runtime goes through a model's segments, with extents as a table of arithmetic.

Extents as a table of arithmetic, each line from lines before it: what a runtime without sympy evaluates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from haotuner.graph.control_flow import made_dimensions
from haotuner.graph.extents import Extent, canonical, dimensions, lowered, text
from haotuner.graph.graph import Graph, Node, bodies
from haotuner.graph.types import NUMPY_NAMES
from haotuner.partition.segments import Segment, branches, cut, data_dimensions
from haotuner.spec.size_arithmetic import OPERATIONS


@dataclass(frozen=True, slots=True)
class _Line:
    """A value of the table, in Python's arithmetic."""

    table: SizeTable
    index: int

    def __add__(self, other: _Line) -> _Line:
        return self.table.line("+", self.index, other.index)

    def __sub__(self, other: _Line) -> _Line:
        return self.table.line("-", self.index, other.index)

    def __mul__(self, other: _Line) -> _Line:
        return self.table.line("*", self.index, other.index)


@dataclass(slots=True)
class SizeTable:
    """``lines``: ["dim", name], ["number", n] or [operation, line, line], of ``OPERATIONS``; some have one operand.

    Numbers that are not whole are operands of the typed ones.
    """

    lines: list[list[Any]] = field(default_factory=list)
    _known: dict[Any, int] = field(default_factory=dict)

    def line(self, *words: Any) -> _Line:
        """The value's line, written once."""
        if words not in self._known:
            self._known[words] = len(self.lines)
            self.lines.append(list(words))
        return _Line(self, self._known[words])

    def index(self, extent: Extent) -> int:
        """Number of the line that holds an extent. UsageError where it has no arithmetic."""
        extent = canonical(extent)
        key = text(extent)
        if key in self._known:
            return self._known[key]
        values = {name: self.line("dim", name) for name in sorted(dimensions(extent))}
        result = lowered(
            extent,
            values,
            number=lambda n: self.line("number", n),
            floordiv=lambda a, b: self.line("//", a.index, b.index),
            mod=lambda a, b: self.line("%", a.index, b.index),
            maximum=lambda a, b: self.line("max", a.index, b.index),
            minimum=lambda a, b: self.line("min", a.index, b.index),
            function=lambda name, operands: self.line(name, *(operand.index for operand in operands)),
        )
        self._known[key] = int(result.index)
        return int(result.index)

    def capacity(self, name: str, rows: Extent) -> int:
        """Number of a new line for a dimension's name: ``rows``, or the capacity of the caches' buffers."""
        line = self.line("capacity", self.index(rows)).index
        self._known[name] = self._known["dim", name] = line
        return line

    def values(self, dims: Mapping[str, int]) -> list[Any]:
        """The value of every line at a request; extents are whole."""
        result: list[Any] = []
        for operation, *parts in self.lines:
            if operation in ("dim", "number"):
                result.append(dims[parts[0]] if operation == "dim" else parts[0])
            else:
                result.append(OPERATIONS[operation].compute(*(result[part] for part in parts)))
        return result

    def indices(self, shape: Sequence[Extent]) -> list[int]:
        """Lines of a shape's extents."""
        return [self.index(extent) for extent in shape]


RANDOM = ("float32", "float64")  # that the library draws; others are drawn between calls of segments


def segmented_document(name: str, graph: Graph, segments: Iterable[Segment], models: Iterator[str]) -> Mapping[str, Any]:
    """Segments with the names of their ``models``, and what the host computes before each; runtime/chain_bound.py reads it.

    What one side of a branch does stands behind a step ``when``, which skips it where the other side is taken.
    """
    table = SizeTable()
    steps = _steps(segments, models, table)
    every = {
        kind: [{"name": tensor, **_kind(graph, tensor), **default_of(graph, tensor)} for tensor in names]
        for kind, names in (("inputs", graph.inputs), ("outputs", graph.outputs))
    }
    dims = dict.fromkeys((*graph.dimensions, *data_dimensions(graph), *branches(graph)))
    return {"chain": steps, "name": name, "dims": list(dims), **every} | _tensors(graph, steps, table)


def _steps(segments: Iterable[Segment], models: Iterator[str], table: SizeTable) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for segment in segments:
        host: list[dict[str, Any]] = []
        for node in segment.host:
            if node.primitive == "loop":
                host.append(_loop(node, segment.host, models, table))
            elif node.primitive not in ("loop_result", "turns"):
                host.append(_host(node, table))
        # What is required of sizes that the host tells here is asked when they are known.
        dims = set().union(*(made_dimensions(node.primitive, node.attributes) for node in segment.host))
        before, after = list[dict[str, Any]](), list[dict[str, Any]]()
        for requirement in segment.required:
            step = {"do": "required", "words": requirement.words, **_extent_document(requirement.extent, table)}
            (before if dims.isdisjoint(dimensions(requirement.extent)) else after).append(step)
        own = [*before, *host, *after]
        if segment.graph is not None:
            ends = {"reads": list(segment.graph.inputs), "makes": list(segment.graph.outputs)}
            own.append({"do": "segment", "model": next(models), **ends})
        for index, (branch, value) in enumerate(segment.guard if own else ()):
            rest = len(segment.guard) - index - 1 + len(own)
            steps.append({"do": "when", "dim": branch, "is": value, "skip": rest})
        steps += own
    return steps


def _host(node: Node, table: SizeTable) -> dict[str, Any]:
    if node.primitive == "random":
        return _random(node)
    document: dict[str, Any] = {"do": node.primitive, "out": node.output}
    if node.primitive == "decided":
        by = {"of": node.inputs[0]} if node.inputs else _extent_document(node.attributes["extent"], table)
        return {"do": "decided", "dim": node.attributes["branch"], **by}
    if node.primitive == "chosen":
        dims = [[axis, str(extent)] for axis, extent in node.attributes["told"]]
        return document | {"of": list(node.inputs[1:]), "dim": node.attributes["branch"], "told": dims}
    dim, position = str(node.attributes["extent"]), node.attributes.get("place", 0)
    return document | {"of": node.inputs[0], "dim": dim, "place": position}


def _extent_document(extent: Extent, table: SizeTable) -> dict[str, Any]:
    """An extent: ``sizes`` by themselves, whose last one it is, and its line in the whole model's table."""
    own = SizeTable()
    position = own.index(extent)
    return {"sizes": own.lines[: position + 1], "line": table.index(extent)}


def _random(node: Node) -> dict[str, Any]:
    sizes = SizeTable()
    return {
        "do": node.primitive,
        "out": node.output,
        "shape": sizes.indices(node.attributes["shape"]),
        "sizes": sizes.lines,
        "attributes": {key: value for key, value in node.attributes.items() if key not in ("shape", "dtype")},
        "dtype": NUMPY_NAMES[node.attributes["dtype"]],
    }


def _loop(node: Node, host: Iterable[Node], models: Iterator[str], table: SizeTable) -> dict[str, Any]:
    """A loop with the steps of its body.

    Of what it carries: the first value, that of a turn, what the turn makes of it, and the last one; of what it makes: a
    row, and the stack of all. What nobody reads has no name. Of a size that changes: which carried value, the axis, the
    dimension of a turn, and that of the last value where nothing else tells it.
    """
    body, inputs = node.attributes["body"], list(node.inputs)
    limit = inputs.pop(0) if node.attributes["limited"] else None
    requested = inputs.pop(0) if node.attributes["asked"] else None
    read = {
        other_node.attributes["place"]: other_node.output
        for other_node in host
        if other_node.primitive == "loop_result" and other_node.inputs[0] == node.output
    }
    outside = {
        (other_node.attributes["place"], axis): str(extent)
        for other_node in host
        if other_node.primitive == "loop_result" and other_node.inputs[0] == node.output
        for axis, extent in other_node.attributes.get("told", ())
    }
    turns = next(
        (other_node for other_node in host if other_node.primitive == "turns" and other_node.inputs[0] == node.output), None
    )
    first = len(body.carried)
    return {
        "do": "loop",
        "limit": limit,
        "asked": requested,
        "turn": body.turn,
        "goes_on": body.goes_on,
        "dim": None if turns is None else str(turns.attributes["extent"]),
        "turns": None if turns is None else turns.output,
        "carried": [[inputs[at], *pair, read.get(at)] for at, pair in enumerate(body.carried)],
        "rows": [list(pair) for pair in zip(inputs[first:], body.rows, strict=False)],
        "made": [[end, read[first + at]] for at, end in enumerate(body.made) if first + at in read],
        "changes": [[at, axis, str(extent), outside.get((at, axis))] for at, axis, extent in body.changing],
        "kinds": [_kind(body.graph, end) for at, end in enumerate(body.made) if first + at in read],
        "steps": _steps(cut(body.graph), models, table),
    }


def _outputs_of(steps: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Every tensor that a step makes, those of bodies among them."""
    for step in steps:
        if step["do"] == "segment":
            yield from step["makes"]
        elif "out" in step:
            yield step["out"]
        elif step["do"] == "loop":
            yield step["turn"]
            yield from (end for _, *ends in step["carried"] for end in ends if end is not None)
            yield from (row for _, row in step["rows"])
            yield from (tensor for pair in step["made"] for tensor in pair)
            yield from _outputs_of(step["steps"])
            if step["turns"] is not None:
                yield step["turns"]


def _all(steps: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for step in steps:
        yield step
        yield from _all(step.get("steps", ()))


def _tensors(graph: Graph, steps: Sequence[Mapping[str, Any]], table: SizeTable) -> dict[str, Any]:
    """Types and shapes of what lies between segments, for the library; none where it has no random numbers of that type."""
    if any(step["do"] == "random" and step["dtype"] not in RANDOM for step in _all(steps)):
        return {}
    types = {
        name: kind for graph_ in (graph, *(body.graph for body in bodies(graph))) for name, kind in graph_.types.items()
    }
    tensors = {
        tensor: {"dtype": types[tensor].dtype, "shape": table.indices(types[tensor].shape)}
        for tensor in dict.fromkeys((*graph.inputs, *_outputs_of(steps)))
    }
    return {"tensors": tensors, "sizes": table.lines} if all(tensor in tensors for tensor in graph.outputs) else {}


def default_of(graph: Graph, tensor: str) -> dict[str, Any]:
    """Entry of a document for an input that a call may leave out; empty for other tensors."""
    if tensor not in graph.defaults:
        return {}
    array = np.ascontiguousarray(graph.defaults[tensor])
    return {"default": {"shape": list(np.shape(graph.defaults[tensor])), "bytes": array.tobytes().hex()}}


def _kind(graph: Graph, tensor: str) -> dict[str, Any]:
    """Its type, and its shape: a number, the name of a dimension, or None for what follows from others."""
    kind = graph.types[tensor]
    shape = [
        extent if isinstance(extent, int) else str(extent) if getattr(extent, "is_Symbol", False) else None
        for extent in kind.shape
    ]
    return {"dtype": NUMPY_NAMES[kind.dtype], "shape": shape}
