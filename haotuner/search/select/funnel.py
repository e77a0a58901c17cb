"""Pruner (the funnel): from every point of a family to the candidates worth measuring, with a count for every refusal.

Laws first (limits.py and the family's own), then what is computed in vain: padding alone where tiles cover some axis exactly
(fit.py), padding and parallel fill over the traffic where a tile serves a shape alone (fit.py); thresholds relax until
something is left (Roller, OSDI 2022; FTuner section 3.2). Then a frontier that keeps the best by expectation of every group
of tiles, for every use of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from haotuner.errors import NothingLegal
from haotuner.search.select.fit import Rejections, exact_axes, fitting, group, unpadded
from haotuner.search.select.limits import common_laws, question
from haotuner.spec.constraint import refusals
from haotuner.spec.demand import Expectation
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import Candidate, Footprint, MicroKernel, Refused
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic

EXAMPLES = 200  # refusals kept word for word for the report; the counts are complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Funnel:
    """Result of selection: the candidates kept, and the points refused."""

    points: int
    legal: int
    candidates: tuple[Candidate, ...]
    refused: dict[str, int]
    examples: tuple[Refused, ...] = field(repr=False)

    def line(self) -> str:
        """``972 points → 420 legal → 138 on the frontier``."""
        return f"{self.points:,} points → {self.legal:,} legal → {len(self.candidates):,} on the frontier"


def select(
    op: Op,
    family: Family,
    device: Device,
    traffic: Traffic,
    score: Expectation,
    *,
    most: int | None = None,
    among: Sequence[MicroKernel] = (),
) -> Funnel:
    """Candidates of one family for an op, best expectation first. NothingLegal if no point obeys the constraints.

    ``score`` gives the expectation of each kernel, higher is better: one number, or one for each use (a few rows, many), or
    these by several opinions.
    ``most`` candidates are kept, ``family.frontier`` if None.
    ``among``: look at these points only; none: at all of the family.
    """
    room = family.frontier if most is None else most
    ledger = Rejections(room=EXAMPLES)
    points, legal = _legal(op, family, device, traffic, ledger, among)
    if not legal:
        refused = ", ".join(f"{law} refused {count}" for law, count in ledger.counts.items())
        raise NothingLegal(f"{op.name} on {device.id}: none of {points} points of {family.name} is legal ({refused})")
    if exact_axes(family.tile(legal[0].kernel)):
        fitting_ones = unpadded(op, family, traffic, legal, ledger)
    else:
        fitting_ones = fitting(op, family, device, traffic, legal, ledger)
    candidates = _frontier(family, fitting_ones, score, room, ledger)
    return Funnel(
        points=points, legal=len(legal), candidates=candidates, refused=dict(ledger.counts), examples=tuple(ledger.examples)
    )


def _legal(
    op: Op, family: Family, device: Device, traffic: Traffic, ledger: Rejections, among: Sequence[MicroKernel]
) -> tuple[int, list[Candidate]]:
    """Number of points, and the candidates that obey every constraint."""
    extents = [op.extents(shape) for shape in traffic.shapes()]
    largest = {axis: max(of[axis] for of in extents) for axis in op.dynamic}
    common, own = common_laws(device), family.laws(op, device)
    of_footprint: dict[Footprint, Refused | None] = {}  # the first common law that it breaks
    legal: list[Candidate] = []
    points = 0
    for kernel in among or family.points(op, device):
        points += 1
        footprint = family.footprint(kernel)
        if footprint not in of_footprint:
            of_footprint[footprint] = next(refusals(question(family, kernel, op, device, largest), common), None)
        broken = of_footprint[footprint]
        if broken is not None:
            ledger.refuse(kernel, broken.law, broken.requested, broken.allowed)
            continue
        broken = next(refusals(question(family, kernel, op, device, largest), own), None)
        if broken is None:
            legal.append(Candidate(kernel=kernel, footprint=footprint))
        else:
            ledger.note(broken)
    return points, legal


def _frontier(
    family: Family, legal: Sequence[Candidate], score: Expectation, most: int, ledger: Rejections
) -> tuple[Candidate, ...]:
    scores = score([c.kernel for c in legal])
    scores = scores[:, None] if scores.ndim == 1 else scores
    means = (scores[0] if scores.ndim == 3 else scores).mean(axis=1)
    columns = scores.transpose(0, 2, 1).reshape(-1, len(legal)) if scores.ndim == 3 else scores.T
    groups = [group(family, c.kernel) for c in legal]
    names = [c.kernel.name for c in legal]
    places_of: dict[tuple[int, ...], int] = {}
    own = np.array([places_of.setdefault(group_, len(places_of)) for group_ in groups], np.int64)
    by_name = np.empty(len(legal), np.int64)
    by_name[sorted(range(len(legal)), key=names.__getitem__)] = np.arange(len(legal))
    depth = np.full(len(legal), len(legal))  # how many of its group a kernel stands behind, in the use it suits best
    for use in columns:
        order = np.lexsort((by_name, -use, own))  # group after group, the best of each first
        first_of = np.searchsorted(own[order], np.arange(len(places_of)))
        depth[order] = np.minimum(depth[order], np.arange(len(legal)) - first_of[own[order]])
    # Uses and opinions may name more bests than there is room for. One of each group comes first: single rows are never the
    # best on average, and without them no plan covers every shape.
    first = {groups[at]: at for at in np.argsort(means, kind="stable").tolist() if depth[at] == 0}
    depth[list(first.values())] = -1
    places = list(zip(depth.tolist(), means.tolist(), names, legal, strict=True))
    places.sort(key=lambda index: (index[0], -index[1], index[2]))  # the bests of every group, then the seconds
    for rank, (_, _, _, candidate) in enumerate(places[most:], most + 1):
        ledger.refuse(candidate.kernel, "frontier", rank, most)
    candidates = [Candidate(kernel=c.kernel, footprint=c.footprint, score=value) for _, value, _, c in places[:most]]
    return tuple(sorted(candidates, key=lambda c: (-c.score, c.kernel.name)))


def joined(funnels: Sequence[Funnel]) -> Funnel:
    """The candidates of several families, those of the first ahead."""
    first, *others = funnels
    refused = dict(first.refused)
    for item in others:
        refused |= {law: refused.get(law, 0) + count for law, count in item.refused.items()}
    return replace(
        first,
        points=sum(funnel.points for funnel in funnels),
        legal=sum(funnel.legal for funnel in funnels),
        candidates=tuple(candidate for funnel in funnels for candidate in funnel.candidates),
        refused=refused,
    )
