"""Online softmax on units for small matrices: graphs of that form, schedules, and the number of tiles of keys rows see.

The form is that of FlashAttention-2 (Dao 2023): operands are matrices in memory whose rows begin anywhere, the output is the
weighted sum over the total. What a score is beside its product may be anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from haotuner.codegen.expressions import Apply, Expression, Load, Number, Size, Variable, free_variables
from haotuner.codegen.online_softmax import OnlineSoftmax
from haotuner.codegen.online_softmax_schedule import (
    FED,
    FED_ROWS,
    GROUP_ROWS,
    PIECE,
    TENSOR,
    TOGETHER,
    WIDE,
    OnlinePlan,
    OnlineSchedule,
    online_plan,
)
from haotuner.errors import UsageError
from haotuner.graph.extents import evaluate

WARPS = ((1, 16), (2, 16), (4, 16), (8, 16), (4, 32), (8, 32))  # of a block, and rows of each
KEYS = (32, 64, 128)
STAGES = (2, 3)
WIDE_KEYS = (64, 96, 128, 192)  # of a tile, of four warps that multiply together
# By rows of a block: of a thread when it starts; of one that multiplies, as estimated.
FED_REGISTERS = {128: (168, 240), 192: (128, 168)}
PARTS = (1, 8, 32)  # of the keys, where few queries have many
FEW_ROWS = 64  # of a tile: with more, parts have nothing to gain
HELD = 128  # rows x depth of a warp that stay in registers, in pieces of 16 rows: as ``ht_attend``
# Addresses, limits, maxima, totals, operands under way; what ptxas wants more for each further 16 rows of a warp, and stage.
OTHER_REGISTERS, MORE_REGISTERS, STAGE_REGISTERS = 44, 40, 4
SCORE_REGISTERS = 46  # of scores that are more than a product: where a mask lies, what it holds
REGISTERS_HELD, SHARED_HELD = 65536, 228 << 10  # of a multiprocessor; the most shared memory that one has
MOST_REGISTERS = 246
WIDE_REGISTERS = 32  # of four warps' threads, beside scores, the second product's operand, and 5/8 a column


@dataclass(frozen=True, slots=True)
class Rows:
    """An operand as a matrix: the axis of its rows; its last axis is that of the columns."""

    load: Load
    axis: int


def rows_of(e: Expression, row: str, column: str) -> Rows:
    """An operand's rows. UsageError where it is no tensor in memory, or its rows or columns do not lie evenly."""
    if isinstance(e, Load) and isinstance(e.indices[-1], Variable) and e.indices[-1].name == column and not e.nonempty:
        own = [axis for axis, index in enumerate(e.indices[:-1]) if isinstance(index, Variable) and index.name == row]
        rest = [index for axis, index in enumerate(e.indices[:-1]) if axis not in own]
        if len(own) == 1 and not any(free_variables(item) & {row, column} for item in rest):
            return Rows(e, own[0])
    raise UsageError("tensor units read operands that lie in memory row by row")


def check(sums: OnlineSoftmax) -> None:
    """UsageError unless the graph has the form."""
    row, key, depth, column = (axis[0].name for axis in (sums.row, sums.key, sums.depth, sums.column))
    rows_of(sums.left, row, depth)
    rows_of(sums.right, key, depth)
    rows_of(sums.weight, key, column)
    value = sums.value
    if not (isinstance(value, Apply) and value.function == "div" and value.arguments == (sums.weighted, sums.total)):
        raise UsageError("tensor units write the weighted sum over the total, and nothing else of them")
    at = [index.name for index in sums.indices if isinstance(index, Variable)]
    if len(at) != len(sums.indices) or at[-2:] != [row, column]:
        raise UsageError("tensor units write rows whose columns are neighbours")


def factor(sums: OnlineSoftmax) -> float | None:
    """Factor between scores and their products; None where scores are more than that."""
    seen = sums.seen
    if seen is sums.product:
        return 1.0
    if isinstance(seen, Apply) and seen.function == "mul" and sums.product in seen.arguments:
        other = next(argument for argument in seen.arguments if argument is not sums.product)
        if isinstance(other, Number) and 0.0 < other.value < float("inf"):
            return float(other.value)
    return None


def registers(plan: OnlinePlan) -> int:
    """Of a thread: scores, sums, the rows' operand where it is held, and all else."""
    s, depth, columns = plan.schedule, plan.sums.depth[1], plan.sums.column[1]
    assert isinstance(depth, int) and isinstance(columns, int), "a plan has known extents"
    score = SCORE_REGISTERS if factor(plan.sums) is None else 0
    if s.along in TOGETHER:
        return s.keys * 3 // 4 + columns * 5 // 8 + WIDE_REGISTERS + score
    pieces = s.out_rows // PIECE
    held_registers = pieces * depth // 4 if pieces * depth <= HELD else 0
    more = (pieces - 1) * MORE_REGISTERS + (s.stages - 2) * STAGE_REGISTERS
    return pieces * (s.keys + columns) // 2 + held_registers + OTHER_REGISTERS + more + score


def resident(plan: OnlinePlan) -> int:
    """Blocks that a multiprocessor is to hold: ptxas keeps to so many registers."""
    if plan.schedule.along == FED:
        return 1
    threads = plan.schedule.threads
    return max(1, min(REGISTERS_HELD // (threads * registers(plan)), SHARED_HELD // plan.scratch_bytes))


def tensor_schedules(sums: OnlineSoftmax) -> Iterator[OnlineSchedule]:
    """Every schedule on tensor units that has a plan, in a fixed order; none where the graph has not the form."""
    try:
        check(sums)
    except UsageError:
        return
    cut = str(sums.key[1]) in sums.graph.dimensions
    for (warps, rows), keys, stages, parts in product(WARPS, KEYS, STAGES, PARTS if cut else PARTS[:1]):
        if parts > 1 and warps * rows > FEW_ROWS:
            continue
        schedule = OnlineSchedule(
            lanes=32, along=TENSOR, rows=warps * rows, block=keys, keys=keys, out_rows=rows, parts=parts, stages=stages
        )
        try:
            plan = online_plan(sums, schedule)
        except UsageError:
            continue
        if registers(plan) <= MOST_REGISTERS:
            yield schedule


def wide_schedules(sums: OnlineSoftmax) -> Iterator[OnlineSchedule]:
    """Those of four warps that multiply together; none where the graph has not the form."""
    try:
        check(sums)
    except UsageError:
        return
    forms = ((WIDE, GROUP_ROWS), *((FED, rows) for rows in FED_ROWS))
    for (along, rows), keys, stages in product(forms, WIDE_KEYS, STAGES):
        schedule = OnlineSchedule(lanes=32, along=along, rows=rows, block=keys, keys=keys, out_rows=PIECE, stages=stages)
        try:
            plan = online_plan(sums, schedule)
        except UsageError:
            continue
        if registers(plan) <= (FED_REGISTERS[rows][1] if along == FED else MOST_REGISTERS):
            yield schedule


def tiles_seen(sums: OnlineSoftmax, schedule: OnlineSchedule, sizes: Mapping[str, int]) -> NDArray[np.int64]:
    """Tiles of keys that each tile of rows looks at."""
    rows, keys = (evaluate(extent, sizes) for extent in (sums.row[1], sums.key[1]))
    last = np.minimum(np.arange(schedule.rows, rows + schedule.rows, schedule.rows, dtype=np.int64), rows) - 1
    seen = np.full(len(last), keys, np.int64)
    if sums.last is not None:
        seen = np.clip(_index(sums.last, {sums.row[0].name: last}, sizes, keys) + 1, 0, keys)
    return -(-seen // schedule.keys)


def _index(e: Expression, at: Mapping[str, NDArray[np.int64]], sizes: Mapping[str, int], other: int) -> NDArray[np.int64]:
    """An index at these rows; ``other`` for what depends on more than rows and sizes."""
    if isinstance(e, Variable) and e.name in at:
        return at[e.name]
    if isinstance(e, Number):
        return np.asarray(int(e.value), np.int64)
    if isinstance(e, Size):
        return np.asarray(evaluate(e.extent, sizes), np.int64)
    if isinstance(e, Apply) and e.function == "cast":
        return _index(e.arguments[0], at, sizes, other)
    functions = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
    if isinstance(e, Apply) and e.function in functions:
        first, two = (_index(argument, at, sizes, other) for argument in e.arguments)
        return np.asarray(functions[e.function](first, two), np.int64)
    return np.asarray(other, np.int64)
