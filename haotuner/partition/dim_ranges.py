"""The sizes that a model is asked for: the span of each dimension, and the requests that stand for all of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product
from math import prod

from haotuner.errors import UsageError
from haotuner.graph.dimension_names import dimension_name, multiple_of
from haotuner.graph.extents import Extent, dimensions
from haotuner.graph.graph import Graph
from haotuner.graph.types import TensorType
from haotuner.partition.segments import counts, data_dimensions, origins
from haotuner.partition.shape_constraints import demands
from haotuner.partition.size_lengths import size_lengths
from haotuner.spec.shape import ShapeRange, Span

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
    for name, text in _parts(shapes):
        if name in of_data:
            result[name] = _span(name, text)
        elif name not in inputs and not any(_says_of(key, name) for key in own):
            raise UsageError(
                f"--shapes {shapes!r}: the model has the dimensions {', '.join((*own, *of_data)) or 'none'} and the inputs "
                f"{', '.join(f'{name} {kind}' for name, kind in inputs.items())}; there is no {name!r}"
            )
    for pair in ([str(one), str(other)] for one, other in demands(graph)):  # of two that must be equal one is enough
        for dimension, equal in (pair, pair[::-1]):
            if dimension in result and equal in own:
                result.setdefault(equal, result[dimension])
    if all(name in result for name in own):
        for name, least, most in size_lengths(graph, _many({name: result[name] for name in own})):
            result.setdefault(name, _span(name, f"{max(least, 1)}..{max(most, 1)}"))
        for name, most in counts(graph, {name: span.last for name, span in result.items()}):
            result.setdefault(name, _span(name, f"1..{most}"))
    lacking = [name for name in (*own, *of_data) if name not in result]
    unsized = [name for name in lacking if name in of_data]
    if unsized and unsized == lacking:
        raise UsageError(
            f"--shapes {shapes!r}: {', '.join(unsized)} depend{'s' * (len(unsized) == 1)} on data: "
            f"{'; '.join(f'{one} is what {origin} says' for one, origin in origins(graph, unsized))}. "
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
    for name, sizes in _parts(shapes):
        called = name if name in names else dimension_name(name)
        if called in names:
            spans[called] = _span(name, sizes)
        elif name in inputs:
            for extent, text in zip(inputs[name].shape, _axes(name, inputs[name], sizes), strict=True):
                _put(spans, name, extent, _span(name, text))
    for name, sizes in _parts(shapes):
        for dimension in names:
            by = multiple_of(dimension, name)
            if by is not None:
                spans.setdefault(dimension, _moved(_span(name, sizes), *by))
    return spans


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


def _parts(shapes: str) -> list[tuple[str, str]]:
    parts = (part.partition("=") for part in shapes.split(";") if shapes != UNSAID)
    return [(name.strip(), text.strip()) for name, _, text in parts]


def _span(name: str, text: str) -> Span:
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
    each = (one.listed or range(one.first, one.last + 1, one.step) for one in spans.values())
    return [dict(zip(spans, sizes, strict=True)) for sizes in product(*each)]


def requests(spans: Mapping[str, Span], count: int = DRAWN, seed: int = 0) -> list[dict[str, int]]:
    """Sizes of requests: both ends, then log-uniformly drawn ones, always the same."""
    draw = random.Random(seed)
    ends = [{name: span.first for name, span in spans.items()}, {name: span.last for name, span in spans.items()}]
    samples = {name: span.sample(16) for name, span in spans.items()}
    drawn = [{name: draw.choice(values) for name, values in samples.items()} for _ in range(count)] if spans else []
    return [dict(request) for request in dict.fromkeys(tuple(sizes.items()) for sizes in (*ends, *drawn))]
