"""Time of one call of a packed op now, where that can be found out in a moment."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile

import numpy as np

from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp
from haotuner.runtime.pack import Pack
from haotuner.spec import numerics
from haotuner.spec.cold import CPU_CACHES, UNKNOWN_CACHE_BYTES
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

LOOK_S = 0.3  # live timing: enough for a median, short enough to wait for
MOST_S = 2.0  # for all calls: whoever wants more has `haotuner bench`
FEWEST_CALLS = 5  # of long calls, whatever they take
CACHE_MOST_BYTES = 1 << 30  # the largest last-level caches have half of that
BYTES_LIMIT = 2 << 30  # of x, y and the weight: more is no look in passing, and may be all the memory there is
MOST_WEIGHTS = 4096  # bound one by one: 200,000 of a small op, beside a cache of 300 MB, took twelve seconds
FLOPS_LIMIT = 2e12  # of a call: half a minute on one old core


def why_not_timed(entry: PackOp, m: int, expected_us: float | None = None) -> str:
    """Reason that a call with ``m`` rows, which is expected to take so long, is not timed here; empty if it is."""
    sizes = {"x": m * entry.k, "y": m * entry.n, "weight": entry.k * entry.panels * entry.pw}
    size = sum(DTYPES[o.dtype].size * sizes[o.name] for o in entry.operands if o.name in sizes)
    return too_large("x, y and the weight", size, 2 * m * entry.n * entry.k) or too_long(expected_us)


def too_long(expected_us: float | None) -> str:
    """Reason that a call that is expected to take so long is not timed; empty if it is, or if nobody knows."""
    if expected_us is None or expected_us <= MOST_S * 1e6:
        return ""
    return f"explain times for {MOST_S:.0f} s at most; `haotuner bench` times such calls"


def too_large(what: str, size: int, flops: int) -> str:
    """Reason that a call is too large to be timed here; empty if it is not. ``what`` takes ``size`` bytes."""
    if size > BYTES_LIMIT:
        return f"{what} take {size / (1 << 30):,.1f} GiB, and explain times calls of up to {BYTES_LIMIT >> 30}"
    if flops > FLOPS_LIMIT:
        return f"a call has {flops / 1e9:,.0f} GFLOP, and explain times calls of up to {FLOPS_LIMIT / 1e9:,.0f}"
    return ""


def median_us(calls: Sequence[Callable[[], object]], evicted_bytes: int = 0) -> float:
    """Median time of calls made in turn, microseconds, after each was made once.

    ``evicted_bytes``: so much memory is written between the two, so that the caches keep nothing of the first calls; each
    is then timed once at most. After ``MOST_S`` no call is begun; where one takes as long, its first time is all there is.
    """
    end = time.perf_counter() + MOST_S
    first = [_us(call) for call in takewhile(lambda _: time.perf_counter() < end, calls)]
    if time.perf_counter() >= end:
        return statistics.median(first)
    np.ones(evicted_bytes, np.uint8)
    most = len(calls) if evicted_bytes else math.inf
    samples: list[float] = []
    until = time.perf_counter() + LOOK_S
    while len(samples) < most and (len(samples) < FEWEST_CALLS or time.perf_counter() < until):
        if samples and time.perf_counter() >= end:
            break
        samples.append(_us(calls[len(samples) % len(calls)]))
    return statistics.median(samples)


def _us(call: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


def call_us(pack: Pack, entry: PackOp, m: int, weights: str, cache_bytes: int) -> float:
    """Median time of a call now, microseconds, in the state of the weights that the pack was tuned for."""
    rng = np.random.default_rng(0)
    meaning = Op.parse(entry.name)
    size = entry.panels * entry.pw * entry.k * DTYPES[entry.operands[1].dtype].size
    cache = min(max(cache_bytes, 0) or UNKNOWN_CACHE_BYTES, CACHE_MOST_BYTES)
    copies = max(2, -(-CPU_CACHES * cache // size)) if weights == "cold" else 1
    inputs = numerics.draw(meaning, Shape.of(m=m), rng)
    constants = {o.name: inputs[o.name] for o in entry.extra if o.role == "constant"}
    passed = {o.name: inputs[o.name] for o in entry.extra if o.role == "input"}
    dense = pack.op(entry.name)
    linears = [dense.bind(inputs["weight"], **constants) for _ in range(min(copies, MOST_WEIGHTS))]
    y = np.empty((m, entry.n), numerics.numpy_dtype(entry.output.dtype))
    calls = [partial(linear, inputs["x"], out=y, **passed) for linear in linears]
    return median_us(calls, (copies - len(linears)) * size)  # as if all were bound
