"""Lookup of a device by what a user or a record calls it: this host, one of its subsets, or a profile."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from haotuner.errors import EnvironmentMissing, UnknownDevice
from haotuner.hw_profiles.cpu import cpu_device, cpu_info, cpu_isas
from haotuner.hw_profiles.gpu import gpu_device, gpu_devices, part_of
from haotuner.hw_profiles.isa import ISAS
from haotuner.hw_profiles.profile import profile_named, profiles
from haotuner.hw_profiles.table import known_named, table
from haotuner.hw_profiles.topology import Host
from haotuner.spec.device import Device

_CPU = re.compile(r"cpu(?::([a-z0-9-]+))?")
_CUDA = re.compile(r"cuda(?::([0-9]{1,4}))?")
_PART = re.compile(r"(.+)/([0-9]{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One line of `haotuner devices`."""

    device: Device
    source: Literal["queried", "datasheet"]  # this host, or a profile
    ask: str  # what to give to --device


def find_device(text: str, *, measure: bool = True, cache_dir: Path | None = None, host: Host | None = None) -> Device:
    """The device of that name.

    Args:
        text: ``cpu``, ``cpu:avx2``, ``cuda``, ``cuda:1`` (this host), a profile's id (``h200``), or a name that a driver
            reports (``NVIDIA H200``), in any case; rows of the table of devices likewise.
            An id that this host's CPU was recorded under names it too. A GPU's name with ``/64`` behind it is that many of
            its multiprocessors.
        measure: measure a CPU's peak and bandwidth when they are not in the cache (about 2 s).
        cache_dir: where measured numbers are kept; None for no cache.
        host: the machine that is asked; None is the one we run on.

    Raises:
        UnknownDevice: nothing goes by that name; the message names the nearest. Or only the name is known.
        EnvironmentMissing: the host cannot answer (no driver, not Linux on x86-64).
    """
    host = host or Host.here()
    name = text.strip().lower()
    if match := _PART.fullmatch(name):
        return part_of(find_device(match[1], measure=measure, cache_dir=cache_dir, host=host), int(match[2]))
    if match := _CPU.fullmatch(name):
        return cpu_device(match[1], host=host, measure=measure, cache_dir=cache_dir)
    if match := _CUDA.fullmatch(name):
        return gpu_device(int(match[1] or 0), host=host)
    if profile := profile_named(name):
        return profile.device
    if known := known_named(name):
        return known.device()
    if name.startswith("cpu-"):
        try:
            info = cpu_info(host)
        except EnvironmentMissing:
            info = None
        for isa in info.isas() if info else ():
            if info and name == info.id(isa):
                return cpu_device(isa.name, host=host, measure=measure, cache_dir=cache_dir)
    raise UnknownDevice(_unknown(text, name))


def names_of(requested: str, device: Device) -> tuple[str, ...]:
    """Names of a device: as requested, the profile's id, and of a CPU its instruction set (``cpu:avx2``)."""
    sets = [f"cpu:{isa.name}" for isa in ISAS if device.kind == "cpu" and isa.arch == device.arch]
    return tuple(dict.fromkeys([requested, device.id, *sets]))


def shares_cores(name: str) -> bool:
    """True for a name of this host's CPU: several such devices need cores of their own to be timed at once."""
    return name.partition(":")[0] == "cpu"


def list_devices(
    *, measure: bool = False, cache_dir: Path | None = None, host: Host | None = None, tabled: bool = False
) -> list[Listed]:
    """This host's CPU at each instruction set, its GPUs, then every profile. What cannot be asked is left out.

    ``tabled``: then the rows of the table of devices that say enough.
    """
    host = host or Host.here()
    result: list[Listed] = []
    try:
        for position, isa in enumerate(cpu_isas(host)):
            device = cpu_device(isa.name, host=host, measure=measure, cache_dir=cache_dir)
            result.append(Listed(device=device, source="queried", ask=f"cpu:{isa.name}" if position else "cpu"))
    except EnvironmentMissing:
        pass  # `haotuner doctor` says why; the profiles are still worth listing
    for index, answer in enumerate(gpu_devices(host)):
        if isinstance(answer, Device):
            result.append(Listed(device=answer, source="queried", ask=f"cuda:{index}"))
    result += [Listed(device=p.device, source="datasheet", ask=p.device.id) for p in profiles()]
    for row in table() if tabled else ():
        try:
            result.append(Listed(device=row.device(), source="datasheet", ask=row.id))
        except UnknownDevice:  # known by name only
            continue
    return result


def _unknown(text: str, message: str) -> str:
    names = {name.lower(): p.device.id for p in profiles() for name in (p.device.id, *p.aliases)}
    names |= {name.lower(): row.id for row in table() for name in (row.id, row.name, *row.aliases)}
    known = {**names, "cpu": "cpu", "cuda": "cuda"}
    starts = [name for name in sorted(known) if message and name.startswith(message)]  # "a100": a100-40gb before a10
    close = difflib.get_close_matches(message[:80], known, n=3, cutoff=0.4)
    near = list(dict.fromkeys(known[name] for name in (*starts[:3], *close)))[:4]
    near = [*(["cuda:0"] if message.startswith("gpu") else []), *near]
    hint = f"nearest: {', '.join(near)}; " if near else ""
    here = "this host is cpu, cpu:avx2, cuda, cuda:N, a part of a GPU cuda:0/64"
    return f"unknown device {text.strip()[:80]!r}; {hint}`haotuner devices` lists all ({here})"
