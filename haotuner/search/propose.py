"""Proposals to measure next: what the best plan would use, by an optimistic acquisition, and a few others.

Choice of the times to take next: those that the best plan rests on and that are still predicted, optimistically.

Optimism under uncertainty (upper confidence bounds: Auer, 2002; Srinivas et al., 2010): a prediction counts as ``OPTIMISM``
spreads faster, so a shape goes on being tried while any kernel may well beat the best one measured there. The layout is
chosen without: the errors of its many kernels cancel out. A kernel is timed at the shapes the plan would use it for and not
at its whole probe: one for three rows is not asked what 256 take.

The plan, not the kernel, is what is optimised: for every layout the cheapest compositions over the traffic are computed with
measured and predicted costs. Unmeasured kernels are ranked by the share of the traffic's cost they would carry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from haotuner.plan.compose import Curve, can_serve, choose, covers_every, mean_us
from haotuner.plan.cover import cover, sketch
from haotuner.search.observations import ObservationTable
from haotuner.search.probes import Probe
from haotuner.spec.record import Trial

# Spreads, so 10 % at first. Loss after a tenth from all other devices, Zen 4 AVX-512 and AVX2: none 2.6 and 2.6 %, 0.7 1.9
# and 2.1, 1.0 2.4 and 1.1; over five devices 0.7 and 1.0 were level (2.1).
OPTIMISM = 0.7
POINTS = 12  # a round: some three whole probes; 8 and 16 were level
# With fewer than ``FEW`` trials open the plan is nearly measured, yet a start may have misjudged all that lies beyond it, a
# whole layout even: optimism grows then. Loss where searches stop on SSE from models of AVX2, AVX-512 and the other host's
# AVX-512: 1.4, 1.8 and 5.8 % without, with 4 and patience (strategies.py) 0.1, 0.5 and 0.8; nearer starts as before, some 10
# timings more. 12: -1.9, -0.4 and -1.3, for twice the kernels.
FEW = 4
BOLDER = (OPTIMISM, 2 * OPTIMISM, 4 * OPTIMISM)


def next_points(
    book: ObservationTable, ordered: Sequence[str], rows: NDArray[np.int64], shares: NDArray[np.float64]
) -> dict[str, list[Trial]]:
    """At most ``POINTS`` trials without a time, by kernel, those that carry most of the traffic; empty if all have one.

    Of the layout that is expected to be the best; with fewer than ``FEW`` left there of any, and the optimism grows.
    Hope went to another layout after a round or two: an untried one has no disappointments yet.

    A kernel of one row comes first: every plan needs one, and a run that is cut short should have seen it.
    """
    axis = book.op.dynamic[0]
    first: list[Trial] = []
    expected = sketch(book.layouts(ordered), rows, shares)[:1]
    for optimism in BOLDER:
        layouts = book.layouts(ordered, -optimism)
        if expected and optimism == OPTIMISM:
            layout = book.probes[expected[0].kernel].layout
            layouts = {layout: layouts[layout]}
        chosen = sketch(layouts, rows, shares)
        rests = rests_on(chosen, book.probes, rows, shares) if chosen else {}
        more = sorted(book.open(rests.keys() - set(first)), key=lambda t: (-rests[t], t.kernel, t.shape[axis]))
        first += more[: POINTS - len(first)]
        if len(first) >= FEW:
            break
    trials: dict[str, list[Trial]] = {}
    for trial in first:
        trials.setdefault(trial.kernel, []).append(trial)
    return dict(sorted(trials.items(), key=lambda item: not covers_every(book.probes[item[0]])))


def rests_on(
    curves: Sequence[Curve], probes: Mapping[str, Probe], rows: NDArray[np.int64], shares: NDArray[np.float64]
) -> dict[Trial, float]:
    """Share of the traffic that the best compositions of these curves take from each leading trial.

    Between two points of a curve each counts by its nearness. What a region behind another takes is left out: the plan
    was no better for knowing it.
    """
    result: dict[Trial, float] = {}
    for planned, weight in zip(choose(curves, rows.tolist()), shares.tolist(), strict=True):
        (kernel, tiles), *_ = planned.composition.parts
        at, trials = [t for t, _ in probes[kernel].lead], [trial for _, trial in probes[kernel].lead]
        high = min(int(np.searchsorted(at, tiles)), len(at) - 1)
        low = max(high - 1, 0) if tiles < at[high] else high
        near = (tiles - at[low]) / (at[high] - at[low]) if low < high else 1.0
        for trial, share in ((trials[low], 1 - near), (trials[high], near)):
            if share > 0:
                result[trial] = result.get(trial, 0.0) + weight * share
    return result


FIRST_BATCH = 20  # kernels before a model learnt here has a say: all that a plan without measurements keeps, and some others
NEXT_BATCH = 8  # a round of a second: rounds of 16 took a third more kernels to 98 %, and fitting (0.1 s) hardly counts
STARTED_BATCH = 4  # kernels of a round with a model learnt elsewhere, where its plan rests on measured times alone
EXPLORE = 0.25  # of a batch goes to kernels that no plan asks for: a model is only as good as its examples
LAYOUTS = 3  # in the race; the others are explored only


def rounds(
    book: ObservationTable,
    ordered: Sequence[str],
    rows: NDArray[np.int64],
    shares: NDArray[np.float64],
    seed: int,
    ahead: Sequence[str],
) -> Iterator[dict[str, list[Trial]]]:
    """Trials to measure, by kernel, until nothing is left to ask; what was noted and learned meanwhile decides the next.

    With a model learnt elsewhere: first what its opinions share, where it has several (``probes.py``), then single points of
    what its plan would use (``next_points``). Whole probes of other kernels follow once all of these have a time. From cold:
    first whole probes of what a plan without measurements keeps (``ahead``, of ``foreseen``), then of what plans ask for. So
    a short search is no worse than none: after 24 kernels the plan was at 0.95 of the best; after a start that spread over
    tile sizes at 0.45 to 0.76.
    """
    rng = np.random.default_rng(seed)
    first = True
    while True:
        batch = (book.head() or next_points(book, ordered, rows, shares)) if book.started else {}
        if not batch:
            size = STARTED_BATCH if book.started else FIRST_BATCH if first else NEXT_BATCH
            names = propose(book, ordered, rows, shares, size, rng, ahead if first and not book.started else ())
            batch = {name: book.open(book.probes[name].trials()) for name in names}
        if not batch:
            return
        yield batch
        first = False


def propose(
    book: ObservationTable,
    ordered: Sequence[str],
    rows: NDArray[np.int64],
    shares: NDArray[np.float64],
    size: int,
    rng: np.random.Generator,
    ahead: Sequence[str] = (),
) -> list[str]:
    """At most ``size`` kernels that are not yet measured; empty when the plans ask for none and none is left to explore.

    ``ahead``: first these, a set that would be kept, because few measurements must cover every m; one of one row in front,
    because every plan needs one and a run that is cut short should have seen it.
    """
    if ahead:
        names_ahead = [name for name in ahead if not book.done(name)][:size]
        more = propose(book, [name for name in ordered if name not in names_ahead], rows, shares, size, rng)
        chosen = [*names_ahead, *more[: size - len(names_ahead)]]
        return sorted(chosen, key=lambda name: not covers_every(book.probes[name]))
    open_names = [name for name in ordered if not book.done(name)]
    if not open_names:
        return []
    gains: dict[str, float] = {}
    ranked: list[tuple[float, dict[str, float]]] = []
    for curves in book.layouts(ordered).values():
        if can_serve(curves):
            uses, objective = _uses(curves, rows, shares)
            ranked.append((objective, uses))
    ranked.sort(key=lambda pair: pair[0])
    for index, (_, uses) in enumerate(ranked[:LAYOUTS]):
        for name, share in uses.items():
            if not book.done(name):
                gains[name] = gains.get(name, 0.0) + share / (index + 1)
    names = sorted(gains, key=lambda name: (-gains[name], name))[: max(1, int(size * (1 - EXPLORE)))]
    rest = [name for name in open_names if name not in names]
    # Explore from the better half by expectation: the worst points are known to be bad without looking.
    pool = rest[: max(len(rest) // 2, size)]
    picked = rng.permutation(len(pool))[: size - len(names)].tolist()
    return names + [pool[i] for i in sorted(picked)]


def foreseen(
    book: ObservationTable, ordered: Sequence[str], rows: NDArray[np.int64], shares: NDArray[np.float64]
) -> tuple[str, ...]:
    """The kernels that a plan would keep by what the book says now, those worth most first; none if none could serve."""
    layouts = book.layouts(ordered)
    if not any(can_serve(curves) for curves in layouts.values()):
        return ()
    return tuple(curve.kernel for curve in cover(layouts, rows, shares, exact=False).curves)


def _uses(curves: Sequence[Curve], rows: NDArray[np.int64], shares: NDArray[np.float64]) -> tuple[dict[str, float], float]:
    """Share of the traffic by kernel that the best compositions take from it, and what they take in the mean."""
    every = choose(curves, rows.tolist())
    uses: dict[str, float] = {}
    for planned, share in zip(every, shares.tolist(), strict=True):
        parts = planned.composition.parts
        for kernel, _ in parts:
            uses[kernel] = uses.get(kernel, 0.0) + share / len(parts)
    return uses, mean_us(np.array([planned.us for planned in every]), shares)
