"""Records made by hand; no hypothesis here, so that the processes of tests start fast."""

from __future__ import annotations

from haotuner.records.codec import trial_of
from haotuner.spec.record import Outcome, Record, Timed
from haotuner.spec.shape import Shape


def record(
    m: int = 1,
    *,
    us: float = 10.0,
    session: str = "s",
    fingerprint: str = "f",
    op: str = "dense_n8_k8",
    device_id: str = "cpu",
    outcome: Outcome | None = None,
) -> Record:
    return Record(
        trial=trial_of(op=op, kernel="cpu_dense_fp32__mr6_nr64", shape=Shape.of(m=m)),
        outcome=outcome or Timed(samples_us=(us, us + 0.1)),
        device_id=device_id,
        fingerprint=fingerprint,
        session=session,
        when=1_700_000_000.25 + m,
        facts={"spills": 0.0},
    )
