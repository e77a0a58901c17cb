"""Choice of the times to take next: those that the best plan rests on and that are still predicted, optimistically.

Optimism under uncertainty (upper confidence bounds: Auer, 2002; Srinivas et al., 2010): a prediction counts as ``OPTIMISM``
spreads faster, so a shape goes on being tried while any kernel may well beat the best one measured there. The layout is
chosen without: the errors of its many kernels cancel out. A kernel is timed at the shapes the plan would use it for and not
at its whole probe: one for three rows is not asked what 256 take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from haotuner.plan.compose import choose, covers_every
from haotuner.plan.cover import sketch
from haotuner.plan.curves import Curve
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
