"""Laws of the dense fp32 family for CPUs, beyond those of every family."""

from __future__ import annotations

from haotuner.words.law import Laws, Question, no_larger

# Reading more weight streams than this fell to half speed: with k a power of two they meet in the same L1 sets.
MAX_STREAMS = 4
# A longer unrolled body leaves the micro-op cache (Zen 5: 6K ops, Golden Cove: 4K) and gains nothing in loop overhead.
MAX_BODY_FMAS = 512


def _columns(q: Question) -> tuple[float, float] | None:
    lanes = q.kernel["vl"]
    return q.kernel["nr"], -(-q.op["n"] // lanes) * lanes


def _depth(q: Question) -> tuple[float, float] | None:
    return q.kernel["ku"], q.op["k"]


def _streams(q: Question) -> tuple[float, float] | None:
    return q.kernel["nr"] // q.kernel["pw"], MAX_STREAMS


def _body(q: Question) -> tuple[float, float] | None:
    return q.kernel["mr"] * q.kernel["nr"] // q.kernel["vl"] * q.kernel["ku"], MAX_BODY_FMAS


# In the order they are asked; a point counts against the first law it breaks.
LAWS: Laws = (
    ("rows", no_larger("m")),
    ("columns", _columns),
    ("depth", _depth),
    ("streams", _streams),
    ("body", _body),
)
