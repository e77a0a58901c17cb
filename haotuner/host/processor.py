"""Processor of this host: its x86-64 level, the cores this process may use, the time a container gives it.

Linux control groups: the CPU time that a container gives this process. Standard library only: servers read it, too.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

PROC, SYSFS = Path("/proc"), Path("/sys")


def read_text(path: Path) -> str | None:
    """Text of a small system file; None where it is absent or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def groups(controller: str, proc: Path = PROC, sysfs: Path = SYSFS) -> Iterator[tuple[Path, bool]]:
    """Folders of the process's control groups, inner to outer, and whether each is of version 2."""
    for line in (read_text(proc / "self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        unified = names == ""
        if not unified and controller not in names.split(","):
            continue
        root = sysfs / "fs/cgroup" / ("" if unified else controller)
        inner = root / path.lstrip("/")
        # Inside a container the path may name a folder of the outside world; the walk up to the root still finds ours.
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(root):
                yield folder, unified


def cpu_quota(proc: Path = PROC, sysfs: Path = SYSFS) -> float | None:
    """Cores' worth of CPU time that the strictest control group allows; None without a limit."""
    result: list[float] = []
    for folder, unified in groups("cpu", proc, sysfs):
        if unified:
            quota, _, period = (read_text(folder / "cpu.max") or "max").partition(" ")
        else:
            quota, period = (read_text(folder / f"cpu.cfs_{name}_us") or "-1" for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
            result.append(int(quota) / int(period))
    return min(result, default=None)


def within_quota(cores: int, quota: float | None) -> int:
    """Cores to use of ``cores``: no more than the quota pays, at least one.

    Rounded down: a thread more than the quota pays is stopped for most of every period, and all wait for it.
    """
    return cores if quota is None else min(cores, max(1, int(quota)))


# Flags as /proc/cpuinfo names them, from the x86-64 psABI's micro-architecture levels.
LEVELS: dict[str, frozenset[str]] = {
    "x86-64": frozenset(),
    "x86-64-v2": frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}),
    "x86-64-v3": frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}),
    "x86-64-v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
}
_FLAGS_SEEN_BYTES = 1 << 14  # the first core's entry; all cores of a server look alike


def missing_flags(arch: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...] | None:
    """CPU flags that code for ``arch`` needs and this host lacks, sorted; None if ``arch`` is not an x86-64 level."""
    if arch not in LEVELS:
        return None
    names = list(LEVELS)
    flags = frozenset().union(*(LEVELS[name] for name in names[: names.index(arch) + 1]))
    return tuple(sorted(flags - host_flags(cpuinfo)))


def host_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Flags of the first core; empty where they cannot be read."""
    return frozenset(_first_core("flags", cpuinfo).split())


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Model name of the first core, as tuning puts it into a pack; empty where it cannot be read."""
    return _first_core("model name", cpuinfo)


def _first_core(field: str, cpuinfo: Path) -> str:
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as stream:
            text = stream.read(_FLAGS_SEEN_BYTES)
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == field:
            return value.strip()
    return ""


def usable_cores(proc: Path = PROC, sysfs: Path = SYSFS) -> int:
    """Cores that this process may run on, and that the CPU quota of its control groups pays for; at least one."""
    return within_quota(len(os.sched_getaffinity(0)), cpu_quota(proc, sysfs))


def platform_problem() -> str:
    """Reason why packs cannot be served here at all; empty on Linux x86-64."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine != "x86_64":
        return f"packs are built for Linux on x86-64; this is {system} on {machine}"
    return ""
