"""Structural hash of windows, equal but for tensors' names: a model's layers. What is found of one holds for all."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.graph.extents import is_symbolic, text
from haotuner.graph.graph import Graph, Node


def structural_hash(graph: Graph, made: Mapping[str, Node], nodes: Sequence[str], required: Collection[str]) -> Hashable:
    """Hash of a window, its tensors by their places; equal where the same kernels may be made at the same prices.

    ``nodes`` in the graph's order; ``required``: what lies in memory. Of what comes from outside types count, and values of
    whole numbers; real ones, such as scales of bytes, are any: no kernel takes longer for its scale.
    """
    inside = {name: index for index, name in enumerate(nodes)}
    outside: dict[str, int] = {}
    result: list[Hashable] = []
    for name in nodes:
        reads: list[Hashable] = []
        for operand in made[name].inputs:
            if operand in inside:
                reads.append(inside[operand])
                continue
            value = graph.constants.get(operand)
            if value is not None and value.size == 1 and value.dtype.kind == "f":
                reads.append(str(graph.types[operand]))
                continue
            scalar = None if value is None or value.size != 1 else _frozen(value)
            reads.append((outside.setdefault(operand, len(outside)), str(graph.types[operand]), scalar))
        attributes = tuple(sorted((key, _frozen(value)) for key, value in made[name].attributes.items()))
        result.append((made[name].primitive, attributes, str(graph.types[name]), name in required, tuple(reads)))
    return tuple(result)


def _frozen(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_frozen, value))})"
    if is_symbolic(value):
        return text(value)
    return f"{type(value).__name__} {value!s}" if not isinstance(value, (int, float)) else repr(value)
