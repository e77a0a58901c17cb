"""Constraints of the dense fp32 family for CPUs, beyond those of every family."""

from __future__ import annotations

from haotuner.spec.constraint import ConstraintQuery, Laws, no_larger

# Reading more weight streams than this fell to half speed: with k a power of two they meet in the same L1 sets.
MAX_STREAMS = 4
# A longer unrolled body leaves the micro-op cache (Zen 5: 6K ops, Golden Cove: 4K) and gains nothing in loop overhead.
MAX_BODY_FMAS = 512
# One row or two are bound by memory, or by L3 where the weight lies there. Fetching each line (``pf`` from EVERY_LINE on)
# costs a quarter there and brings nothing from memory that one line of 512 bytes does not (Zen 4, decision 668).
FLAT, EVERY_LINE, SPARSE, SPARSE_BYTES = range(1, 3), 8, 1, 512
LEAST_VECTORS = 2


def _columns(q: ConstraintQuery) -> tuple[float, float] | None:
    lanes = q.kernel["vl"]
    return q.kernel["nr"], -(-q.op["n"] // lanes) * lanes


def _depth(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.kernel["ku"], q.op["k"]


def _streams(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.kernel["nr"] // q.kernel["pw"], MAX_STREAMS


def _prefetch(q: ConstraintQuery) -> tuple[float, float] | None:
    """Lines fetched by instruction, of the eight that 512 bytes have: of flat tiles at most one (decision 668)."""
    fetched = dict(q.kernel.params).get("pf", 0)
    if fetched == SPARSE:  # an unrolled group that is shorter would fetch more
        return SPARSE_BYTES / (q.kernel["ku"] * q.kernel["pw"] * 4), 1.0
    return (8.0 if fetched >= EVERY_LINE and q.kernel["mr"] in FLAT else 0.0), 1.0


def _sums(q: ConstraintQuery) -> tuple[float, float] | None:
    """A sum waits four cycles for itself, in which L3 has two vectors of the weight ready: one for each sum of a row."""
    lanes, rows = q.kernel["vl"], q.kernel["mr"]
    return min(LEAST_VECTORS, -(-q.op["n"] // lanes)), q.kernel["nr"] // lanes * (1 if rows in FLAT else rows)


def _body(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.kernel["mr"] * q.kernel["nr"] // q.kernel["vl"] * q.kernel["ku"], MAX_BODY_FMAS


# In the order they are asked; a point counts against the first law it breaks.
LAWS: Laws = (
    ("rows", no_larger("m")),
    ("columns", _columns),
    ("depth", _depth),
    ("streams", _streams),
    ("body", _body),
    ("prefetch", _prefetch),
    ("sums", _sums),
)
