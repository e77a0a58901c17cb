"""ONNX's Scan: a loop over the rows of sequences, along any axes and in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from haotuner.errors import UsageError
from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.file import onnx_library
from haotuner.frontends.onnx.layout import transposed
from haotuner.frontends.onnx.loops import LoopReader, body_of_loop, loop_outputs
from haotuner.frontends.onnx.node_context import NodeContext
from haotuner.graph.extents import canonical

if TYPE_CHECKING:
    from haotuner.frontends.onnx.read import Reader

_AXES = "scan_input_axes"  # which Scan has from opset 9 on


def scan_results(
    reader: Reader, node: Any, inputs: Sequence[str | None], names: Mapping[str, str], opset: int, depth: int
) -> list[str]:
    """Results of a Scan: every axis, both directions."""
    g, attributes = (
        reader.g,
        {attribute.name: reader._attribute(attribute) for attribute in node.attribute if not attribute.HasField("g")},
    )
    arguments = [operand for operand in inputs if operand is not None]
    count = int(attributes.get("num_scan_inputs", 0))
    if opset < 9 and _AXES not in attributes:
        node, inputs = _of_a_batch(node, inputs, count), inputs[1:]
        return scan_results(reader, node, inputs, names, opset, depth)
    if not 1 <= count <= len(arguments) or len(arguments) != len(inputs):
        raise UsageError(f"{count} of its {len(arguments)} inputs are told to be scanned")
    states, scanned = arguments[: len(arguments) - count], arguments[len(arguments) - count :]
    body = body_of_loop(node)
    made = len(body.output) - len(states)
    rows = []
    for item, axis, back in zip(scanned, *_ways(attributes, "input", count), strict=True):
        rows.append(_reversed(g, _first(g, item, axis), back))
    result = loop_outputs(LoopReader(reader, body, names, opset, depth, states, rows, False))
    ends = result[len(states) :]
    for index, (axis, back) in enumerate(zip(*_ways(attributes, "output", made), strict=True)):
        ends[index] = _last(g, _reversed(g, ends[index], back), axis)
    return [*result[: len(states)], *ends]


def _of_a_batch(node: Any, inputs: Sequence[str | None], count: int) -> Any:
    """A Scan of opset 8, a sequence an element of a batch, as one of opset 9 that goes through the batch with another."""
    if inputs[0] is not None:
        raise UsageError("sequences of different lengths (sequence_lens) are not read; leave that input out")
    make = onnx_library().helper
    body, back = body_of_loop(node), [list(attribute.ints) for attribute in node.attribute if attribute.name == "directions"]
    arguments, made = ([f"{end}_of_one_{index}" for index in range(len(kind) - 1 + (end == "out"))]
                   for end, kind in (("in", inputs), ("out", node.output)))  # fmt: skip
    directions = {"scan_input_directions": back[0]} if back else {}
    item = make.make_node("Scan", arguments, made, body=body, num_scan_inputs=count, **{_AXES: [0] * count}, **directions)
    ends = ([make.make_tensor_value_info(name, 1, None) for name in names] for names in (arguments, made))
    whole = make.make_graph([item], "one", *ends)
    return make.make_node(
        "Scan", arguments, list(node.output), body=whole, num_scan_inputs=len(arguments), **{_AXES: [0] * len(arguments)}
    )


def _ways(attributes: Mapping[str, Any], end: str, count: int) -> tuple[list[int], list[bool]]:
    axes, directions = (list(attributes.get(f"scan_{end}_{what}", [0] * count)) for what in ("axes", "directions"))
    if len(axes) != count or len(directions) != count:
        raise UsageError(f"scan_{end}_axes and scan_{end}_directions tell of {len(axes)} and {len(directions)} of {count}")
    return axes, [bool(direction) for direction in directions]


def _first(g: ConstantFolding, x: str, axis: int) -> str:
    """The axis moved to the front."""
    c, rank = NodeContext(g, "Scan", (x,), {}, 9, 1), g.types[x].rank
    axis = c.axis(axis)
    return transposed(c, x, [axis, *(index for index in range(rank) if index != axis)])


def _last(g: ConstantFolding, x: str, axis: int) -> str:
    """The first axis moved to its place."""
    c, rank = NodeContext(g, "Scan", (x,), {}, 9, 1), g.types[x].rank
    order = list(range(1, rank))
    order.insert(c.axis(axis), 0)
    return transposed(c, x, order)


def _reversed(g: ConstantFolding, x: str, back: bool) -> str:
    if not back:
        return x
    return g.add("slice", x, axes=(0,), starts=(canonical(g.types[x].shape[0] - 1),), stops=(-1,), steps=(-1,))
