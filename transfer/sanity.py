"""Sanity: times that cannot be what they say are refused before anything is learnt from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from haotuner.errors import UsageError
from haotuner.transfer.table import Table
from haotuner.words.device import Device
from haotuner.words.record import Trial
from haotuner.words.units import SAME, gap_of

# Beyond any boost clock and any cache that hides the operands: the times are in another unit.
FASTEST = 20.0  # best efficiency of a device's records; hot operands of tiny products reach a few times the roofline
SLOWEST = 1e-6  # even a kernel of one thread on a GPU of 10^4 lanes stays above it
_AGAIN = "import them into a new store with the right unit or --device"


def check_agreement(device: Device, family: str, times: Mapping[Trial, Sequence[float]]) -> None:
    """UsageError where times of one trial are too far apart to be times of one kernel in one unit."""
    for trial, found in times.items():
        if max(found) > SAME * min(found):
            raise UsageError(
                f"records of {family} on {device.id} in mixed units: {trial.kernel} took {min(found):.4g} and "
                f"{max(found):.4g} us; {_AGAIN}"
            )


def check_times(table: Table) -> None:
    """UsageError where times cannot be microseconds on that device, all or some of them."""
    where, best = f"records of {table.family} on {table.device.id}", float(np.exp(table.labels.max()))
    if not SLOWEST < best < FASTEST:
        relation = "above" if best >= FASTEST else "below"
        raise UsageError(
            f"{where}: the best is {best:.3g} times the roofline, {relation} anything possible; are the times microseconds, "
            f"and of this device? If not, {_AGAIN}"
        )
    for rows in table.groups():
        times = np.sort(np.exp(-table.labels[rows])).tolist()  # of one task, so shares of the roofline are times
        gap = gap_of(times)
        if gap is not None and not gap.accident:
            raise UsageError(
                f"{where}: {gap.count - gap.fast} kernels of {gap.count} are {gap.factor:.0f} times slower than the next, "
                f"up to {times[-1] / times[0]:.0f} times slower than the best; mixed units? If not all are microseconds, "
                f"{_AGAIN}"
            )
