"""Inputs of a graph that choose rows, through whatever moves them on the way: what a drawn request may hold follows."""

from __future__ import annotations

from collections.abc import Iterator

from haotuner.graph.extents import Extent
from haotuner.graph.graph import Graph

_MOVES = frozenset({"broadcast", "cast", "concat", "pad", "reshape", "slice", "transpose", "window"})


def index_sources(graph: Graph) -> dict[str, list[Extent]]:
    """Of each input of whole numbers that gathers or scatters read as indices: how many rows each of these chooses from."""
    made = {node.output: node for node in graph.nodes}
    result: dict[str, dict[Extent, None]] = {}
    for node in graph.nodes:
        if node.primitive not in ("gather", "scatter"):
            continue
        extent = graph.types[node.inputs[0]].shape[node.attributes.get("axis", 0)]
        waiting, seen = [node.inputs[1]], set[str]()
        while waiting:
            tensor = waiting.pop()
            if tensor in seen:
                continue
            seen.add(tensor)
            if tensor in graph.inputs and "int" in graph.types[tensor].dtype:
                result.setdefault(tensor, {})[extent] = None
            elif tensor in made:
                waiting.extend(_moved(made[tensor].primitive, made[tensor].inputs, made[tensor].attributes.get("function")))
    return {name: list(extents) for name, extents in result.items()}


def _moved(primitive: str, inputs: tuple[str, ...], function: str | None) -> Iterator[str]:
    """The tensors whose elements a result holds as they are."""
    if primitive in _MOVES:
        yield from inputs
    elif primitive == "gather":
        yield inputs[0]
    elif primitive == "scatter":
        yield from (inputs[0], inputs[2])
    elif primitive == "map" and function == "select":
        yield from inputs[1:]
