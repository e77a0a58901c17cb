"""Winner: one device's best known configuration."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from haotuner.hw_profiles.table import Known


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """Values in the order of ``space.PARAMETERS``; the device as far as it is known, which may be its name only."""

    device: Known
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Winners:
    """Contents of one table of winners."""

    winners: tuple[Winner, ...]
    left_out: Counter[str] = field(default_factory=Counter)  # reason to number of rows
    notes: tuple[str, ...] = ()

    def vendors(self) -> tuple[str, ...]:
        """Those of the winners' devices, sorted."""
        return tuple(sorted({winner.device.vendor for winner in self.winners}))
