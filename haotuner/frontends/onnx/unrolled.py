"""Loops whose turns are written out one after the other, and what is known of how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from haotuner.frontends.onnx.constant_folding import Before
from haotuner.frontends.onnx.layout import cut, reshaped
from haotuner.frontends.onnx.node_context import NodeContext

if TYPE_CHECKING:
    from haotuner.frontends.onnx.loops import LoopReader

UNROLLED_NODES = 512  # that they may come to


def known_trip_count(t: LoopReader) -> int | None:
    """Turns at most, where that is a number known now."""
    result = t.g.numbers(t.limit) if t.limit is not None else None
    most = [] if result is None else [int(np.asarray(result).reshape(-1)[0])]
    most += [extent for extent in (t.g.types[row].shape[0] for row in t.rows) if isinstance(extent, int)]
    return min(most) if most and len(most) == len(t.rows) + (t.limit is not None) else None


def unrolled(t: LoopReader, count: int) -> list[str] | None:
    """Turn after turn; None where a condition depends on data, or where that would be too much."""
    g, before = t.g, Before.of(t.g)
    states, stacks = list(t.states), list[list[str]]()
    c = NodeContext(g, "Loop", (), {}, t.opset, 1)
    for turn in range(count):
        rows = [reshaped(c, cut(c, row, 0, turn, turn + 1), g.types[row].shape[1:]) for row in t.rows]
        goes_on, states, made = t.parted(t.turn(g.constant(turn, "int64"), states, rows))
        for index, item in enumerate(made):
            stacks += [[]] if turn == 0 else []
            stacks[index].append(reshaped(c, item, (1, *g.types[item].shape)))
        known = True if goes_on is None else g.numbers(goes_on)
        if known is None or (len(g.nodes) - before.nodes) * (count if turn == 0 else 1) > UNROLLED_NODES:
            before.restore(g)
            return None
        if not np.asarray(known).reshape(-1)[0]:
            break
    return [*states, *(g.add("concat", *stack, axis=0) for stack in stacks)]


def runs_once(t: LoopReader) -> bool:
    """True if the first turn runs at any request."""
    limit = None if t.limit is None else t.g.numbers(t.limit)
    counts = [t.g.types[row].shape[0] for row in t.rows]
    known = t.limit is None or (limit is not None and int(np.asarray(limit).reshape(-1)[0]) > 0)
    return known and t.asked is None and all(isinstance(count, int) and count > 0 for count in counts)
