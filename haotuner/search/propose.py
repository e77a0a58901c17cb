"""Proposals to measure next: what the best plan under the current knowledge would use, and a few others.

The plan, not the kernel, is what is optimised: for every layout the cheapest compositions over the traffic are computed
with measured and predicted costs, and unmeasured kernels are ranked by the share of the traffic's cost they would carry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from haotuner.plan.compose import can_serve, choose, covers_every, mean_us
from haotuner.plan.cover import cover
from haotuner.plan.curves import Curve
from haotuner.search.acquisition import next_points
from haotuner.search.observations import ObservationTable
from haotuner.spec.record import Trial

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

    With a model learnt elsewhere first what its opinions share, where it has several (``initial_design.py``), then single
    points of what its plan would use (``points``), and whole probes of other kernels once all of these have a time. From
    cold whole probes of what a plan without measurements keeps (``ahead``, of ``foreseen``), so that a short search is no
    worse than none (after 24 kernels the plan was at 0.95 of the best; after a start that spread over tile sizes at 0.45 to
    0.76), then of what plans ask for.
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
    return tuple(curve.kernel for curve in cover(layouts, rows, shares, exact=False).kept)


def _uses(curves: Sequence[Curve], rows: NDArray[np.int64], shares: NDArray[np.float64]) -> tuple[dict[str, float], float]:
    """Share of the traffic by kernel that the best compositions take from it, and what they take in the mean."""
    every = choose(curves, rows.tolist())
    uses: dict[str, float] = {}
    for planned, share in zip(every, shares.tolist(), strict=True):
        parts = planned.composition.parts
        for kernel, _ in parts:
            uses[kernel] = uses.get(kernel, 0.0) + share / len(parts)
    return uses, mean_us(np.array([planned.us for planned in every]), shares)
