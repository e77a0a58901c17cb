"""Laws of CPUs: what a micro-kernel may ask of a device and an op. Each gives both sides of the inequality it breaks."""

from __future__ import annotations

from haotuner.words.law import Laws, Question

# Reading more weight streams than this fell to half speed: with k a power of two they meet in the same L1 sets.
MAX_STREAMS = 4
# A longer unrolled body leaves the micro-op cache (Zen 5: 6K ops, Golden Cove: 4K) and gains nothing in loop overhead.
MAX_BODY_FMAS = 512
L1_SHARE = 0.5  # one unrolled step may fill half of L1; the rest holds what the prefetchers bring next


def _registers(q: Question) -> tuple[float, float] | None:
    return q.footprint.registers_per_thread, q.device.registers_per_thread


def _l1(q: Question) -> tuple[float, float] | None:
    return None if q.device.l1_bytes is None else (q.footprint.shared_bytes, q.device.l1_bytes * L1_SHARE)


def _rows(q: Question) -> tuple[float, float] | None:
    return q.kernel["mr"], q.most["m"]


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
CPU_LAWS: Laws = (
    ("registers", _registers),
    ("l1", _l1),
    ("rows", _rows),
    ("columns", _columns),
    ("depth", _depth),
    ("streams", _streams),
    ("body", _body),
)
