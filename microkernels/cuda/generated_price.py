"""Cost of a generated program on a GPU's multiprocessor: instructions that warps start, and what they wait for.

Warps of a scheduler take turns, so a group's time is its waits once and its instructions as often as others have them, too.
Constants are of an H200 (490 times of sums, norms, softmax and silu); most are what instructions and barriers take anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from haotuner.codegen.cycles import INSTRUCTIONS
from haotuner.codegen.expressions import Apply, Expression, Fold, Load, free_variables, parts
from haotuner.codegen.schedule import Plan
from haotuner.graph.extents import dimensions, evaluate
from haotuner.graph.graph import Graph, Node
from haotuner.microkernels.cuda.generated_program import WARP
from haotuner.spec.demand import Column

LOAD_CYCLES = 500.0  # from asking to the value, beyond L1
NEAR_CYCLES = 60.0  # the same of what L1 has
JOIN_CYCLES = 30.0  # of an exchange between lanes and what takes it in
MEET_CYCLES, PART_CYCLES = 50.0, 20.0  # of a block's two barriers, and for each warp whose part all others read
START_CYCLES = 100.0  # until a block runs where another has ended
OWN_CYCLES = 1.5  # from one instruction of a warp to its next: what is loaded at a time is computed side by side
ROUND = 80.0  # instructions of a row or a piece of one: which it is, in 64 bits, and where it lies
MASK = 2.0  # instructions of an element that may lie behind the end
MOVE, MOVE_ALONE = 6.0, 12.0  # instructions of an access: in a run of vectors, by itself
L1_SHARE = 0.85  # of L1, for rows that are read again
STREAM_BYTES = 28.0  # of a multiprocessor and cycle while all of them ask L2 for bytes of their own


@dataclass(frozen=True, slots=True)
class Passes:
    """Over a row, first to last: instructions of an element, and its loads and stores."""

    instructions: tuple[float, ...]
    moves: tuple[int, ...]
    once: int  # loads and stores of an element where what was loaded stays in registers
    levels: int  # of folds: lanes are joined after each

    @staticmethod
    def of(plan: Plan) -> Passes:
        """Of a plan's program: a pass for each level of folds, and one that writes if the output lies along the row."""
        written = [plan.value, *(item.value for item in plan.beside)]
        levels: dict[Fold, int] = {}
        for fold in (part for value in written for part in parts(value) if isinstance(part, Fold)):  # inner ones first
            levels[fold] = 1 + max((levels[part] for part in parts(fold.value) if isinstance(part, Fold)), default=-1)
        count = 1 + max(levels.values(), default=-1)
        result = [
            _of_pass([(name.value, {axis.name for axis, _ in name.axes}) for name, at in levels.items() if at == level])
            for level in range(count)
        ]
        instructions = [sum(item.values()) + 1.0 for item, _ in result]  # what takes an element in
        moves, tensors = [len(loads) for _, loads in result], {name for _, loads in result for name in loads}
        stores = 0
        if plan.schedule.lane_axis >= 0 or not result:
            own, loads = _of_pass([(value, {plan.loops[-1][0].name}) for value in written])
            instructions.append(sum(own.values()))
            moves.append(len(loads) + len(written))
            tensors |= set(loads)
            stores = len(written)
        return Passes(tuple(instructions), tuple(moves), len(tensors) + stores, count)


@dataclass(frozen=True, slots=True)
class Price:
    """Of a group of threads: cycles that it waits, instructions of each of its warps; of a call, bytes loaded again."""

    waits: Column
    instructions: Column
    again: Column | float = 0.0
    streams: bool = True  # whether all bytes are asked for once: what neighbours ask for together comes faster


def _of_pass(values: Sequence[tuple[Expression, set[str]]]) -> tuple[dict[Expression, float], dict[str, None]]:
    """Work that differs from element to element: instructions by expression, tensors that are loaded."""
    instructions: dict[Expression, float] = {}
    loads: dict[str, None] = {}
    for value, along in values:
        for part in parts(value, into_folds=False):
            if free_variables(part) & along:
                if isinstance(part, Apply):
                    instructions[part] = INSTRUCTIONS.get(part.function, 1.0)
                elif isinstance(part, Load):
                    loads[part.tensor] = None
    return instructions, loads


def held_price(
    passes: Mapping[str, Column], terms: Column, lanes: Column, vectors: Column, packed: Column, fits: Column
) -> Price:
    """Rows that the lanes of a group share, whose first iteration stays in registers.

    ``passes``: columns of ``columns_of``; ``fits``: whether L1 keeps the rows of a multiprocessor that are read again.
    """
    more = np.maximum(np.ceil(terms / (lanes * vectors)), 1.0) - 1.0  # iterations behind the first
    warps = np.maximum(lanes / WARP, 1.0)
    steps = np.log2(np.minimum(lanes, WARP))
    first = vectors * (passes["instructions"] + passes["count"] * MASK + passes["once"] * MOVE / packed)
    loops = more * vectors * (passes["instructions"] + passes["moves"] * MOVE / packed)
    block = np.where(lanes > WARP, 1.0, 0.0)
    instructions = ROUND + first + loops + passes["levels"] * (2.0 * steps + 2.0 * warps * block)
    again = np.where(fits, NEAR_CYCLES, LOAD_CYCLES)
    joins = passes["levels"] * (JOIN_CYCLES * steps + (PART_CYCLES * warps + MEET_CYCLES) * block)
    waits = LOAD_CYCLES * (1.0 + more) + (passes["count"] - 1.0) * more * again + joins
    return Price(waits + OWN_CYCLES * instructions + START_CYCLES, instructions)


def map_price(passes: Mapping[str, Column], along: Column, lanes: Column, vectors: Column, packed: Column) -> Price:
    """Pieces of rows where nothing is folded: of one iteration, of single vectors behind whole ones where none is packed.

    Only packed kernels load all of an iteration before they compute.
    """
    width, single = lanes * vectors, packed == 1.0
    pieces = np.maximum(np.ceil(along / width), 1.0)
    whole = np.where(single, np.floor(along / width), pieces)
    tail = np.where(single, np.ceil((along - whole * width) / lanes), 0.0)
    item = passes["instructions"] + passes["moves"] * MOVE_ALONE
    many = vectors * (passes["instructions"] + passes["moves"] * MOVE / packed)
    instructions = (whole * (ROUND + many) + tail * (ROUND + item)) / pieces
    loads = (whole * np.where(single, vectors, 1.0) + tail) / pieces
    return Price(LOAD_CYCLES * loads + OWN_CYCLES * instructions + START_CYCLES, instructions)


def columns_of(every: Sequence[Passes], at: Any) -> dict[str, Column]:
    """Numbers of each row's program, over all its passes."""
    numbers = {
        "count": [len(item.instructions) for item in every],
        "instructions": [sum(item.instructions) for item in every],
        "moves": [sum(item.moves) for item in every],
        "once": [item.once for item in every],
        "levels": [item.levels for item in every],
    }
    return {name: np.array(some, np.float64)[at] for name, some in numbers.items()}


def terms_of(folds: Sequence[Node], graph: Graph, extents: Mapping[str, Any], rows: int) -> Column:
    """Terms of the longest fold, of each row."""
    result = np.ones(rows)
    for node in folds:
        shape = graph.types[node.inputs[0]].shape
        axes = [shape[axis] for axis in node.attributes.get("axes", [node.attributes.get("axis", -1)])]
        names = sorted({name for extent in axes for name in dimensions(extent)})
        for row in range(rows):
            sizes = {name: int(np.broadcast_to(extents[name], result.shape)[row]) for name in names}
            result[row] = max(result[row], prod(evaluate(extent, sizes) for extent in axes))
    return result
