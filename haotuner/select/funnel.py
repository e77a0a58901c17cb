"""The funnel: from every point of a family to the candidates worth measuring, with a count for every refusal.

Laws first (limits.py, limits_gpu.py), then padding, on a GPU also parallel fill, over the traffic with thresholds that
relax until something is left (Roller, OSDI 2022; FTuner section 3.2), then a frontier that keeps the best by expectation
of every group of tiles, for every use of them. On a CPU a group is a tile height and panel width: exact row covers need
small tiles whatever their rank, and kernels are kept together only when they share a packed weight. On a GPU it is the
tile of Y.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from haotuner.errors import NothingLegal
from haotuner.select.fit_gpu import fitting
from haotuner.select.ledger import Ledger
from haotuner.select.limits import CPU_LAWS
from haotuner.select.limits_gpu import GPU_LAWS
from haotuner.words.device import Device
from haotuner.words.family import Family
from haotuner.words.kernel import Candidate, MicroKernel, Refused
from haotuner.words.law import Question, refusals
from haotuner.words.op import Op
from haotuner.words.traffic import Traffic

PADDING_FIRST = 0.03  # of the columns; FTuner starts at 0.05 for both axes together, rows are exact here
PADDING_STEP = 0.05
FRONTIER = 512  # candidates at most: scoring them takes 20 ms a round; only those that are measured are ever compiled
EXAMPLES = 200  # refusals kept word for word for the report; the counts are complete

Score = Callable[[Sequence[MicroKernel]], NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """Result of selection: the candidates kept, and the points refused."""

    points: int
    legal: int
    kept: tuple[Candidate, ...]
    refused: dict[str, int]
    examples: tuple[Refused, ...] = field(repr=False)

    def line(self) -> str:
        """``972 points → 420 legal → 138 on the frontier``."""
        return f"{self.points:,} points → {self.legal:,} legal → {len(self.kept):,} on the frontier"


def select(
    op: Op,
    family: Family,
    device: Device,
    traffic: Traffic,
    score: Score,
    *,
    most: int = FRONTIER,
    among: Sequence[MicroKernel] = (),
) -> Funnel:
    """Candidates of one family for an op, best expectation first. NothingLegal if no point obeys the laws.

    ``score`` gives the expectation of each kernel, higher is better: one number, or one for each use (a few rows, many).
    ``among``: look at these points only; none: at all of the family.
    """
    extents = [op.extents(shape) for shape in traffic.shapes()]
    largest = {axis: max(of[axis] for of in extents) for axis in op.dynamic}
    cpu, suits = device.kind == "cpu", family.suits(device)
    laws = CPU_LAWS if cpu else GPU_LAWS
    ledger = Ledger(room=EXAMPLES)
    legal: list[Candidate] = []
    points = 0
    for kernel in among or family.points(op, device):
        points += 1
        footprint = family.footprint(kernel)
        question = Question(kernel=kernel, footprint=footprint, op=op, device=device, most=largest, suits=suits)
        broken = next(refusals(question, laws), None)
        if broken is None:
            legal.append(Candidate(kernel=kernel, footprint=footprint))
        else:
            ledger.note(broken)
    if not legal:
        refused = ", ".join(f"{law} refused {count}" for law, count in ledger.counts.items())
        raise NothingLegal(f"{op.name} on {device.id}: none of {points} points of {family.name} is legal ({refused})")
    fitting_ones = _padding(op, legal, ledger) if cpu else fitting(op, device, traffic, legal, ledger)
    kept = _frontier(fitting_ones, score, most, ledger, ("mr", "pw") if cpu else ("bm", "bn"))
    return Funnel(points=points, legal=len(legal), kept=kept, refused=dict(ledger.counts), examples=tuple(ledger.examples))


def _padding(op: Op, legal: list[Candidate], ledger: Ledger) -> list[Candidate]:
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
            ledger.refuse(candidate.kernel, "padding", asked, limit)
    return kept


def _frontier(
    legal: list[Candidate], score: Score, most: int, ledger: Ledger, group_by: tuple[str, str]
) -> tuple[Candidate, ...]:
    scores = score([c.kernel for c in legal])
    scores = scores[:, None] if scores.ndim == 1 else scores
    groups = [(c.kernel[group_by[0]], c.kernel[group_by[1]]) for c in legal]
    depth = np.full(len(legal), len(legal))  # how many of its group a kernel stands behind, in the use it suits best
    for use in scores.T:
        seen: Counter[tuple[int, int]] = Counter()
        for at in sorted(range(len(legal)), key=lambda i: (-use[i], legal[i].kernel.name)):
            depth[at] = min(depth[at], seen[groups[at]])
            seen[groups[at]] += 1
    places = list(zip(depth.tolist(), scores.mean(axis=1).tolist(), legal, strict=True))
    places.sort(key=lambda place: (place[0], -place[1], place[2].kernel.name))  # the best of every group, then the seconds
    for rank, (_, _, candidate) in enumerate(places[most:], most + 1):
        ledger.refuse(candidate.kernel, "frontier", rank, most)
    kept = [Candidate(kernel=c.kernel, footprint=c.footprint, score=value) for _, value, c in places[:most]]
    return tuple(sorted(kept, key=lambda c: (-c.score, c.kernel.name)))
