"""The sizes that a model is asked for: spans of dimensions, extents that must agree, lengths computed of sizes.

Extents that a request must make equal: types take them for equal where only the sizes of a request can tell.

Lengths that a model computes at run time from the sizes of a request alone: how large the asked ranges make them.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from haotuner.errors import HaotunerError, UsageError
from haotuner.graph.control_flow import HOST
from haotuner.graph.extents import Extent, canonical, dimensions, evaluate, largest, same, shown
from haotuner.graph.extents import product as elements
from haotuner.graph.extents import text as extent_text
from haotuner.graph.graph import Graph, Node, is_taken
from haotuner.graph.interpret import interpret
from haotuner.graph.recurrent import GATES, operands
from haotuner.graph.typed_extents import never_negative
from haotuner.graph.types import TensorType, dimension_name, multiple_of, numpy_dtype
from haotuner.partition.segments import counts, data_dimensions, origins
from haotuner.spec.shape import ShapeRange, Span


def shape_constraints(graph: Graph, branches: Mapping[str, int] | None = None) -> list[tuple[Extent, Extent]]:
    """Pairs of extents, each once; a request that makes one differ would read outside of a tensor.

    ``branches``: those that are taken so; sides that are not taken may be impossible.
    """
    result: dict[tuple[str, str], tuple[Extent, Extent]] = {}
    for node in graph.nodes:
        if not is_taken(graph.guards.get(node.output, ()), branches or {}):
            continue
        for first, other in _pairs(graph, node):
            if first != 1 and not same(first, other):
                result[(extent_text(first), extent_text(other))] = (first, other)
    return list(result.values())


def demands(graph: Graph, branches: Mapping[str, int] | None = None) -> list[tuple[Extent, Extent]]:
    """``agreements``, and with 1 what requests that take the ``branches`` so are required to make so."""
    required = [(requirement.extent, 1) for requirement in graph.required if is_taken(requirement.guard, branches or {})]
    return [*shape_constraints(graph, branches), *required]


def unmet(pairs: Iterable[tuple[Extent, Extent]], sizes: Mapping[str, int]) -> str:
    """First of ``agreements`` or ``demands`` that a request breaks, in words; empty where all agrees.

    Sizes of the data are not looked at.
    """
    for first, other in pairs:
        if (dimensions(first) | dimensions(other)) <= sizes.keys():
            try:
                result = evaluate(first, sizes), evaluate(other, sizes)
            except UsageError as error:  # a division by 0
                return str(error)
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
        yield elements(shapes[0]), elements(out)


LARGEST = 1 << 16  # elements of a tensor that is computed here; what sizes are made of has a few


def size_lengths(graph: Graph, requests: Sequence[Mapping[str, int]]) -> Iterator[tuple[str, int, int]]:
    """Dimensions that follow from the sizes of these requests and from no data, each with its least and largest value.

    A request that the graph refuses tells nothing.
    """
    nodes = _of_sizes(graph)
    counted = {str(node.attributes["extent"]): node for node in nodes if node.primitive == "counted"}
    if not counted:
        return
    outputs = tuple(node.output for node in counted.values())
    part = replace(graph, nodes=tuple(_needed(nodes, outputs)), outputs=outputs, guards={}, required=())
    values: dict[str, list[int]] = {name: [] for name in counted}
    for sizes in requests:
        if not _small(part, sizes):
            continue
        try:
            results = interpret(part, {name: _zeros(graph.types[name], sizes) for name in graph.inputs})
        except (HaotunerError, ValueError, IndexError, MemoryError):
            continue
        for name, node in counted.items():
            values[name].append(results[node.output].shape[-1])
    yield from ((name, min(every), max(every)) for name, every in values.items() if every)


def _of_sizes(graph: Graph) -> list[Node]:
    """Nodes behind which no input lies, outside of branches, and the lengths that they come to."""
    known = set(graph.constants)
    nodes: list[Node] = []
    for node in graph.nodes:
        host = node.primitive in HOST and node.primitive != "counted"
        if not host and not graph.guards.get(node.output) and known.issuperset(node.inputs):
            known.add(node.output)
            nodes.append(node)
    return nodes


def _needed(nodes: Sequence[Node], outputs: Sequence[str]) -> list[Node]:
    """The nodes that make these tensors, or sizes of tensors that do."""
    tensors, needed = set(outputs), list[Node]()
    for node in reversed(nodes):
        if node.output in tensors or node.primitive == "counted":
            tensors.update(node.inputs)
            needed.append(node)
    return needed[::-1]


def _small(part: Graph, sizes: Mapping[str, int]) -> bool:
    """True if no tensor is large, of those whose shapes the request tells."""
    shapes = (part.types[node.output].shape for node in part.nodes)
    known = (shape for shape in shapes if all(dimensions(extent) <= sizes.keys() for extent in shape))
    return all(prod(evaluate(extent, sizes) for extent in shape) <= LARGEST for shape in known)


def _zeros(kind: TensorType, sizes: Mapping[str, int]) -> Any:
    """An input of which nothing but its shape is read; it has no memory of its own."""
    return np.broadcast_to(np.zeros((), numpy_dtype(kind.dtype)), [evaluate(extent, sizes) for extent in kind.shape])


UNSAID = "dynamic"  # the default of --shapes
DRAWN = 24  # requests drawn of the ranges, beside both ends
OF_SIZES = 512  # requests for which lengths are computed that follow from sizes


def spans_of(graph: Graph, shapes: str) -> dict[str, Span]:
    """The span of every dimension: by name (``batch=1..8``), or by input (``x=1..8x3x48x32..1280``).

    ``dynamic``, what is asked where nobody says anything, tells of no dimension: enough for a model that has none.
    Lengths that follow from sizes of a request, or that count elements of a tensor, need not be said, nor the second of two
    dimensions that the model makes equal.
    """
    inputs = {name: graph.types[name] for name in graph.inputs}
    own, of_data = graph.dimensions, data_dimensions(graph)
    result = ranges_of(inputs, shapes)
    for name, text in parts_of(shapes):
        if name in of_data:
            result[name] = span_of(name, text)
        elif name not in inputs and not any(_says_of(key, name) for key in own):
            near = difflib.get_close_matches(name, (*own, *of_data, *inputs), 1)
            raise UsageError(
                f"--shapes {shapes!r}: the model has the dimensions {', '.join((*own, *of_data)) or 'none'} and the inputs "
                f"{', '.join(f'{name} {kind}' for name, kind in inputs.items())}; there is no {name!r}"
                f"{f', did you mean {near[0]!r}?' if near else ''}"
            )
    for pair in ([str(first), str(second)] for first, second in demands(graph)):  # of two that must be equal one is enough
        for dimension, equal in (pair, pair[::-1]):
            if dimension in result and equal in own:
                result.setdefault(equal, result[dimension])
    if all(name in result for name in own):
        for name, least, most in size_lengths(graph, _many({name: result[name] for name in own})):
            result.setdefault(name, span_of(name, f"{max(least, 1)}..{max(most, 1)}"))
        for name, most in counts(graph, {name: span.last for name, span in result.items()}):
            result.setdefault(name, span_of(name, f"1..{most}"))
    lacking = [name for name in (*own, *of_data) if name not in result]
    unsized = [name for name in lacking if name in of_data]
    if unsized and unsized == lacking:
        raise UsageError(
            f"--shapes {shapes!r}: {', '.join(unsized)} depend{'s' * (len(unsized) == 1)} on data: "
            f"{'; '.join(f'{name} is what {origin} says' for name, origin in origins(graph, unsized))}. "
            f"Say how large it may be, for example {unsized[0]}=1..1000"
        )
    if lacking and shapes == UNSAID:
        raise UsageError(
            f"say with --shapes how large the model's dimensions may be ({', '.join(lacking)}), for example "
            f"{'; '.join(f'{name}=1..8' for name in lacking)}"
        )
    if lacking:
        raise UsageError(f"--shapes {shapes!r} says nothing of {', '.join(lacking)}; write for example {lacking[0]}=1..8")
    return result


def ranges_of(inputs: Mapping[str, TensorType], shapes: str) -> dict[str, Span]:
    """The spans that a text says of dimensions of these inputs.

    A dimension is called by its name, or as the file writes it (``8*h8=8..64:8``). What is said of a name inside of such
    arithmetic (``h8=1..8``) counts for dimensions of which nothing else is said.
    """
    names = {name for kind in inputs.values() for extent in kind.shape for name in dimensions(extent)}
    spans: dict[str, Span] = {}
    for name, sizes in parts_of(shapes):
        called = name if name in names else dimension_name(name)
        if called in names:
            spans[called] = span_of(name, sizes)
        elif name in inputs:
            for extent, text in zip(inputs[name].shape, _axes(name, inputs[name], sizes), strict=True):
                _put(spans, name, extent, span_of(name, text))
    for name, sizes in parts_of(shapes):
        for dimension in names:
            by = multiple_of(dimension, name)
            if by is not None:
                spans.setdefault(dimension, _moved(span_of(name, sizes), *by))
    return spans


def shapes_within(graph: Graph, shapes: str) -> str:
    """The parts of a text of ``--shapes`` that name dimensions or inputs of a graph; ``UNSAID`` where none does."""
    own, of_data = graph.dimensions, data_dimensions(graph)
    selected = [
        f"{name}={text}"
        for name, text in parts_of(shapes)
        if name in graph.inputs or name in of_data or any(_says_of(key, name) for key in own)
    ]
    return ";".join(selected) or UNSAID


def shapes_named(shapes: str) -> set[str]:
    """Names of dimensions and inputs in a text of ``--shapes``."""
    return {name for name, _ in parts_of(shapes)}


def _says_of(dimension: str, name: str) -> bool:
    """True if a name of ``--shapes`` means this dimension, or stands in its text."""
    return dimension in (name, dimension_name(name)) or multiple_of(dimension, name) is not None


def _moved(span: Span, factor: int, summand: int) -> Span:
    """The sizes of a dimension that is the other one times a factor, plus a summand; those from 1 on."""
    every = [size * factor + summand for size in (span.listed or (span.first, span.first + span.step, span.last))]
    if span.listed:
        listed = tuple(size for size in every if size > 0) or (1,)
        return Span(first=listed[0], last=listed[-1], listed=listed)
    first, step = every[0], every[1] - every[0]
    first += step * max(0, -(-(1 - first) // step))
    return Span(first=first, last=max(first, every[2]), step=step)


def parts_of(shapes: str) -> list[tuple[str, str]]:
    """Names in a text of ``--shapes``, each with what is said of it. UsageError where one is there twice."""
    parts = (part.partition("=") for part in shapes.split(";") if part.strip() and shapes != UNSAID)
    result = [(name.strip(), text.strip()) for name, _, text in parts]
    twice = [name for index, (name, _) in enumerate(result) if name in dict(result[:index])]
    if twice:
        raise UsageError(
            f"--shapes {shapes!r} says {twice[0]} twice; write it once, with all of its sizes: {twice[0]}=1,4,8"
        )
    return result


def span_of(name: str, text: str) -> Span:
    """The sizes that a text says of one dimension, whose name may be longer than those of an op's axes."""
    try:
        return dict(ShapeRange.parse(f"e={text}").spans)["e"]
    except UsageError:
        raise UsageError(
            f"--shapes {name}={text}: expected a size, sizes (1,2,6) or a range (1..8; in steps 32..960:32), from 1 on. "
            "Requests with an extent of 0 are served without being named"
        ) from None


def _axes(name: str, kind: TensorType, text: str) -> list[str]:
    parts = text.split("x")
    if len(parts) != kind.rank:
        raise UsageError(f"--shapes {name}={text}: {len(parts)} axes, the model has {kind}")
    return parts


def _put(result: dict[str, Span], name: str, extent: Extent, span: Span) -> None:
    if isinstance(extent, int):
        if (span.first, span.last) != (extent, extent):
            raise UsageError(f"--shapes: input {name} has {extent} where {span} is asked")
    elif result.setdefault(str(extent), span) != span:
        raise UsageError(f"--shapes: {extent} is {result[str(extent)]} in one place and {span} in another")


def _many(spans: Mapping[str, Span]) -> list[dict[str, int]]:
    """Sizes of all requests, or of ``OF_SIZES`` where they are more."""
    if prod(map(len, spans.values())) > OF_SIZES:
        return requests(spans, OF_SIZES)
    each = (span.listed or range(span.first, span.last + 1, span.step) for span in spans.values())
    return [dict(zip(spans, sizes, strict=True)) for sizes in product(*each)]


def requests(spans: Mapping[str, Span], count: int = DRAWN, seed: int = 0) -> list[dict[str, int]]:
    """Sizes of requests: both ends, then log-uniformly drawn ones, always the same."""
    draw = random.Random(seed)
    ends = [{name: span.first for name, span in spans.items()}, {name: span.last for name, span in spans.items()}]
    samples = {name: span.sample(16) for name, span in spans.items()}
    drawn = [{name: draw.choice(values) for name, values in samples.items()} for _ in range(count)] if spans else []
    return [dict(request) for request in dict.fromkeys(tuple(sizes.items()) for sizes in (*ends, *drawn))]
