"""Greedy: a set of micro-kernels grown by the one that helps most, every candidate looked at together.

A search sketches its plan several times a round, so it has to cost little. What covers the remainders of a set with one
more kernel is computed for all of them at once: 8 of 46 kernels over 32 shapes take 3 ms, 19 when each set is composed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from haotuner.plan.compose import BACK, Leads, alone_us, covers_every, fill_us
from haotuner.plan.curves import Curve

Value = Callable[[NDArray[np.float64], int], NDArray[np.float64]]


def greedy(curves: Sequence[Curve], rows: NDArray[np.int64], value: Value, most: int) -> tuple[Curve, ...]:
    """Adds what helps most until nothing does, beginning with the best alone of those that cover every shape.

    Args:
        curves: the candidates; one of them covers every shape.
        rows: m of every shape, ``(shapes,)``.
        value: of several sets of as many kernels, from their times ``(sets, shapes)`` and that number; lower is better.
        most: kernels that a set may have.
    """
    leads = Leads.of(curves, rows)
    alone = alone_us(curves, (BACK + 1) * max(curve.rows for curve in curves))
    indices = [min((i for i, c in enumerate(curves) if covers_every(c)), key=lambda i: curves[i].lead_us[0][1])]
    best = value(_least(leads, alone, [], indices), 1)[0]
    while len(indices) < most:
        options = [i for i in range(len(curves)) if i not in indices]
        values = value(_least(leads, alone, indices, options), len(indices) + 1) if options else np.array([np.inf])
        if values.min() >= best:
            break
        best = values.min()
        indices.append(min((options[i] for i in np.flatnonzero(values == best)), key=lambda i: curves[i].kernel))
    return tuple(curves[i] for i in indices)


def _least(leads: Leads, alone: NDArray[np.float64], indices: list[int], options: list[int]) -> NDArray[np.float64]:
    """The least time of every shape with the kept kernels and one of the options; shape ``(options, shapes)``."""
    fill = fill_us(np.minimum(alone[options], alone[indices].min(axis=0, initial=np.inf)))
    each = np.arange(len(options))[:, np.newaxis, np.newaxis]
    mine = leads.us[options] + fill[each, leads.rest[options]]
    theirs = leads.us[indices] + fill[:, leads.rest[indices]]
    return np.asarray(np.minimum(mine.min(axis=1), theirs.min(axis=(1, 2), initial=np.inf)), np.float64)
