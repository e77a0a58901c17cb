"""The funnel: from every point of a family to the candidates worth measuring, with a count for every refusal.

Laws first (limits.py), then padding over the traffic with a threshold that relaxes until something is left (Roller, OSDI
2022; FTuner section 3.2), then a frontier that keeps the best by expectation for every (tile rows, panel width): exact
row covers need small tiles whatever their rank, and kernels are kept together only when they share a packed weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from haotuner.device import Device
from haotuner.errors import NothingLegal
from haotuner.kernel import Candidate, Family, MicroKernel, Refused
from haotuner.op import Op
from haotuner.select.limits import Question, refusals
from haotuner.shape import Traffic

PADDING_FIRST = 0.03  # of the columns; FTuner starts at 0.05 for both axes together, rows are exact here
PADDING_STEP = 0.05
FRONTIER = 256  # candidates at most: about 40 s of compiling on two cores, a tenth is measured before the model decides
EXAMPLES = 200  # refusals kept word for word for the report; the counts are complete

Score = Callable[[Sequence[MicroKernel]], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """What came through, and what did not."""

    points: int
    legal: int
    kept: tuple[Candidate, ...]
    refused: dict[str, int]
    examples: tuple[Refused, ...] = field(repr=False)

    def line(self) -> str:
        """``972 points → 420 legal → 138 on the frontier``."""
        return f"{self.points:,} points → {self.legal:,} legal → {len(self.kept):,} on the frontier"


def select(op: Op, family: Family, device: Device, traffic: Traffic, score: Score, *, most: int = FRONTIER) -> Funnel:
    """Candidates of one family for an op, best expectation first. NothingLegal if no point obeys the laws.

    ``score`` gives the analytic expectation of each kernel over the traffic, higher is better.
    """
    rows = max(shape["m"] for shape in traffic.shapes())
    counts: Counter[str] = Counter()
    examples: list[Refused] = []
    legal: list[Candidate] = []
    points = 0
    for kernel in family.points(op, device):
        points += 1
        footprint = family.footprint(kernel)
        broken = next(refusals(Question(kernel=kernel, footprint=footprint, op=op, device=device, rows=rows)), None)
        if broken is None:
            legal.append(Candidate(kernel=kernel, footprint=footprint))
        else:
            counts[broken.law] += 1
            if len(examples) < EXAMPLES:
                examples.append(broken)
    if not legal:
        laws = ", ".join(f"{law} refused {count}" for law, count in counts.items())
        raise NothingLegal(f"{op.name} on {device.id}: none of {points} points of {family.name} is legal ({laws})")
    padded = _padding(op, legal, counts, examples)
    kept = _frontier(padded, score, most, counts, examples)
    return Funnel(points=points, legal=len(legal), kept=kept, refused=dict(counts), examples=tuple(examples))


def _padding(op: Op, legal: list[Candidate], counts: Counter[str], examples: list[Refused]) -> list[Candidate]:
    n = op["n"]
    waste = {c.kernel: -(-n // c.kernel["nr"]) * c.kernel["nr"] / n - 1 for c in legal}
    # Every tile height keeps its least padded kernels: a small shape must not lose them.
    least = {mr: min(w for k, w in waste.items() if k["mr"] == mr) for mr in {c.kernel["mr"] for c in legal}}
    allowed = {
        mr: PADDING_FIRST + PADDING_STEP * np.ceil(max(0.0, w - PADDING_FIRST) / PADDING_STEP) for mr, w in least.items()
    }
    kept = [c for c in legal if waste[c.kernel] <= allowed[c.kernel["mr"]]]
    for candidate in legal:
        asked, limit = waste[candidate.kernel], float(allowed[candidate.kernel["mr"]])
        if asked > limit:
            counts["padding"] += 1
            if len(examples) < EXAMPLES:
                examples.append(Refused(kernel=candidate.kernel, law="padding", asked=asked, allowed=limit))
    return kept


def _frontier(
    legal: list[Candidate], score: Score, most: int, counts: Counter[str], examples: list[Refused]
) -> tuple[Candidate, ...]:
    scores = score([c.kernel for c in legal])
    ranked = sorted(zip(scores.tolist(), legal, strict=True), key=lambda pair: (-pair[0], pair[1].kernel.name))
    depth: Counter[tuple[int, int]] = Counter()
    places: list[tuple[int, float, Candidate]] = []
    for value, candidate in ranked:
        group = (candidate.kernel["mr"], candidate.kernel["pw"])
        places.append((depth[group], value, candidate))
        depth[group] += 1
    places.sort(key=lambda place: (place[0], -place[1], place[2].kernel.name))  # the best of every group, then the seconds
    for rank, (_, _, candidate) in enumerate(places[most:], most + 1):
        counts["frontier"] += 1
        if len(examples) < EXAMPLES:
            examples.append(Refused(kernel=candidate.kernel, law="frontier", asked=rank, allowed=most))
    kept = [Candidate(kernel=c.kernel, footprint=c.footprint, score=value) for _, value, c in places[:most]]
    return tuple(sorted(kept, key=lambda c: (-c.score, c.kernel.name)))
