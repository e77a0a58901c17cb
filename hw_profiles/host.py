"""Host: source of the hardware queries, which a test replaces to show them another machine."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The places that describe one machine. The defaults of ``Host.here()`` are the machine we run on."""

    system: str  # as platform.system() says it
    machine: str  # as platform.machine() says it
    cpus: frozenset[int]  # logical CPUs this process may run on
    proc: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    nvml: Any = None  # a module with pynvml's functions; None: import pynvml when it is needed
    cuda_library: str = "libcuda.so.1"  # the CUDA driver, as the dynamic loader finds it

    @staticmethod
    def here() -> Host:
        """The machine and the process we run in."""
        system = platform.system()
        cpus = os.sched_getaffinity(0) if system == "Linux" else set(range(os.cpu_count() or 1))
        return Host(system=system, machine=platform.machine(), cpus=frozenset(cpus))
