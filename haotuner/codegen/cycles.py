"""Cycles that a program's instructions take on a core with vectors, from the tally of its loops: an estimate to rank with.

A loop's iteration takes what its instructions take side by side, or what an accumulator waits for its own last value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from haotuner.codegen.op_counter import Access, Loop, Work
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
COMPILED = 4.0  # elements at a time that the compiler makes of a loop over single ones, where nothing is folded


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
        single &= part.lanes == 1
        if part.store:
            stores += _moving(part, core, STORES, SINGLE_STORE)
        else:
            loads += _moving(part, core, LOADS, SINGLE_LOAD)
    busy = max(vectors / PIPES, loads, stores) + SHARED * min(vectors / PIPES, loads + stores) + ROUND
    if innermost and single and loop.depth >= 0 and not loop.joins:
        busy /= COMPILED
    accumulated = max((LATENCY.get(how, OTHER_LATENCY) for how in loop.joins), default=0.0)
    return (max(busy, accumulated) + waits + inner) * loop.count + (ENTRY if loop.depth >= 0 else 0.0)


def _vectors(lanes: int, size: int, core: Core) -> float:
    return max(1.0, lanes * size / core.vector_bytes)


def _moving(access: Access, core: Core, rate: float, single: float) -> float:
    if access.lanes > 1 and not access.even:
        return single * access.lanes
    whole = _vectors(access.lanes, access.bytes, core) / rate
    return whole * (MASKED if access.mask is not None else 1.0)
