"""Graphs as text and back: JSON of nodes, in which extents are texts of their own. Types are inferred anew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, is_symbolic, parse, text
from haotuner.graph.graph import Graph, Node
from haotuner.graph.primitives import PRIMITIVES
from haotuner.graph.types import TensorType, numpy_dtype

MOST_NODES = 2_000


def to_document(graph: Graph) -> dict[str, Any]:
    """A graph as JSON can say it. UsageError for constants that are more than one number."""
    return {
        "inputs": [[name, *_type(graph.types[name])] for name in graph.inputs],
        "constants": {name: [graph.types[name].dtype, _number(name, value)] for name, value in graph.constants.items()},
        "nodes": [
            [node.primitive, list(node.inputs), node.output, {k: _coded(v) for k, v in node.attributes.items()}]
            for node in graph.nodes
        ],
        "outputs": list(graph.outputs),
    }


def _type(t: TensorType) -> list[Any]:
    return [t.dtype, *map(text, t.shape)]


def _number(name: str, value: Any) -> Any:
    array = np.asarray(value)
    if array.size != 1:
        raise UsageError(
            f"tensor {name}: a group's constants are single numbers, got {array.dtype}{list(array.shape)}; make it an input"
        )
    return [array.reshape(()).item(), list(array.shape)]


def _coded(value: Any) -> Any:
    if is_symbolic(value):
        return {"extent": text(value)}
    if isinstance(value, (list, tuple)):
        return [_coded(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UsageError(f"an attribute of the type {type(value).__name__} has no text")


def from_document(document: Any) -> Graph:
    """The graph that a document says. UsageError for one that says none."""
    try:
        return _read(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UsageError(f"the definition of a group cannot be read: {type(error).__name__}: {error}") from error


def _read(document: Mapping[str, Any]) -> Graph:
    types = {name: TensorType(tuple(map(parse, shape)), dtype) for name, dtype, *shape in document["inputs"]}
    inputs, constants = tuple(types), {}
    for name, (dtype, (value, shape)) in document["constants"].items():
        constants[name] = np.full(tuple(shape), value, numpy_dtype(dtype))
        types[name] = TensorType(tuple(shape), dtype)
    if len(document["nodes"]) > MOST_NODES:
        raise UsageError(f"a group of {len(document['nodes'])} nodes; at most {MOST_NODES} are read")
    nodes = []
    for primitive, arguments, output, attributes in document["nodes"]:
        known = {key: _decoded(value) for key, value in attributes.items()}
        if primitive not in PRIMITIVES:
            raise UsageError(f"unknown primitive {primitive!r}; known: {', '.join(PRIMITIVES)}")
        if output in types:
            raise UsageError(f"tensor {output!r} is made twice")
        types[output] = PRIMITIVES[primitive].infer([types[item] for item in arguments], known)
        nodes.append(Node(primitive, tuple(arguments), output, known))
    outputs = tuple(document["outputs"])
    if not set(outputs) <= set(types):
        raise UsageError(f"outputs {', '.join(sorted(set(outputs) - set(types)))} are made by no node")
    return Graph(inputs=inputs, outputs=outputs, nodes=tuple(nodes), types=types, constants=constants)


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return parse(value["extent"])
    return tuple(map(_decoded, value)) if isinstance(value, list) else value


def text_of(document: Mapping[str, Any]) -> str:
    """One text for one document."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def extents_in(value: Any) -> list[Extent]:
    """Every extent in an attribute."""
    if isinstance(value, (list, tuple)):
        return [extent for part in value for extent in extents_in(part)]
    return [value] if is_symbolic(value) else []
