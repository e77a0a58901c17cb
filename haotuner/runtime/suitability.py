"""Fit of a sound pack to this host: its default thread count, what a caller should know of it, the bound of a request."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from haotuner.errors import UsageError
from haotuner.host.processor import cpu_name
from haotuner.pack.manifest import Manifest


def default_threads(manifest: Manifest, cores: int) -> int:
    """The tuned thread count nearest to the cores, of those that do not exceed them if there is one; else all cores."""
    tuned = {count for op in manifest.ops for count in op.threads}
    counts = {count for count in tuned if count <= cores} or tuned
    return min(counts, key=lambda count: abs(count - cores), default=cores)


def reservations(manifest: Manifest, *, on_cpu: bool) -> Iterator[str]:
    """Warnings for a caller before serving: nothing was measured, or another CPU was."""
    if manifest.unverified:
        yield "nothing was measured for it: plans and times are predictions; tune it on this host without --zero-measure"
    device = manifest.document.get("device")
    made_for = device.get("name") if isinstance(device, dict) else None
    here = cpu_name()
    if on_cpu and here and made_for and made_for != here:
        yield f"it was made for {made_for}, this host has {here}: answers are the same, speed may not be; tune it here"


def checked_bytes(most: Any) -> int:
    """``max_request_bytes`` as an int, or UsageError if it is no number of bytes."""
    try:
        count = operator.index(most)
    except TypeError:
        count = 0
    if isinstance(most, bool) or not 1 <= count < 1 << 63:
        raise UsageError(f"max_request_bytes={most!r} must be a whole number of bytes above 0, or None for no bound")
    return count
