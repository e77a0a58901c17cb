"""Memory of this host that is free."""

from __future__ import annotations

from pathlib import Path

from haotuner.host.processor import read_text


def available_bytes() -> int | None:
    """Memory that new processes can have without swapping; None where /proc/meminfo does not say."""
    for line in (read_text(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
