"""Cycles of a program on a core with vectors, from the tally of its loops, or estimated for online softmax.

Cycles that a program's instructions take on a core with vectors, from the tally of its loops: an estimate to rank with.

A loop's iteration takes what its instructions take side by side, or what an accumulator waits for its own last value.

Demand of online softmax on a core, estimated without looking at every place: for prices, which ask at hundreds of shapes.

Instructions are those of one point of the outer axes, which are all alike. Of the bytes over a level's edge, what the keys
run over is brought once if a level holds it for one point of the outer axes. Else it is brought once for every tile of rows;
where a level does not hold the scratch memory, its scores go over the edge, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from haotuner.codegen.expressions import Load, free_variables, parts
from haotuner.codegen.online_softmax_schedule import OnlinePlan
from haotuner.codegen.op_counter import MOST_PLACES, Access, Loop, Places, Work, count_ops, register_bytes
from haotuner.graph.extents import evaluate
from haotuner.graph.types import numpy_dtype

# Vector instructions of each function (``microkernels/cpu/vector_math.py``, as LLVM makes them); one if not here.
INSTRUCTIONS: Mapping[str, float] = {
    "max": 3, "min": 3, "any_max": 1, "and": 0.5, "or": 0.5, "not": 0.5, "xor": 1, "abs": 1, "neg": 1, "select": 1,
    "cast": 1, "div": 10, "reciprocal": 10, "sqrt": 12, "rsqrt": 22, "floordiv": 12, "mod": 14, "fmod": 150,
    "mask": 6, "exp": 14, "log": 34, "tanh": 30, "erf": 36, "sigmoid": 18, "shuffle": 2, "turn": 1,
    "log1p": 44, "expm1": 40, "sin": 75, "cos": 75, "tan": 120, "sinh": 56, "cosh": 50, "asin": 70, "acos": 70, "atan": 70,
    "asinh": 90, "acosh": 90, "atanh": 80, "pow": 110,
}  # fmt: skip
# Cycles (Agner Fog, Zen 2-4).
LATENCY: Mapping[str, float] = {"add": 4, "mul": 4, "max": 7, "min": 7, "any_max": 4, "shuffle": 4}
OTHER_LATENCY = 5.0
SHARED = 0.25  # of moving and of computing, the shorter is not hidden by so much
PIPES = 2.0  # vector instructions that start in a cycle
LOADS, STORES = 2.0, 1.0  # whole vectors a cycle
SINGLE_LOAD, SINGLE_STORE = 1.2, 2.0  # cycles for each lane of a load or a store that is not of neighbours
MASKED = 3.0  # times what a masked load or store takes of a whole one
ROUND = 1.0  # cycles of a loop's own instructions, an iteration
ENTRY = 6.0  # cycles to enter a loop and to leave it
HIDDEN = 0.5  # of what is waited for outside of loops: other rows' work goes on meanwhile
COMPILED = 4.0  # elements at a time that the compiler makes of a loop over neighbours, where nothing is folded


@dataclass(frozen=True, slots=True)
class Core:
    """Core, as far as it matters here: the bytes of its vectors."""

    vector_bytes: int


def cycles(top: Loop, core: Core) -> float:
    """Cycles of the whole program."""
    return _loop(top, core)


def _loop(loop: Loop, core: Core) -> float:
    """Cycles of one run of a loop."""
    vectors = loads = stores = inner = waits = 0.0
    innermost, single = True, True
    for part in loop.body:
        if isinstance(part, Loop):
            inner += _loop(part, core)
            innermost = False
            continue
        if isinstance(part, Work):
            single &= part.lanes == 1
            if part.waited:
                waits += HIDDEN * LATENCY.get(part.function, OTHER_LATENCY)
            else:
                vectors += INSTRUCTIONS.get(part.function, 1.0) * _vectors(
                    part.lanes, numpy_dtype(part.dtype).itemsize, core
                )
            continue
        single &= part.lanes == 1 and (_near(part, loop.depth) or loop.count > MOST_PLACES)
        if part.store:
            stores += _moving(part, core, STORES, SINGLE_STORE)
        else:
            loads += _moving(part, core, LOADS, SINGLE_LOAD)
    busy = max(vectors / PIPES, loads, stores) + SHARED * min(vectors / PIPES, loads + stores) + ROUND
    if innermost and single and loop.depth >= 0 and not loop.joins:
        busy /= COMPILED
    accumulated = max((LATENCY.get(how, OTHER_LATENCY) for how in loop.joins), default=0.0)
    return (max(busy, accumulated) + waits + inner) * loop.count + (ENTRY if loop.depth >= 0 else 0.0)


def _near(access: Access, depth: int) -> bool:
    """True if an iteration of a loop moves the neighbour of the one before, or the same element."""
    *outer, last = access.indices or (None,)
    if last is None or any(index is None for index in outer):
        return not access.indices
    moves = [index.shape[depth] > 1 and _step(index, depth) != 0 for index in outer if index is not None]
    return not any(moves) and (last.shape[depth] == 1 or _step(last, depth) in (0, 1))


def _step(index: Places, depth: int) -> int:
    """Elements by which the second iteration of a loop lies behind the first, at the first place."""
    first, second = (index.take(at, axis=depth).flat[0] for at in (0, 1))
    return int(second - first)


def _vectors(lanes: int, size: int, core: Core) -> float:
    return max(1.0, lanes * size / core.vector_bytes)


def _moving(access: Access, core: Core, rate: float, single: float) -> float:
    if access.lanes > 1 and not access.even:
        return single * access.lanes
    whole = _vectors(access.lanes, access.bytes, core) / rate
    return whole * (MASKED if access.mask is not None else 1.0)


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
