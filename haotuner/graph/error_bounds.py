"""Error bounds of a graph's results by running error analysis, and tolerances of a served model's answers.

Error bounds of a graph's results: running error analysis (Higham, Accuracy and Stability, section 3.3), step by step.

Beside each value goes a bound of its error. An element-wise step is evaluated at the ends of what its operands may be; a
reduction adds the rounding of a sum in any order; what only moves elements moves their bounds. Bounds are of first order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from haotuner.errors import HaotunerError
from haotuner.graph.extents import evaluate
from haotuner.graph.graph import Body, Graph, Node
from haotuner.graph.interpret import interpret
from haotuner.graph.primitives import PRIMITIVES, Sizes
from haotuner.graph.types import FLOATS, HALVES, TensorType, numpy_dtype
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.formula import COMPARISONS
from haotuner.ops.kind import sum_rounding

EPS = 2.0**-23
ULPS = 4.0  # of one element-wise step; vector math is within 3
LEAST = 2.0**-100  # numbers this small may be flushed
EXACT = frozenset({"max", "min", "neg", "abs", "sign", "floor", "ceil", "round", "select", *COMPARISONS})
Array: TypeAlias = Any


def wide(graph: Graph) -> Graph:
    """Copy of a graph in float64."""
    return _in_type(graph, ("fp32",), "fp64")


def unhalved(graph: Graph) -> Graph:
    """Copy of a graph with fp32 for what is fp16 or bf16."""
    return _in_type(graph, HALVES, "fp32")


def _in_type(graph: Graph, dtypes: Collection[str], other: str) -> Graph:
    """Copy of a graph with another type for what is of some types, in bodies of loops, too."""

    def told(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        body = attributes.get("body")
        if isinstance(body, Body):
            return {**attributes, "body": replace(body, graph=_in_type(body.graph, dtypes, other))}
        return {**attributes, "dtype": other} if attributes.get("dtype") in dtypes else attributes

    nodes = tuple(replace(node, attributes=told(node.attributes)) for node in graph.nodes)
    types = {name: TensorType(t.shape, other) if t.dtype in dtypes else t for name, t in graph.types.items()}
    constants = {name: value.astype(numpy_dtype(other)) if graph.types[name].dtype in dtypes else value
                 for name, value in graph.constants.items()}  # fmt: skip
    return replace(graph, nodes=nodes, types=types, constants=constants)


def rounded_apart(graph: Graph, by: float) -> Graph:
    """Copy of a graph whose fp32 numbers are moved by ``by`` before they are rounded to whole ones."""
    nodes: list[Node] = []
    types, constants, guards = dict(graph.types), dict(graph.constants), dict(graph.guards)
    moved = f"moved by {by}"
    for node in graph.nodes:
        kind = types[node.output]
        if node.primitive == "map" and node.attributes["function"] == "round" and kind.dtype == "fp32":
            types[moved], constants[moved] = TensorType((), "fp32"), np.float32(by)
            types[f"{node.output} moved"] = kind
            guards[f"{node.output} moved"] = guards.get(node.output, ())
            nodes.append(Node("map", (node.inputs[0], moved), f"{node.output} moved", {"function": "add"}))
            node = replace(node, inputs=(f"{node.output} moved",))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), types=types, constants=constants, guards=guards)


def bounded(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
    """Each output with a bound of its error, from exact inputs in float64; ``graph`` as ``wide`` gives it.

    The bound is infinite where a decision, such as a comparison or the place of a maximum, hangs on rounding.
    """
    known = graph.sizes(inputs)
    values: dict[str, tuple[Array, Array]] = {
        name: (np.asarray(value), np.zeros(np.shape(value))) for name, value in (*graph.constants.items(), *inputs.items())
    }
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            arguments = [values[name] for name in node.inputs]
            values[node.output] = _step(node, arguments, lambda extent: evaluate(extent, known))
    return {name: values[name] for name in graph.outputs}


def _step(node: Node, inputs: list[tuple[Array, Array]], sizes: Sizes) -> tuple[Array, Array]:
    compute, attributes = PRIMITIVES[node.primitive].compute, node.attributes
    plain = [value for value, _ in inputs]
    result = np.asarray(compute(plain, attributes, sizes))
    if node.primitive == "map":
        off = _map(node, inputs, result, sizes)
    elif node.primitive == "cast":
        off = _ends(node, inputs, result, sizes)
        off = off + EPS * np.abs(result) if result.dtype.kind == "f" else off
    elif node.primitive == "bitcast":  # the last bit of a number may be any part of another
        off = np.where(inputs[0][1] > 0, np.inf, 0.0)
    elif node.primitive == "reduce":
        off = _reduce(node, inputs[0], result, sizes)
    elif node.primitive == "arg_reduce":
        off = _arg(node, inputs[0], result)
    elif node.primitive == "contract":
        off = _contract(node, inputs, sizes)
    elif PRIMITIVES[node.primitive].moves:
        errors = [plain[1] if node.primitive == "gather" and index else error for index, (_, error) in enumerate(inputs)]
        off = np.asarray(compute(errors, {**attributes, "value": 0.0} if "value" in attributes else attributes, sizes))
    else:
        off = np.zeros(result.shape)
    return result, np.where(np.isnan(off), np.inf, off) if np.isnan(off).any() else off


def _ends(node: Node, inputs: list[tuple[Array, Array]], result: Array, sizes: Sizes) -> Array:
    """Distance that the result moves when each operand moves to either end of what it may be, added up."""
    compute, off = PRIMITIVES[node.primitive].compute, np.zeros(result.shape)
    for index, (value, error) in enumerate(inputs):
        if value.dtype.kind == "b" or not error.any():
            continue
        worst = np.zeros(result.shape)
        for sign in (-1.0, 1.0):
            moved = [item for item, _ in inputs]
            moved[index] = (value + sign * error).astype(value.dtype)
            there = np.asarray(compute(moved, node.attributes, sizes))
            same = (there == result) | (np.isnan(there) & np.isnan(result)) if result.dtype.kind == "f" else there == result
            gap = np.where(same, 0.0, np.abs(there.astype(np.float64) - result.astype(np.float64)))
            worst = np.fmax(worst, np.where(np.isnan(gap), np.inf, gap))
        off = off + worst
    return off


def _map(node: Node, inputs: list[tuple[Array, Array]], result: Array, sizes: Sizes) -> Array:
    function = node.attributes["function"]
    if function in ("isnan", "isinf"):
        return np.zeros(result.shape)
    if function in COMPARISONS:
        (item, first), (other, second) = (*inputs, *inputs)[:2]
        if item.dtype.kind == "b":
            return np.where(np.broadcast_to(first + second, result.shape) > 0, np.inf, 0.0)
        near = np.abs(item.astype(np.float64) - other.astype(np.float64)) <= first + second
        return np.where(near & (first + second > 0), np.inf, 0.0)
    off = _ends(node, inputs, result, sizes)
    if function == "select":
        (_, unsure), (item, first), (other, second) = inputs
        gap = np.abs(item.astype(np.float64) - other.astype(np.float64)) + first + second
        off = off + np.where(np.broadcast_to(unsure, result.shape) > 0, gap, 0.0)
    if result.dtype.kind == "f" and function not in EXACT:
        size = np.abs(result) if function not in ("sin", "cos", "pow") else np.maximum(np.abs(result), 1.0)
        off = off + ULPS * EPS * np.where(np.isfinite(size), size, 0.0) + LEAST
    return off


def _reduce(node: Node, inputs: tuple[Array, Array], result: Array, sizes: Sizes) -> Array:
    value, error = inputs
    axes = tuple(axis % value.ndim for axis in node.attributes["axes"])
    keepdims = {"axis": axes, "keepdims": node.attributes.get("keepdims", False)}
    how, depth = node.attributes["how"], int(np.prod([value.shape[axis] for axis in axes]))
    if value.dtype.kind != "f" and not error.any():
        return np.zeros(result.shape)
    size = np.abs(value.astype(np.float64))
    if how == "sum":
        return np.asarray(error.sum(**keepdims) + sum_rounding(depth) * EPS * size.sum(**keepdims) + LEAST)
    if how == "prod":
        most = (size + error).prod(**keepdims) - size.prod(**keepdims)
        return np.asarray(most + 2.0 * depth * EPS * np.abs(result) + LEAST)
    return np.asarray(error.max(initial=0.0, **keepdims))


def _arg(node: Node, inputs: tuple[Array, Array], result: Array) -> Array:
    value, error = inputs
    axis, sign = node.attributes["axis"] % value.ndim, 1.0 if node.attributes["how"] == "max" else -1.0
    if not error.any():
        return np.zeros(result.shape)
    least = (sign * value - error).max(axis=axis, keepdims=True)
    several = (sign * value + error >= least).sum(axis=axis, keepdims=node.attributes.get("keepdims", False)) > 1
    return np.where(several, np.inf, 0.0)


def _contract(node: Node, arguments: list[tuple[Array, Array]], sizes: Sizes) -> Array:
    def product(arrays: list[Array]) -> Array:
        return np.asarray(PRIMITIVES["contract"].compute(arrays, node.attributes, sizes))

    sizes_of = [np.abs(value).astype(np.float64) for value, _ in arguments]
    inputs, _, output = node.attributes["labels"].partition("->")
    extents = {
        label: extent
        for own, (value, _) in zip(inputs.split(","), arguments, strict=True)
        for label, extent in zip(own, value.shape, strict=True)
    }
    depth = int(np.prod([extent for label, extent in extents.items() if label not in output]))
    off = sum_rounding(max(depth, 1)) * EPS * product(sizes_of) + LEAST
    for index, (_, error) in enumerate(arguments):
        moved = [size if at < index else size + e for at, (size, (_, e)) in enumerate(zip(sizes_of, arguments, strict=True))]
        moved[index] = error.astype(np.float64)
        off = off + product(moved)
    return off


TOLERANCE = 1e-3  # of the largest result: fp32 sums in other orders, through some hundred steps
# Of models that round to 16 bits after every step: what sums in other orders and later layers make of one.
ULPS_OF_HALVES = 4
# Of models that round to bytes: a sum between two bytes may become the other one, of a signed range 1/127 of the largest;
# layers behind it may make two of it, and many layers more: see ``tolerance_of``.
TOLERANCE_OF_BYTES = 2e-2
MOST_OF_BYTES = 0.25  # wrong kernels are further away
MOVED = 2.0**-9  # of a step: one byte of 500 becomes another one
SEED = 0  # of random numbers in a checked model


def tolerance_of(graph: Graph, inputs: Mapping[str, Any], branches: Mapping[str, int] | None = None) -> float:
    """Tolerance of answers to a request, as a share of the largest; ``branches`` taken so.

    Of models that round to bytes: as far as other roundings of one byte in 500 take the reference itself. Of those that
    compute in 16 bits, or answer in them: some of their units.
    """
    ends = {node.output for node in graph.nodes if node.primitive != "cast"} | set(graph.outputs)
    halves = [DTYPES[kind.dtype].eps for name, kind in graph.types.items() if name in ends and kind.dtype in HALVES]
    rounds = any(
        node.primitive == "cast"
        and node.attributes["dtype"] in ("int8", "uint8")
        and graph.types[node.inputs[0]].dtype in FLOATS
        for node in graph.nodes
    )
    least = max([TOLERANCE, *(ULPS_OF_HALVES * eps for eps in halves)])
    if not rounds:
        return least
    plain, moved = (interpret(variant, inputs, SEED, (), branches) for variant in (graph, rounded_apart(graph, MOVED)))
    far = [difference(moved[output], plain[output]) for output in graph.outputs]
    return min(max([TOLERANCE_OF_BYTES, least, *(distance for distance in far if np.isfinite(distance))]), MOST_OF_BYTES)


def difference(answer: Any, reference: Any) -> float:
    """The largest error over the largest number that was expected; infinite where shapes, infinities or NaNs differ."""
    if answer.shape != reference.shape:
        return float("inf")
    left, right = np.asarray(answer, np.float64), np.asarray(reference, np.float64)
    finite = np.isfinite(left) & np.isfinite(right)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return float("inf")
    left, right = left[finite], right[finite]
    return float(np.max(np.abs(left - right), initial=0) / max(1.0, np.max(np.abs(right), initial=0)))


def in_double(
    graph: Graph, inputs: Mapping[str, Any], branches: Mapping[str, int], keep: Collection[str]
) -> Mapping[str, Any]:
    """Outputs and tensors to ``keep``, by name, each step in float64; none where those steps have no answer."""
    widened = wide(graph)
    inputs = {name: np.asarray(value).astype(numpy_dtype(widened.types[name].dtype)) for name, value in inputs.items()}
    try:
        return interpret(widened, inputs, SEED, keep, branches)
    except (HaotunerError, ValueError, IndexError):
        return {}
