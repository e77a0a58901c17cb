"""Demand of online softmax on a core, estimated without looking at every place: for prices, which ask at hundreds of shapes.

Instructions are those of one point of the outer axes, which are all alike. Of the bytes over a level's edge, what the keys
run over is brought once if a level holds it for one point of the outer axes, else once for every tile of rows; where a
level does not hold the scratch memory, its scores go over the edge, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from haotuner.codegen.cycles import Core, cycles
from haotuner.codegen.expressions import Load, free_variables, parts
from haotuner.codegen.online_softmax_schedule import OnlinePlan
from haotuner.codegen.op_counter import count_ops, register_bytes
from haotuner.graph.extents import evaluate
from haotuner.graph.types import numpy_dtype

SCORE_PASSES = 4  # stored, read and stored as exponentials, read by the second product


def of_one_point(plan: OnlinePlan, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes, those of outer axes one: what ``counted`` is asked."""
    outer = {str(extent) for _, extent in plan.sums.outer}
    return {name: 1 if name in outer else size for name, size in sizes.items()}


def counted(plan: OnlinePlan, sizes: Mapping[str, int], vector: int) -> tuple[float, int]:
    """Cycles, and bytes between registers and memory, of a program at these sizes; ``vector``: bytes of a vector."""
    top = count_ops(plan, sizes)
    loaded, stored = register_bytes(top)
    return cycles(top, Core(vector)), sum(loaded.values()) + sum(stored.values())


def estimated(
    plan: OnlinePlan, sizes: Mapping[str, int], levels: Sequence[int], point: tuple[float, int]
) -> tuple[float, int, list[int]]:
    """Cycles, bytes between registers and memory, and the least bytes followed by those over each level's edge.

    ``levels``: bytes that each holds; ``point``: what is ``counted`` of one point of the outer axes.
    """
    points = prod(evaluate(extent, sizes) for _, extent in plan.sums.outer)
    once, again = _operands(plan, sizes)
    tiles = -(-evaluate(plan.sums.row[1], sizes) // plan.schedule.tile_rows)
    each = again // max(points, 1)
    scores = SCORE_PASSES * 4 * points * evaluate(plan.sums.row[1], sizes) * evaluate(plan.sums.key[1], sizes)
    over = [
        once
        + again * (1 if each + plan.scratch_bytes <= level else max(tiles, 1))
        + (scores if plan.scratch_bytes > level else 0)
        for level in levels
    ]
    return point[0] * points, point[1] * points, [once + again, *over]


def _operands(plan: OnlinePlan, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Bytes of the tensors that a tile of rows has to itself, and of those that every tile reads."""
    sums, graph = plan.sums, plan.graph
    row, key = sums.row[0].name, sums.key[0].name
    shared = {
        part.tensor
        for value in (sums.score, sums.weight)
        for part in parts(value)
        if isinstance(part, Load) and key in free_variables(part) and row not in free_variables(part)
    }
    result = {True: 0, False: 0}
    for name in (*graph.inputs, plan.output):
        kind = graph.types[name]
        count = prod(evaluate(extent, sizes) for extent in kind.shape) * numpy_dtype(kind.dtype).itemsize
        result[name in shared] += count
    return result[False], result[True]
