"""A kind of operator made of a graph: its axes are the dimensions, its operands the inputs and the output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.error_bounds import EPS, bounded, wide
from haotuner.graph.extents import Extent, dimensions, parse, product, text
from haotuner.graph.graph import Graph
from haotuner.graph.serialize import from_document
from haotuner.ops.arithmetic import arithmetic_of
from haotuner.ops.groups import GROUPS, PREFIX, definition_of, digest_of, learn
from haotuner.ops.kind import Arrays, AxisRole, Operand, OpKind, plain

ELEMENTS = ("fp32", "int32")  # types of a group's tensors


def learned(definition: str) -> OpKind:
    """The kind of a definition, known by its name from here on. UsageError for a text that defines none."""
    try:
        document = json.loads(definition)
        name = f"{PREFIX}_{document['name']}_{digest_of(definition)}"
        spatial = frozenset(document["spatial"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"the definition of a group cannot be read: {error}") from error
    return GROUPS.get(name) or learn(kind_of(name, from_document(document["graph"]), spatial), definition)


@cache
def graph_named(name: str) -> Graph:
    """The graph of a kind that was learned."""
    return from_document(json.loads(definition_of(name))["graph"])


def dims_of(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Names of the axes of each input and of the output: the dimension's own, or one for each number and derived extent.

    UsageError for an input whose extent is more than a name or a number, or has one dimension twice.
    """
    result: dict[str, tuple[str, ...]] = {}
    for tensor in (*graph.inputs, *graph.outputs):
        own: list[str] = []
        for extent in graph.types[tensor].shape:
            required = _axis_of(tensor, extent, own, inner=tensor in graph.inputs)
            own.append(required)
        result[tensor] = tuple(own)
    return result


def _axis_of(tensor: str, extent: Extent, before: list[str], *, inner: bool) -> str:
    if isinstance(extent, int):
        stem = f"d{extent}"
        return next(name for name in (stem, *(f"{stem}x{more}" for more in range(2, 99))) if name not in before)
    if getattr(extent, "is_Symbol", False) and str(extent) not in before:
        return str(extent)
    if inner:
        why = "has the dimension twice" if getattr(extent, "is_Symbol", False) else "is no dimension's name"
        raise UsageError(f"input {tensor}: the extent {text(extent)} {why}; give the axis a name of its own in the file")
    return f"y{len(before)}"


def kind_of(name: str, graph: Graph, spatial: frozenset[str]) -> OpKind:
    """The kind of a graph; ``spatial``: axes along which parts can be had by calls of their own.

    Of several outputs the first is the kind's, the others are written beside it.
    """
    out, *others = graph.outputs
    dims = dims_of(graph)
    static: dict[str, int] = {}
    derived: dict[str, str] = {}
    for tensor, own in dims.items():
        for axis, extent in zip(own, graph.types[tensor].shape, strict=True):
            if isinstance(extent, int):
                static[axis] = extent
            elif str(extent) != axis:
                derived[axis] = text(extent)
    order = [axis for tensor in (*graph.outputs, *graph.inputs) for axis in dims[tensor] if axis not in derived]
    axes: dict[str, AxisRole] = {axis: "spatial" if axis in spatial else "reduction" for axis in order}
    free = [axis for axis in axes if axis not in static]
    made = {axis for tensor in graph.inputs for axis in dims[tensor]}
    lost = set(graph.dimensions) | {name for item in derived.values() for name in dimensions(parse(item))}
    if not free or lost - made or {axis for axis in dims[out] if axis in free} - made:
        raise UsageError(f"{name}: at least one dimension must be a name, and each must be one of an input's")
    operands: list[Operand] = [plain(tensor, "input", *dims[tensor], dtype=_typed(graph, tensor)) for tensor in graph.inputs]
    operands += [plain(item, "beside", *dims[item], dtype=_typed(graph, item)) for item in others]
    operands.append(plain(out, "output", *dims[out], dtype=_typed(graph, out)))
    exact = wide(graph)
    return OpKind(
        name=name,
        meaning="a group of primitives from a file",
        axes=axes,
        operands=tuple(operands),
        flops=lambda e: _flops(graph, e),
        tolerance=lambda inputs, options: _bounds(exact, inputs, out)[1] / EPS,
        reference=lambda inputs, options: _bounds(exact, inputs, out)[0],
        draw=_drawn,
        derived={axis: _derived(formula) for axis, formula in derived.items()},
        formulas=derived,
        extents={axis: static[axis] for axis in axes if axis in static},
        example=f"{PREFIX}:FILE.onnx",
        beside={item: _beside(exact, item) for item in others},
    )


def _beside(graph: Graph, tensor: str) -> Any:
    def found(inputs: Arrays) -> tuple[Any, Any]:
        value, error = _bounds(graph, inputs, tensor)
        return value, error / EPS

    return found


def _derived(message: str) -> Any:
    of = arithmetic_of(message)
    return lambda extents, options: of(extents)


def _typed(graph: Graph, tensor: str) -> str:
    t = graph.types[tensor]
    if t.dtype not in ELEMENTS:
        raise UsageError(f"tensor {tensor} is {t}; a group's inputs and outputs are {' or '.join(ELEMENTS)}: cast it")
    if not t.rank:
        raise UsageError(f"tensor {tensor} has no axes; give it one of extent 1")
    return t.dtype


def _bounds(graph: Graph, inputs: Arrays, output: str) -> tuple[Any, Any]:
    arrays = {
        name: np.asarray(inputs[name]).astype(np.int32 if graph.types[name].dtype == "int32" else np.float64)
        for name in graph.inputs
    }
    return bounded(graph, arrays)[output]


def _drawn(rng: np.random.Generator, operand: Operand, shape: tuple[int, ...]) -> Any:
    """Normal numbers; whole ones are places that every axis has: the first and, counted from the end, the last."""
    if operand.dtype == "int32":
        return rng.integers(-1, 1, shape)
    return rng.standard_normal(shape, dtype=np.float32)


def _flops(graph: Graph, extents: Mapping[str, Any]) -> Any:
    """One operation for each element that is computed, and for each that is folded."""
    points: Counter[Extent] = Counter()
    for node in graph.nodes:
        if node.primitive in ("map", "cast"):
            points[product(graph.types[node.output].shape)] += 1
        elif node.primitive in ("reduce", "arg_reduce"):
            points[product(graph.types[node.inputs[0]].shape)] += 1
        elif node.primitive == "contract":
            inputs, _, _ = node.attributes["labels"].partition("->")
            every = dict(
                pair
                for own, tensor in zip(inputs.split(","), node.inputs, strict=True)
                for pair in zip(own, graph.types[tensor].shape, strict=True)
            )
            points[product(every.values())] += 2
    total = 1  # moving has no operations, and a share of none would be of nothing
    for extent, times in points.items():
        total = total + times * arithmetic_of(text(extent))(extents)
    return total
