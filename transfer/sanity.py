"""Sanity: times that cannot be what they say are refused before anything is learnt from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from haotuner.device import Device
from haotuner.errors import UsageError
from haotuner.record import Trial
from haotuner.transfer.table import Table

# Beyond any boost clock and any cache that hides the operands: the times are in another unit.
FASTEST = 20.0  # best efficiency of a device's records; hot operands of tiny products reach a few times the roofline
SLOWEST = 1e-6  # even a kernel of one thread on a GPU of 10^4 lanes stays above it
# Some times in milliseconds among microseconds: the kernels of a task lie further apart than any do (published records:
# 12 to 212 times), with a gap in their midst (there at most 1.6 times, where this share of rows lies on either side).
WIDEST = 500.0
GAP = 3.0
GAP_SHARE = 0.02
APART = 100.0  # times of one trial; noise and clocks make a few per cent, a busy machine a few times
_AGAIN = "import them into a new store with the right unit or --device"


def check_agreement(device: Device, family: str, times: Mapping[Trial, Sequence[float]]) -> None:
    """UsageError where times of one trial are too far apart to be times of one kernel in one unit."""
    for trial, found in times.items():
        if max(found) > APART * min(found):
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
        ordered = np.sort(table.labels[rows])
        bulk = int(np.ceil(GAP_SHARE * len(rows)))
        gaps = np.diff(ordered)[bulk - 1 : len(rows) - bulk]
        if ordered[-1] - ordered[0] > np.log(WIDEST) and len(gaps) and gaps.max() > np.log(GAP):
            slow = bulk + int(np.argmax(gaps))
            raise UsageError(
                f"{where}: {slow} kernels of {len(rows)} are {np.exp(gaps.max()):.0f} times slower than the next and up to "
                f"{np.exp(ordered[-1] - ordered[0]):.0f} times slower than the best; mixed units? If not all are "
                f"microseconds, {_AGAIN}"
            )
