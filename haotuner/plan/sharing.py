"""Ways in which threads share one call: nothing, the columns of the output, its rows, or the terms of the sum over k."""

from __future__ import annotations

from haotuner.op import Op

# Columns a thread from which on cutting columns keeps every thread busy: two panels of the usual widths. Narrower outputs
# (routers, heads) leave threads idle or unevenly loaded; there parts of k are timed as well.
NARROW = 64
PARTIAL_FLOATS = 8192  # as in runtime/native/run.c: sums of all parts but the first
PART_TERMS = 256  # as in runtime/native/run.c: terms of a part at least


def ways(op: Op, threads: int, *, one_order: bool = False) -> tuple[str, ...]:
    """What is worth timing for so many threads. ``one_order``: every element sums its terms in one order, k stays whole."""
    if threads == 1:
        return ("serial",)
    deep = op["n"] < NARROW * threads and op["k"] >= 2 * PART_TERMS and not one_order
    return ("n", "m", "k", "serial") if deep else ("n", "m", "serial")


def rows_of(way: str, op: Op, threads: int, limit: int) -> int:
    """Rows up to which the runtime shares a call of ``threads`` in this way, at most ``limit``; 0 if it never does."""
    if way != "k":
        return limit
    others = min(threads, op["k"] // PART_TERMS) - 1
    return min(limit, PARTIAL_FLOATS // op["n"] // others)
