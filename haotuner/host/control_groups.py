"""Linux control groups: the CPU time that a container gives this process. Standard library only: servers read it, too."""

from __future__ import annotations

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
