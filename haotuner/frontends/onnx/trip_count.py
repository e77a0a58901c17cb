"""Trip count of loops whose condition is that a counter lies below a limit: TensorFlow writes all loops so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.scalars import number_held, plain
from haotuner.graph.bounds import never_negative
from haotuner.graph.extents import Extent, canonical, ceiling_division, largest, same
from haotuner.graph.graph import Node


def always(g: ConstantFolding, condition: str) -> bool:
    """True if a condition is known to hold."""
    result = g.numbers(condition)
    return result is not None and bool(np.asarray(result).all())


def counted(
    g: ConstantFolding, goes_on: str, condition: str | None, pairs: Sequence[tuple[str, str]], firsts: Sequence[str]
) -> Extent | None:
    """The turns, an extent, of a condition that is no more than ``counter < limit`` behind a turn; else None.

    ``condition``: the condition of the first turn; ``pairs``: carried values before and behind a turn, of ``firsts`` at
    first.
    """
    made = {node.output: node for node in g.nodes}
    sides = _less(g, made, goes_on)
    if sides is None:
        return None
    value, limit = plain(made, sides[0]), _number(g, made, sides[1])
    position = next((at for at, (_, after) in enumerate(pairs) if plain(made, after) == value), None)
    if position is None or limit is None:
        return None
    step, first = _step(g, made, *pairs[position]), _number(g, made, firsts[position])
    if step is None or first is None:
        return None
    turns = ceiling_division(canonical(limit - first), step)
    if condition is None:
        return largest([turns, 1])
    before = _less(g, made, condition)
    alike = before is not None and _alike(_number(g, made, before[0]), first) and _alike(_number(g, made, before[1]), limit)
    return (turns if never_negative(turns) else largest([turns, 0])) if alike else None


def _alike(extent: Extent | None, other: Extent) -> bool:
    return extent is not None and same(extent, other)


def _less(g: ConstantFolding, made: dict[str, Node], tensor: str) -> tuple[str, str] | None:
    """Both sides of ``one < other``, however it is written."""
    node = made.get(plain(made, tensor))
    if node is None or node.primitive != "map":
        return None
    function = node.attributes["function"]
    if function == "less":
        return node.inputs[0], node.inputs[1]
    if function == "greater":
        return node.inputs[1], node.inputs[0]
    if function == "and":
        stored = [tensor for tensor in node.inputs if not always(g, tensor)]
        return _less(g, made, stored[0]) if len(stored) == 1 else None
    return None


def _number(g: ConstantFolding, made: dict[str, Node], tensor: str) -> Extent | None:
    """The whole number, or expression of dimensions, that a tensor of one element holds."""
    result = number_held(g, made, tensor)
    return result if isinstance(result, int) or getattr(result, "is_integer", False) else None


def _step(g: ConstantFolding, made: dict[str, Node], before: str, after: str) -> int | None:
    """Number that a turn adds to a counter, or None."""
    node = made.get(plain(made, after))
    if node is None or node.primitive != "map" or node.attributes["function"] != "add":
        return None
    others = [tensor for tensor in node.inputs if plain(made, tensor) != before]
    result = _number(g, made, others[0]) if len(others) == 1 else None
    return result if isinstance(result, int) and result > 0 else None


def counters(g: ConstantFolding, pairs: Sequence[tuple[str, str]], firsts: Sequence[str]) -> list[str]:
    """Carried values that hold the number of the turn."""
    made = {node.output: node for node in g.nodes}
    return [
        before
        for (before, after), first in zip(pairs, firsts, strict=True)
        if _step(g, made, before, after) == 1 and _number(g, made, first) == 0
    ]
