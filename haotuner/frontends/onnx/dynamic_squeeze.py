"""Squeeze that names no axes: it drops those of one element, and which these are a request may decide.

Each such axis becomes an If: where its extent is 1 the axis goes, else it stays. The asked ranges mostly settle that, and
where ranks differ what follows is read once for each side (``branches.py``). Extents that data tell are taken for more.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import numpy as np

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.file import onnx_library
from haotuner.frontends.onnx.table import MAIN
from haotuner.graph.extents import dimensions

AXES_ARE_AN_INPUT = 13  # from this version of the operators


def by_sizes(g: ConstantFolding, node: Any, names: MutableMapping[str, str], opset: int) -> list[Any]:
    """Nodes in place of a Squeeze, the last axis first, whose numbers then stay; none where no request decides.

    ``names``: gets conditions and axes.
    """
    if node.op_type != "Squeeze" or node.domain not in MAIN or not node.output or not set(node.input[:1]) & names.keys():
        return []
    if any(attribute.name == "axes" for attribute in node.attribute) or any(node.input[1:]):
        return []
    shape = g.types[names[node.input[0]]].shape
    requested = {name for operand in g.inputs for extent in g.types[operand].shape for name in dimensions(extent)}
    decided = [index for index, extent in enumerate(shape) if dimensions(extent) and dimensions(extent) <= requested]
    if not decided:
        return []
    y, helper = node.output[0], onnx_library().helper
    chosen = sorted({*decided, *(index for index, extent in enumerate(shape) if extent == 1)}, reverse=True)
    results = [*(f"{y} without axis {position}" for position in chosen[:-1]), y]
    output: list[Any] = []
    for position, x, result in zip(chosen, [node.input[0], *results], results, strict=False):
        if position not in decided:
            output.append(_without(x, result, position, names, g, opset))
            continue
        condition = f"{y}: axis {position} is 1"
        names[condition] = g.map("equal", g.of_extents([shape[position]], "int64"), 1)
        sides = {
            "then_branch": _side(_without(x, f"{result}, less", position, names, g, opset)),
            "else_branch": _side(helper.make_node("Identity", [x], [f"{result}, kept"])),
        }
        output.append(helper.make_node("If", [condition], [result], name=f"{node.name or y} (Squeeze)", **sides))
    return output


def _without(x: str, result: str, index: int, names: MutableMapping[str, str], g: ConstantFolding, opset: int) -> Any:
    helper = onnx_library().helper
    if opset < AXES_ARE_AN_INPUT:
        return helper.make_node("Squeeze", [x], [result], axes=[index])
    axis = f"{result}: axis"
    names[axis] = g.constant(np.array([index], np.int64))
    return helper.make_node("Squeeze", [x, axis], [result])


def _side(node: Any) -> Any:
    return onnx_library().helper.make_graph([node], "side", [], [onnx_library().ValueInfoProto(name=node.output[0])])
