"""How long to look: the numbers of a measurement, all part of the fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from haotuner.words.device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Stopping rule and state of one kind of measurement."""

    sample_us: int = 250  # a sample is a batch at least this long: 1000x the clock's resolution, under a scheduler tick
    limit_us: int = 6_000  # no new sample after this
    least: int = 3  # samples in any case, so that there is a median
    most: int = 32
    cold_factor: int = 4  # calls rotate over weights of this many last-level caches: nothing survives a round

    def cold_bytes(self, device: Device) -> int:
        """Bytes of weights to rotate over; without a known L3 the L2 counts, without both 32 MiB."""
        last = device.l3_bytes or (device.l2_bytes or 0) * device.compute_units or 32 << 20
        return self.cold_factor * last


def fingerprint(device: Device, policy: Policy, words: Mapping[str, str], sources: list[Path]) -> str:
    """Hash of all that makes two times comparable: device, toolchain, code that is timed, policy."""
    digest = hashlib.sha256()
    seen = {
        "device": [device.id, device.arch, device.compute_units, device.l2_bytes, device.l3_bytes],
        "policy": asdict(policy),
    }
    digest.update(json.dumps([seen, dict(words)], sort_keys=True).encode())
    for source in sorted(sources, key=lambda path: path.name):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
