"""Cores, caches and memory that this process may use, from /sys and /proc or a stand-in for them."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.host import processor
from haotuner.host.processor import read_text


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


_SIZE = re.compile(r"(\d+)([KMG]?)B?")
_CPU_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")
_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The part of the machine that this process may use. A size that could not be read is None."""

    cpus: tuple[int, ...]  # one logical CPU of each usable core: SMT siblings share the FMA pipes and count once
    cores: int  # len(cpus), or less where a control group's quota allows less time
    quota: float | None  # cores' worth of time that the control groups allow
    l1_bytes: int | None  # data, per core
    l2_bytes: int | None  # per core: size over the cores that share it
    l3_bytes: int | None  # the one that the first core sees; shared
    memory_bytes: int | None  # of the machine, or less where a control group allows less


def topology(host: Host) -> Topology:
    """Cores, caches and memory of a host."""
    cpus = _one_per_core(host)
    quota = cpu_quota(host)
    cores = processor.within_quota(len(cpus), quota)
    caches = _caches(host, cpus[0])
    return Topology(
        cpus=cpus[:cores],
        cores=cores,
        quota=quota,
        l1_bytes=caches.get(1),
        l2_bytes=caches.get(2),
        l3_bytes=caches.get(3),
        memory_bytes=_memory(host),
    )


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Numbers of a kernel CPU list such as ``0-3,8``; what is not such a list names no CPU."""
    if not _CPU_LIST.fullmatch(text.strip()):
        return ()
    bounds = [part.partition("-") for part in text.strip().split(",")]
    return tuple(cpu for first, _, last in bounds for cpu in range(int(first), int(last or first) + 1))


def parse_size(text: str) -> int | None:
    """Bytes of a size as /sys writes it, ``1024K``."""
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _UNIT[match[2]] if match else None


def _cpu(host: Host, cpu: int) -> Path:
    return host.sysfs / "devices/system/cpu" / f"cpu{cpu}"


def _one_per_core(host: Host) -> tuple[int, ...]:
    cores: dict[tuple[int, ...], int] = {}
    for cpu in sorted(host.cpus):
        siblings = read_text(_cpu(host, cpu) / "topology/thread_siblings_list")
        cores.setdefault(parse_cpu_list(siblings or "") or (cpu,), cpu)
    return tuple(cores.values())


def _caches(host: Host, cpu: int) -> dict[int, int]:
    result: dict[int, int] = {}
    for index in sorted((_cpu(host, cpu) / "cache").glob("index*")):
        level, kind, size = (read_text(index / name) for name in ("level", "type", "size"))
        amount = parse_size(size or "")
        if kind not in ("Data", "Unified") or not (level or "").isdigit() or not amount:
            continue
        if level == "2":
            shared = parse_cpu_list(read_text(index / "shared_cpu_list") or "") or (cpu,)
            siblings = parse_cpu_list(read_text(_cpu(host, cpu) / "topology/thread_siblings_list") or "") or (cpu,)
            amount //= max(1, len(shared) // len(siblings))
        result[int(level or 0)] = amount
    return result


def cpu_quota(host: Host) -> float | None:
    """Cores' worth of CPU time that the strictest control group allows; None without a limit."""
    return processor.cpu_quota(host.proc, host.sysfs)


def _memory(host: Host) -> int | None:
    match = re.search(r"^MemTotal:\s+(\d+) kB", read_text(host.proc / "meminfo") or "", re.MULTILINE)
    result = [int(match[1]) * 1024] if match else []
    for folder, unified in processor.groups("memory", host.proc, host.sysfs):
        limit = read_text(folder / ("memory.max" if unified else "memory.limit_in_bytes")) or ""
        if limit.isdigit():
            result.append(int(limit))  # version 1 writes "no limit" as almost 2^63: never the smallest
    return min(result, default=None)
