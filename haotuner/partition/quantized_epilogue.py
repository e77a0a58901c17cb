"""Epilogue of a product of bytes: scales, a bias, a function, a residual, and how real numbers become bytes again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from haotuner.graph.graph import Node
from haotuner.graph.types import numpy_dtype
from haotuner.partition.epilogue_fusion import EpilogueMatcher, FusedEpilogue


@dataclass(frozen=True, slots=True)
class Rows:
    """A product's ``features``, and tensors that are one number for each: ``of`` a constant these, else None.

    ``told``: of what data tell the tensor (features,) that lies there, else None.
    """

    features: int
    of: Callable[[str], Any]
    told: Callable[[str], str | None]


NONE = FusedEpilogue((), (), (), {}, {})


def of_bytes(follow: EpilogueMatcher, tensor: str, rows: Rows) -> Iterator[FusedEpilogue]:
    """All that may follow sums in int32, then less and less of it; the last has nothing: the sums themselves."""
    head = _real(follow, tensor, rows)
    if head is not None:
        if not head.rows:
            yield from _bytes_again(follow, head, rows)
        more = follow.carried(head.nodes[-1], lambda _: None, rows.features)
        for part in more.prefixes():
            yield FusedEpilogue(
                steps=(*head.steps, *part.steps),
                nodes=(*head.nodes, *part.nodes),
                counts=(*head.counts, *part.counts),
                constants={**head.constants, **part.constants},
                passed=part.passed,
                out="fp32",
                rows=head.rows,
            )
    yield NONE


def _real(follow: EpilogueMatcher, tensor: str, rows: Rows) -> FusedEpilogue | None:
    """Numbers added to sums, the sums as real numbers, times scales, and a bias; without scales there is nothing.

    Scales, and with them a bias, may be tensors of one number for each feature.
    """
    nodes: list[str] = []
    added = np.zeros(rows.features)
    last = tensor
    while (result := _with_row(follow, last, "add", rows)) is not None:
        added += result[1]
        last = result[0]
        nodes.append(last)
    cast = follow.only_reader(last)
    if cast is None or cast.primitive != "cast" or cast.attributes["dtype"] != "fp32":
        return None
    scaled = _with_row(follow, cast.output, "mul", rows)
    if scaled is None:
        return None if added.any() else _data_scaled(follow, [*nodes, cast.output], rows)
    last, scale = scaled
    nodes += [cast.output, last]
    steps, counts = ["scale"], [len(nodes)]
    bias = _with_row(follow, last, "add", rows)
    if bias is not None:
        nodes.append(bias[0])
    if bias is not None or added.any():
        steps.append("bias")
        counts.append(int(bias is not None))
    whole = added * scale + (0.0 if bias is None else bias[1])
    constants = {"scale": scale, "bias": whole} if "bias" in steps else {"scale": scale}
    return FusedEpilogue(tuple(steps), tuple(nodes), tuple(counts), _rows(constants), {})


def _data_scaled(follow: EpilogueMatcher, nodes: list[str], rows: Rows) -> FusedEpilogue | None:
    """Scales that data tell, and a bias, behind real numbers, the last of the nodes."""
    scaled = _data_row(follow, nodes[-1], "mul", rows)
    if scaled is None:
        return None
    nodes, scale = [*nodes, scaled[0]], {"scale": scaled[1]}
    counts, constants = [len(nodes)], dict[str, Any]()
    bias, more = _with_row(follow, nodes[-1], "add", rows), _data_row(follow, nodes[-1], "add", rows)
    if bias is not None:
        constants["bias"] = bias[1]
    elif more is not None:
        scale["bias"] = more[1]
    if bias is not None or more is not None:
        nodes.append(bias[0] if bias is not None else more[0] if more is not None else "")
        counts.append(1)
    steps = ("scale", "bias")[: len(counts)]
    return FusedEpilogue(steps, tuple(nodes), tuple(counts), _rows(constants), {}, rows=scale)


def _data_row(follow: EpilogueMatcher, tensor: str, function: str, rows: Rows) -> tuple[str, str] | None:
    """The only reader's output and the tensor of one number for each feature that is joined there."""
    result = follow.after(tensor, function)
    row = None if result is None else rows.told(result[1])
    return None if result is None or row is None else (result[0], row)


def _rows(constants: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.ascontiguousarray(value, np.float32) for name, value in constants.items()}


def _with_row(follow: EpilogueMatcher, tensor: str, function: str, rows: Rows) -> tuple[str, Any] | None:
    """The only reader's output and the numbers that it joins with a tensor, one for each feature, in float64."""
    result = follow.after(tensor, function)
    if result is None:
        return None
    single = follow.number(result[1])
    value = np.full(rows.features, single) if single is not None else rows.of(result[1])
    return None if value is None else (result[0], value.astype(np.float64))


def _bytes_again(follow: EpilogueMatcher, head: FusedEpilogue, rows: Rows) -> Iterator[FusedEpilogue]:
    """Real numbers kept within bounds, divided by a scale, rounded, moved by a zero point and kept in the range of bytes."""
    low, high, last, nodes = -np.inf, np.inf, head.nodes[-1], list(head.nodes)
    while (bound := _number_after(follow, last, "max", "min")) is not None:
        node, value = bound
        bounded = max if node.attributes["function"] == "max" else min
        low, high = bounded(low, value), bounded(high, value)
        last = node.output
        nodes.append(last)
    divided = _number_after(follow, last, "div")
    if divided is None or divided[0].inputs[0] != last:
        return
    rounded = follow.only_reader(divided[0].output)
    if rounded is None or rounded.primitive != "map" or rounded.attributes["function"] != "round":
        return
    nodes += [divided[0].output, rounded.output]
    last, step, zero = rounded.output, divided[1], 0.0
    moved = _number_after(follow, last, "add")
    if moved is not None:
        last, zero = moved[0].output, moved[1]
        nodes.append(last)
    ends = {}
    for function in ("max", "min"):
        number = _number_after(follow, last, function)
        if number is None:
            return
        last, ends[function] = number[0].output, number[1]
        nodes.append(last)
    cast = follow.only_reader(last)
    dtype = cast.attributes["dtype"] if cast is not None and cast.primitive == "cast" else ""
    if cast is None or dtype not in ("uint8", "int8") or not step > 0:
        return
    limits = np.iinfo(numpy_dtype(dtype))
    if (ends["max"], ends["min"]) != (limits.min, limits.max):
        return
    nodes.append(cast.output)
    bias = head.constants.get("bias", np.zeros(rows.features))
    constants = {"scale": head.constants["scale"] / step, "bias": bias / step + zero}
    steps = ["scale", "bias"]
    first, end = low / step + zero, high / step + zero
    if first > limits.min or end < limits.max:  # others are where bytes end
        steps.append("clamp")
        constants |= {"low": np.full(rows.features, first), "high": np.full(rows.features, end)}
    counts = (len(nodes), *(0 for _ in steps[1:]))
    yield FusedEpilogue(tuple(steps), tuple(nodes), counts, _rows(constants), {}, dtype)


def _number_after(follow: EpilogueMatcher, tensor: str, *functions: str) -> tuple[Node, float] | None:
    """The only reader, where it joins a tensor with one number by one of these functions."""
    node = follow.only_reader(tensor)
    if node is None or node.primitive != "map" or node.attributes["function"] not in functions:
        return None
    result = follow.after(tensor, node.attributes["function"])
    value = None if result is None else follow.number(result[1])
    return None if value is None else (node, value)
