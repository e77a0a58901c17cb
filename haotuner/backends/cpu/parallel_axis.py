"""Ways in which threads share one call: nothing, the columns of the output, its rows, or the terms of the sum over k."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from haotuner.microkernels.cpu.dense import computed_columns
from haotuner.plan.curves import Curve
from haotuner.spec.composition import COLUMNS, ROWS, SERIAL, TERMS
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.limits import PART_TERMS, PARTIAL_FLOATS, ROW_PIECES
from haotuner.spec.op import Op

# Columns a thread from which on cutting columns keeps every thread busy: two panels of the usual widths. Narrower outputs
# (routers, heads) leave threads idle or unevenly loaded; there parts of k are timed as well.
NARROW = 64
# About what it takes from the caller to a worker that waits for it and back: the best compositions of 1 to 9 rows shared by
# columns, hot, 22 to 101 us, take -0.5 to 5.7 us more than half of one thread's time (two cores, three ops; median 1.9).
HANDOFF_US = 1.5
AGAIN = 1.05  # where each thread lays out all of an image, or of W: an even choice is for the other axes


def ways(op: Op, threads: int, *, one_order: bool = False) -> tuple[str, ...]:
    """Ways worth timing for so many threads. ``one_order``: every element sums its terms in one order, k stays whole."""
    if threads == 1:
        return (SERIAL,)
    deep = op["n"] < NARROW * threads and op["k"] >= 2 * PART_TERMS and not one_order and op.plain
    return (COLUMNS, ROWS, TERMS, SERIAL) if deep else (COLUMNS, ROWS, SERIAL)


def rows_of(way: str, op: Op, threads: int, limit: int) -> int:
    """Rows up to which the runtime shares a call of ``threads`` in this way, at most ``limit``; 0 if it never does."""
    if way != TERMS:
        return limit
    others = min(threads, op["k"] // PART_TERMS) - 1
    return min(limit, PARTIAL_FLOATS // op["n"] // others)


def shared(curve: Curve, way: str, op: Op, threads: int) -> Curve:
    """Curve of a region when so many threads share a call: their part of one thread's curve, as even as whole tiles allow.

    Measured curves of several threads foretold compositions worse (3.5 % behind the best against 2.7, four ops): each has
    its own noise, and what cores share is known. What memory cannot give to all of them is seen when compositions contend.
    """
    if way == SERIAL:
        return curve
    kernel = curve.micro_kernel
    units = -(-op["n"] // kernel["nr"])

    def part(tiles: int) -> float:
        if way == TERMS:
            return 1.0 / min(threads, op["k"] // PART_TERMS)
        if way == COLUMNS:
            return widest_share(op["n"], kernel, threads)
        pieces = tiles * min(units, ROW_PIECES)
        return -(-pieces // threads) / pieces

    points = {tiles: us * part(tiles) + HANDOFF_US for tiles, us in curve.lead_us}
    return Curve.of(curve.kernel, curve.rows, points, curve.follow_us / threads)


def untimed_us(us: float, tile: int, axis: str, extents: Mapping[str, int], threads: int) -> float:
    """One thread's time in as even parts as whole tiles of an axis allow; q is the pixels of all rows and images."""
    matrices = extents.get("b", 1) if axis in ("q", "m", "n") else 1
    units = matrices * -(-extents[axis] * (extents.get("p", 1) if axis == "q" else 1) // tile)
    return us * (-(-units // threads) / units) * (AGAIN if axis in ("f", "m") else 1.0) + HANDOFF_US


def widest_share(n: int, kernel: MicroKernel, threads: int) -> float:
    """The share of the columns computed that the busiest thread has; ``column_of`` in dense_run.c cuts them so."""
    nr, computed = kernel["nr"], computed_columns(kernel, n)
    bounds = [min((2 * computed * i + threads * nr) // (2 * threads * nr) * nr, computed) for i in range(threads)]
    return max(later - sooner for sooner, later in pairwise([*bounds, computed])) / computed
