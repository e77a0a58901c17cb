"""First measurements of a search: probes of a cost curve, and the initial design where sources disagree.

Initial design of a search whose sources of a start disagree: a portfolio of their opinions, a few at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from haotuner.backends.index import backend_for
from haotuner.cost.model import CostModel, HasEnsemble
from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.spec.family import Family, Layout
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Trial
from haotuner.spec.shape import Shape

FIRST = 8
TOGETHER = 8  # chosen before any of them is measured: compilers work two at a time, and a round costs a second


def initial_design(
    model: CostModel | None,
    frame: pd.DataFrame,
    tasks: Sequence[NDArray[np.int64]],
    labels: dict[int, float],
    *,
    left_out: NDArray[np.int64],
) -> list[int]:
    """Rows of a frame to measure next; none once enough are measured, or where nobody can disagree.

    Args:
        model: what the search started from.
        frame: a row for every kernel and shape.
        tasks: rows that compete with each other; a row may stand in several.
        labels: log(throughput / roofline) of the measured rows.
        left_out: rows that cannot be measured.
    """
    if not isinstance(model, HasEnsemble) or len(labels) >= FIRST:
        return []
    out = set(left_out.tolist())
    every = [np.array([row for row in rows.tolist() if row not in out], np.int64) for rows in tasks]
    every = [rows for rows in every if len(rows) > 1]
    if not every:
        return []
    rows = np.concatenate(every)
    of = np.repeat(np.arange(len(every)), [len(rows) for rows in every])
    known = np.flatnonzero(np.isin(rows, list(labels)))
    names = model.head(frame.iloc[rows], of, 2 * TOGETHER, known, [labels[row] for row in rows[known].tolist()])
    return [row for row in dict.fromkeys(rows[names].tolist()) if row not in labels][:TOGETHER]


# One tile (small shapes are all about the weight stream), about 32 rows (decode batches), about 256 (in bulk the curve is a
# line).
PROBE_ROWS = (1, 32, 256)
# And two tiles, whatever their height: from there on the next panel can be fetched while rows pass, and a straight line from
# one tile to 32 rows had missed it by 20 % (8x48 at m=16, cold, n=k=1024: 164 us, 201 on the line).
PROBE_TILES = (2,)
FOLLOW_TILES = 2  # of what is timed behind another region: the first still warms L1 for the second
# The kept kernels get a denser curve: doubling steps, where a straight line between errs under 2 %.
DENSE_ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Trials of one micro-kernel for one op: leading regions by tiles, and the region that follows another."""

    kernel: MicroKernel
    rows: int  # extent of a tile along the op's dynamic axis
    layout: Layout
    lead: tuple[tuple[int, Trial], ...]
    follow: Trial
    follow_scale: float  # times it, the follow trial is one tile over the whole output

    def trials(self) -> tuple[Trial, ...]:
        """All of them, the cheapest first."""
        return (self.follow, *(trial for _, trial in self.lead))


def rows_of(family: Family, kernel: MicroKernel, op: Op) -> int:
    """Extent of a micro-kernel's tile along the op's one dynamic axis."""
    return family.tile(kernel).extent[op.dynamic[0]]


def uses(tile: int, rows: tuple[int, ...] = PROBE_ROWS, most_rows: int = max(PROBE_ROWS)) -> tuple[int, ...]:
    """Tiles of a kernel in each of its uses, from the rows of one: those of ``rows``, then two tiles.

    Uses of a tall tile may coincide.
    """
    requested = (*(round(min(row, most_rows) / tile) for row in rows), *(min(t, most_rows // tile) for t in PROBE_TILES))
    return tuple(max(1, tiles) for tiles in requested)


def probe(
    kernel: MicroKernel,
    op: Op,
    family: Family,
    device: Device,
    most_rows: int,
    *,
    cache: str,
    threads: int = 1,
    rows: tuple[int, ...] = PROBE_ROWS,
) -> Probe:
    """The trials of one kernel; no shape has more than about ``most_rows`` rows."""
    axis, tile = op.dynamic[0], rows_of(family, kernel, op)
    alone = Composition.of(kernel.name)
    lead = tuple(
        (tiles, Trial.of(op, alone, Shape.of({axis: tiles * tile}), threads=threads, cache=cache))
        for tiles in sorted(set(uses(tile, rows, most_rows)))
    )
    behind = backend_for(device).follow(op, kernel, device, FOLLOW_TILES)
    return Probe(
        kernel=kernel,
        rows=tile,
        layout=family.layout(kernel),
        lead=lead,
        follow=behind.trial,
        follow_scale=behind.scale,
    )
