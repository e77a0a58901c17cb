"""Extents that a request must make equal: types take them for equal where only the sizes of a request can tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from haotuner.graph.bounds import never_negative
from haotuner.graph.extents import Extent, canonical, dimensions, evaluate, largest, product, same, shown, text
from haotuner.graph.graph import Graph, Node, taken
from haotuner.graph.recurrent import GATES, operands


def shape_constraints(graph: Graph, branches: Mapping[str, int] | None = None) -> list[tuple[Extent, Extent]]:
    """Pairs of extents, each once; a request that makes one differ would read outside of a tensor.

    ``branches``: those that are taken so; sides that are not taken may be impossible.
    """
    result: dict[tuple[str, str], tuple[Extent, Extent]] = {}
    for node in graph.nodes:
        if not taken(graph.guards.get(node.output, ()), branches or {}):
            continue
        for first, other in _pairs(graph, node):
            if first != 1 and not same(first, other):
                result[(text(first), text(other))] = (first, other)
    return list(result.values())


def demands(graph: Graph, branches: Mapping[str, int] | None = None) -> list[tuple[Extent, Extent]]:
    """``agreements``, and with 1 what requests that take the ``branches`` so are required to make so."""
    required = [(requirement.extent, 1) for requirement in graph.required if taken(requirement.guard, branches or {})]
    return [*shape_constraints(graph, branches), *required]


def unmet(pairs: Iterable[tuple[Extent, Extent]], sizes: Mapping[str, int]) -> str:
    """First of ``agreements`` or ``demands`` that a request breaks, in words; empty where all agrees.

    Sizes of the data are not looked at.
    """
    for first, other in pairs:
        if (dimensions(first) | dimensions(other)) <= sizes.keys():
            result = evaluate(first, sizes), evaluate(other, sizes)
            if result[0] != result[1]:
                return f"{shown(first)} = {result[0]} and {shown(other)} = {result[1]}"
    return ""


def _pairs(graph: Graph, node: Node) -> Iterator[tuple[Extent, Extent]]:
    shapes, out = [graph.types[name].shape for name in node.inputs], graph.types[node.output].shape
    if node.primitive in ("map", "broadcast"):
        for shape in shapes:
            yield from zip(shape, out[len(out) - len(shape) :], strict=True)
    elif node.primitive == "contract":
        known: dict[str, Extent] = {}
        for labels, shape in zip(node.attributes["labels"].partition("->")[0].split(","), shapes, strict=True):
            for label, extent in zip(labels, shape, strict=True):
                yield extent, known.setdefault(label, extent)
    elif node.primitive == "concat":
        axis = node.attributes["axis"] % len(out)
        for shape in shapes[1:]:
            yield from (pair for index, pair in enumerate(zip(shape, shapes[0], strict=True)) if index != axis)
    elif node.primitive == "slice":
        for axis, start, stop, step in zip(*(node.attributes[k] for k in ("axes", "starts", "stops", "steps")), strict=True):
            extent, end = shapes[0][axis], stop if step > 0 else start + 1
            if not never_negative(canonical(extent - end)):
                yield largest([end, extent]), extent
    elif node.primitive == "pad" and node.attributes["mode"] == "reflect":
        for extent, *pads in zip(shapes[0], node.attributes["before"], node.attributes["after"], strict=True):
            for pad in (pad for pad in pads if pad != 0 and not never_negative(canonical(extent - pad - 1))):
                yield largest([canonical(pad + 1), extent]), extent
    elif node.primitive == "recurrent":
        own = node.attributes
        required = operands(out[1], GATES[own["kind"]], own["hidden"], of_bytes=bool(own.get("bytes", False)))
        for shape, (_, size) in zip(shapes[1:], required, strict=True):
            yield from (pair if pair[0] != 1 else pair[::-1] for pair in zip(size, shape, strict=True))
    elif node.primitive == "reshape":
        yield product(shapes[0]), product(out)
