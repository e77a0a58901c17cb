"""Conditions of branches: as arithmetic of dimensions where no data decide, and what the sizes asked for make of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy

from haotuner.frontends.onnx.intervals import TRIED, every_request, interval_of, of_spans
from haotuner.frontends.onnx.scalars import PASSED, number_held
from haotuner.frontends.onnx.typed_numbers import exact
from haotuner.graph.extents import SHOWN, Extent, canonical, dimensions, evaluate, largest, smallest, text
from haotuner.graph.graph import Node
from haotuner.spec.shape import Span

if TYPE_CHECKING:
    from haotuner.frontends.onnx.constant_folding import ConstantFolding

MOST_RUNS = 4  # ranges of sizes that people read


@dataclass(frozen=True, slots=True)
class Condition:
    """``extent``: 1 where it holds and 0 where not; ``words``: the same for people."""

    extent: Extent
    words: str

    @property
    def told(self) -> str:
        """``words``, or where they are long what sizes they come to, if one dimension decides; else they are cut."""
        if len(self.words) <= SHOWN:
            return self.words
        names = sorted(dimensions(self.extent))
        runs = _runs(self.extent, names[0]) if len(names) == 1 else []
        if 0 < len(runs) <= MOST_RUNS:
            return f"{names[0]} is {' or '.join(map(_run, runs))}"
        return f"{self.words[: SHOWN // 2]} … {self.words[-SHOWN // 4 :]} (of {', '.join(names)})"

    def __invert__(self) -> Condition:
        return Condition(canonical(1 - self.extent), f"not {self.words}")


def _runs(extent: Extent, name: str) -> list[tuple[int, int]]:
    """First and last sizes, from 1 to ``TRIED``, between which an extent of one dimension is not 0."""
    result: list[tuple[int, int]] = []
    for size in range(1, TRIED + 1):
        if evaluate(extent, {name: size}):
            result[-1:] = [(result[-1][0], size)] if result and result[-1][1] == size - 1 else [*result[-1:], (size, size)]
    return result


def _run(run: tuple[int, int]) -> str:
    first, last = run
    return f"{first} or more" if last == TRIED else str(first) if first == last else f"{first}..{last}"


def compared(sign: str, extent: Extent, other: Extent) -> Condition | None:
    """Two extents by ``==``, ``!=``, ``<``, ``<=``, ``>`` or ``>=``; None where they are not whole."""
    if sign == "!=":
        return _differ(extent, other)
    if not sympy.sympify(extent - other).is_integer:
        return None
    build = next(build for build, known in _COMPARED.values() if known == sign)
    return Condition(build(canonical(extent - other)), f"{text(extent)} {sign} {text(other)}")


def condition_of(g: ConstantFolding, tensor: str) -> Condition | None:
    """The condition that a tensor of one element holds; None where data decide it, or it has no such arithmetic."""
    known = g.known(tensor)
    if known is not None:
        return _is_set(np.asarray(known))
    node = next((node for node in reversed(g.nodes) if node.output == tensor), None)
    if node is None or math.prod(extent if isinstance(extent, int) else 2 for extent in g.types[tensor].shape) != 1:
        return None
    if node.primitive in PASSED:
        return condition_of(g, node.inputs[0]) if g.types[node.inputs[0]].dtype == "bool" else _of_number(g, node.inputs[0])
    return _mapped(g, node) if node.primitive == "map" else None


def _is_set(known: Any) -> Condition | None:
    if known.size != 1:
        return None
    value = exact(known.reshape(-1)[0])
    return Condition(int(value != 0), text(value)) if isinstance(value, int) else _differ(value, 0)


def _of_number(g: ConstantFolding, tensor: str) -> Condition | None:
    number = _number_of(g, tensor)
    return None if number is None else Condition(int(number != 0), "") if isinstance(number, int) else _differ(number, 0)


def _mapped(g: ConstantFolding, node: Node) -> Condition | None:
    function = node.attributes["function"]
    if function in _LOGIC:
        parts = [condition_of(g, tensor) for tensor in node.inputs]
        if any(part is None for part in parts):
            return None
        words = [f"({part.words})" for part in parts if part is not None]
        joined = f"not {words[0]}" if function == "not" else f" {function} ".join(words)
        return Condition(_LOGIC[function](*(part.extent for part in parts if part is not None)), joined)
    if function not in _COMPARED:
        return None
    first, other = (_number_of(g, tensor) for tensor in node.inputs)
    return None if first is None or other is None else compared(_COMPARED[function][1], first, other)


def _differ(extent: Extent, other: Extent) -> Condition | None:
    if not sympy.sympify(extent - other).is_integer:
        return None
    return Condition(canonical(1 - _is_zero(canonical(extent - other))), f"{text(extent)} != {text(other)}")


def _number_of(g: ConstantFolding, tensor: str) -> Extent | None:
    return number_held(g, {node.output: node for node in g.nodes}, tensor)


def _is_zero(gap: Extent) -> Extent:
    return canonical(1 - smallest([1, largest([gap, canonical(-gap)])]))


def _above(gap: Extent) -> Extent:
    return smallest([1, largest([0, gap])])


_COMPARED: Mapping[str, tuple[Callable[[Extent], Extent], str]] = {
    "equal": (_is_zero, "=="),
    "less": (lambda gap: _above(canonical(-gap)), "<"),
    "greater": (_above, ">"),
    "less_equal": (lambda gap: canonical(1 - _above(gap)), "<="),
    "greater_equal": (lambda gap: canonical(1 - _above(canonical(-gap))), ">="),
}
_LOGIC: Mapping[str, Callable[..., Extent]] = {
    "not": lambda a: canonical(1 - a),
    "and": lambda a, b: smallest([a, b]),
    "or": lambda a, b: largest([a, b]),
    "xor": lambda a, b: canonical(largest([a, b]) - smallest([a, b])),
}


def settled(condition: Condition, ranges: Mapping[str, Span]) -> int | None:
    """1 or 0 where all sizes of these ranges make the condition so; None where they differ, or nobody asked for sizes."""
    if isinstance(condition.extent, int):
        return condition.extent
    names = sorted(dimensions(condition.extent))
    if not all(name in ranges for name in names):
        return None
    requests = every_request(names, ranges)
    if requests is not None:
        result = {evaluate(condition.extent, request) for request in requests}
        return result.pop() if len(result) == 1 else None
    bounds = interval_of(condition.extent, of_spans(ranges))
    return int(bounds.low) if bounds is not None and bounds.low == bounds.high else None
