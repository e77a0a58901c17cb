"""Limits on what a child process takes from the machine: memory, the size of one file, no core dump."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a child and of what it starts. Not for GPU work or peers: drivers and libraries reserve freely."""

    memory_share: float = 0.8  # of physical memory: a runaway job gets MemoryError and does not call the OOM killer
    file_bytes: int = 1 << 30  # of one file: a library has under 1 MiB; a job that floods its log must not fill the disk

    def apply(self) -> None:
        """Limit this process."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        # Not RLIMIT_AS: compilers and BLAS reserve tens of GiB of addresses that they never touch.
        for limit, most in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_DATA, int(memory * self.memory_share)),
            (resource.RLIMIT_FSIZE, self.file_bytes),
        ):
            hard = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
