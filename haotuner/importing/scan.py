"""ONNX's Scan: a loop over the rows of sequences, along any axes and in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from haotuner.errors import UsageError
from haotuner.graph.extents import canonical
from haotuner.importing.constant_folding import ConstantFolding
from haotuner.importing.file import onnx_library
from haotuner.importing.layout import transposed
from haotuner.importing.loops import LoopReader, body_of_loop, loop_outputs
from haotuner.importing.node_context import NodeContext

if TYPE_CHECKING:
    from haotuner.importing.read import Reader

_AXES = "scan_input_axes"  # which Scan has from opset 9 on


def scan_results(
    reader: Reader, node: Any, inputs: Sequence[str | None], names: Mapping[str, str], opset: int, depth: int
) -> list[str]:
    """Results of a Scan: every axis, both directions."""
    g, told = reader.g, {one.name: reader._attribute(one) for one in node.attribute if not one.HasField("g")}
    given = [one for one in inputs if one is not None]
    count = int(told.get("num_scan_inputs", 0))
    if opset < 9 and _AXES not in told:
        node, inputs = _of_a_batch(node, inputs, count), inputs[1:]
        return scan_results(reader, node, inputs, names, opset, depth)
    if not 1 <= count <= len(given) or len(given) != len(inputs):
        raise UsageError(f"{count} of its {len(given)} inputs are told to be scanned")
    states, scanned = given[: len(given) - count], given[len(given) - count :]
    body = body_of_loop(node)
    made = len(body.output) - len(states)
    rows = []
    for one, axis, back in zip(scanned, *_ways(told, "input", count), strict=True):
        rows.append(_turned(g, _first(g, one, axis), back))
    found = loop_outputs(LoopReader(reader, body, names, opset, depth, states, rows, False))
    ends = found[len(states) :]
    for place, (axis, back) in enumerate(zip(*_ways(told, "output", made), strict=True)):
        ends[place] = _last(g, _turned(g, ends[place], back), axis)
    return [*found[: len(states)], *ends]


def _of_a_batch(node: Any, inputs: Sequence[str | None], count: int) -> Any:
    """A Scan of opset 8, a sequence an element of a batch, as one of opset 9 that goes through the batch with another."""
    if inputs[0] is not None:
        raise UsageError("sequences of different lengths (sequence_lens) are not read; leave that input out")
    make = onnx_library().helper
    body, back = body_of_loop(node), [list(one.ints) for one in node.attribute if one.name == "directions"]
    given, made = ([f"{end}_of_one_{place}" for place in range(len(kind) - 1 + (end == "out"))]
                   for end, kind in (("in", inputs), ("out", node.output)))  # fmt: skip
    told = {"scan_input_directions": back[0]} if back else {}
    one = make.make_node("Scan", given, made, body=body, num_scan_inputs=count, **{_AXES: [0] * count}, **told)
    ends = ([make.make_tensor_value_info(name, 1, None) for name in names] for names in (given, made))
    whole = make.make_graph([one], "one", *ends)
    return make.make_node(
        "Scan", given, list(node.output), body=whole, num_scan_inputs=len(given), **{_AXES: [0] * len(given)}
    )


def _ways(told: Mapping[str, Any], end: str, count: int) -> tuple[list[int], list[bool]]:
    axes, directions = (list(told.get(f"scan_{end}_{what}", [0] * count)) for what in ("axes", "directions"))
    if len(axes) != count or len(directions) != count:
        raise UsageError(f"scan_{end}_axes and scan_{end}_directions tell of {len(axes)} and {len(directions)} of {count}")
    return axes, [bool(one) for one in directions]


def _first(g: ConstantFolding, x: str, axis: int) -> str:
    """The axis moved to the front."""
    c, rank = NodeContext(g, "Scan", (x,), {}, 9, 1), g.types[x].rank
    axis = c.axis(axis)
    return transposed(c, x, [axis, *(one for one in range(rank) if one != axis)])


def _last(g: ConstantFolding, x: str, axis: int) -> str:
    """The first axis moved to its place."""
    c, rank = NodeContext(g, "Scan", (x,), {}, 9, 1), g.types[x].rank
    order = list(range(1, rank))
    order.insert(c.axis(axis), 0)
    return transposed(c, x, order)


def _turned(g: ConstantFolding, x: str, back: bool) -> str:
    if not back:
        return x
    return g.add("slice", x, axes=(0,), starts=(canonical(g.types[x].shape[0] - 1),), stops=(-1,), steps=(-1,))
