"""Graphs in halves, computed in fp32: what a CPU without kernels for fp16 and bf16 does best.

Inputs and outputs keep their types. What lies between is not rounded any more, so results are nearer to the exact ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from haotuner.graph.error_bounds import unhalved
from haotuner.graph.graph import Graph, Node, bodies
from haotuner.graph.types import HALVES


def _halves(graph: Graph) -> set[str]:
    return {name for name, kind in graph.types.items() if kind.dtype in HALVES}


def _computes_halves(graph: Graph) -> bool:
    halves = _halves(graph)
    return any(node.primitive != "cast" and halves.intersection((*node.inputs, node.output)) for node in graph.nodes)


def _within(attributes: Mapping[str, Any], called: Mapping[str, str]) -> Mapping[str, Any]:
    """Attributes of a node; a loop's body reads what lies outside of it by its name."""
    body = attributes.get("body")
    return {**attributes, "body": body.renamed(lambda name: called.get(name, name))} if body is not None else attributes


def fp16_to_fp32(graph: Graph) -> Graph:
    """The graph with fp32 for fp16 and bf16; itself where it computes none, or hands out what it is given."""
    halves = _halves(graph)
    given_out = halves & set(graph.outputs) & {*graph.constants, *graph.inputs}
    if given_out or not any(map(_computes_halves, (graph, *(body.graph for body in bodies(graph))))):
        return graph
    plain = unhalved(graph)
    types, guards, nodes, called = dict(plain.types), dict(plain.guards), list[Node](), dict[str, str]()
    for name in halves & {*graph.inputs, *graph.outputs}:
        called[name] = f"{name} as fp32"
        types[called[name]], types[name] = plain.types[name], graph.types[name]
        if name in guards:
            guards[called[name]] = guards[name]
    nodes += [Node("cast", (tensor,), called[tensor], {"dtype": "fp32"}) for tensor in graph.inputs if tensor in called]
    for node in plain.nodes:
        reads = tuple(called.get(tensor, tensor) for tensor in node.inputs)
        made = called.get(node.output, node.output)
        if node.primitive == "cast" and types[reads[0]].dtype == types[made].dtype and node.output not in graph.outputs:
            called[node.output] = reads[0]  # a cast between halves and fp32
            del types[node.output]
            guards.pop(node.output, None)
        else:
            nodes.append(replace(node, inputs=reads, output=made, attributes=_within(node.attributes, called)))
    ends = [tensor for tensor in dict.fromkeys(graph.outputs) if tensor in halves]
    nodes += [Node("cast", (called[end],), end, {"dtype": graph.types[end].dtype}) for end in ends]
    return replace(plain, nodes=tuple(nodes), types=types, guards=guards)
