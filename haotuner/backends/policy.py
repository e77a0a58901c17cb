"""Measuring effort: the numbers of a measurement, all part of the fingerprint."""

from __future__ import annotations

from dataclasses import dataclass

from haotuner.spec.cold import CPU_CACHES, UNKNOWN_CACHE_BYTES
from haotuner.spec.device import Device

# Raised by whoever changes what a sample is: requests to the timing processes, corrections of samples, blocking of a call.
# Older records count for no later run then. tests/work/test_measuring_protocol.py says when.
MEASURING = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Stopping rule and state of one kind of measurement."""

    sample_us: int = 250  # a sample is a batch at least this long: 1000x the clock's resolution, under a scheduler tick
    limit_us: int = 6_000  # no new sample after this
    least: int = 3  # samples in any case, so that there is a median
    most: int = 32
    cold_factor: int = CPU_CACHES  # calls rotate over weights of this many last-level caches: nothing survives a round

    def cold_bytes(self, device: Device) -> int:
        """Bytes of weights to rotate over; without a known L3 the L2 counts, without both 32 MiB."""
        last = device.l3_bytes or (device.l2_bytes or 0) * device.compute_units or UNKNOWN_CACHE_BYTES
        return self.cold_factor * last
