"""Probes: the few shapes at which a micro-kernel is timed so that its cost curve is known."""

from __future__ import annotations

from dataclasses import dataclass

from haotuner.backends.index import backend_for
from haotuner.words.device import Device
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op
from haotuner.words.record import Trial
from haotuner.words.shape import Shape

# One tile (small m is all about the weight stream), about 32 rows (decode batches), about 256 (in bulk the curve is a line).
PROBE_ROWS = (1, 32, 256)
# And two tiles, whatever their height: from there on the next panel can be fetched while rows pass, and a straight line from
# one tile to 32 rows had missed it by 20 % (8x48 at m=16, cold, n=k=1024: 164 us, 201 on the line).
PROBE_TILES = (2,)
FOLLOW_TILES = 2  # of the trial that tells what a region behind another one takes
# The kept kernels get a denser curve: doubling steps, where a straight line between errs under 2 %.
DENSE_ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Trials of one micro-kernel for one op: leading regions by tiles, and the region that follows another."""

    kernel: MicroKernel
    lead: tuple[tuple[int, Trial], ...]
    follow: Trial
    follow_scale: float  # the follow trial computes a column block; times this it is all columns that are computed

    def trials(self) -> tuple[Trial, ...]:
        """All of them, the cheapest first."""
        return (self.follow, *(trial for _, trial in self.lead))


def uses(mr: int, rows: tuple[int, ...] = PROBE_ROWS, most_rows: int = max(PROBE_ROWS)) -> tuple[int, ...]:
    """Row tiles of a kernel in each of its uses: those of ``rows``, then two tiles. Uses of a tall tile may coincide."""
    asked = (*(round(min(row, most_rows) / mr) for row in rows), *(min(t, most_rows // mr) for t in PROBE_TILES))
    return tuple(max(1, tiles) for tiles in asked)


def probe(
    kernel: MicroKernel,
    op: Op,
    device: Device,
    most_rows: int,
    *,
    weights: str,
    threads: int = 1,
    rows: tuple[int, ...] = PROBE_ROWS,
) -> Probe:
    """The trials of one kernel; no shape has more than about ``most_rows`` rows."""
    mr = kernel["mr"]
    lead = tuple(
        (t, Trial(op=op.name, kernel=kernel.name, shape=Shape.of(m=t * mr), threads=threads, weights=weights))
        for t in sorted(set(uses(mr, rows, most_rows)))
    )
    # Two tiles: the first still warms L1 for the second, as it does behind another region.
    follow = backend_for(device).follow(op, kernel, device, FOLLOW_TILES)
    return Probe(kernel=kernel, lead=lead, follow=follow.trial, follow_scale=follow.scale)
