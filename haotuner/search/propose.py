"""What to measure next: the kernels that the best plan under the current knowledge would use, and a few others.

The plan, not the kernel, is what is optimised: for every layout the cheapest compositions over the traffic are computed
with measured and predicted costs, and unmeasured kernels are ranked by the share of the traffic's cost they would carry.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from haotuner.plan.compose import choose, mean_us
from haotuner.plan.cover import sketch
from haotuner.plan.curves import Curve
from haotuner.search.book import Book

EXPLORE = 0.25  # of a batch goes to kernels that no plan asks for: a model is only as good as its examples
LAYOUTS = 3  # panel widths in the race; the others are explored only


def _one_row_first(book: Book, chosen: list[str]) -> list[str]:
    """Every plan needs a one-row kernel: a run that is cut short should have seen one."""
    return sorted(chosen, key=lambda name: book.probes[name].kernel["mr"] != 1)


def started_batch(
    book: Book,
    ordered: Sequence[str],
    rows: NDArray[np.int64],
    weights: NDArray[np.float64],
    size: int,
    rng: np.random.Generator,
) -> list[str]:
    """What to measure where a model ranks already, one learnt elsewhere or the analytic one: the few kernels it would keep.

    They are asked for as a set, because few measurements must cover every m; what is left of ``size`` is proposed as usual.
    """
    kept = [curve.kernel for curve in sketch(book.layouts(ordered), rows, weights) if not book.done(curve.kernel)][:size]
    more = propose(book, [name for name in ordered if name not in kept], rows, weights, size, rng)
    return _one_row_first(book, [*kept, *more[: size - len(kept)]])


def propose(
    book: Book,
    ordered: Sequence[str],
    rows: NDArray[np.int64],
    weights: NDArray[np.float64],
    size: int,
    rng: np.random.Generator,
) -> list[str]:
    """At most ``size`` kernels that are not yet measured; empty when the plans ask for none and none is left to explore."""
    open_names = [name for name in ordered if not book.done(name)]
    if not open_names:
        return []
    wanted: dict[str, float] = {}
    ranked: list[tuple[float, dict[str, float]]] = []
    for curves in book.layouts(ordered).values():
        try:
            shares, objective = _shares(curves, rows, weights)
        except ValueError:  # this layout has no one-row kernel: it cannot serve alone
            continue
        ranked.append((objective, shares))
    ranked.sort(key=lambda pair: pair[0])
    for place, (_, shares) in enumerate(ranked[:LAYOUTS]):
        for name, share in shares.items():
            if not book.done(name):
                wanted[name] = wanted.get(name, 0.0) + share / (place + 1)
    asked = sorted(wanted, key=lambda name: (-wanted[name], name))[: max(1, int(size * (1 - EXPLORE)))]
    rest = [name for name in open_names if name not in asked]
    # Explore from the better half by expectation: the worst points are known to be bad without looking.
    pool = rest[: max(len(rest) // 2, size)]
    picked = rng.permutation(len(pool))[: size - len(asked)].tolist()
    return asked + [pool[i] for i in sorted(picked)]


def _shares(
    curves: Sequence[Curve], rows: NDArray[np.int64], weights: NDArray[np.float64]
) -> tuple[dict[str, float], float]:
    choices = choose(curves, rows.tolist())
    shares: dict[str, float] = {}
    for choice, weight in zip(choices, weights.tolist(), strict=True):
        for kernel, _ in choice.parts:
            shares[kernel] = shares.get(kernel, 0.0) + weight / len(choice.parts)
    return shares, mean_us(np.array([choice.us for choice in choices]), weights)
