"""Offer of a node: its devices by the names that ``--device`` takes, and the names of Ray's custom resources."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from haotuner.errors import UsageError
from haotuner.hw_profiles.find import names_of, shares_cores
from haotuner.spec.device import Device

PREFIX = "haotuner:"  # of every custom resource of ours
BUILD = f"{PREFIX}build"  # as many as kernels may be compiled at a time
SHARE = 0.001  # of ``BUILD`` that a builder takes: tuners share them, and none waits for another to end
OFFER_WORD = "HAOTUNER_OFFER"  # what a node's processes know their offer by


def resource(device_id: str) -> str:
    """Ray's custom resource of a device, by its profile's id: one tuner's measurer after another's has it."""
    return f"{PREFIX}{device_id}"


def named(resources: Iterable[str]) -> dict[str, str]:
    """Id of a device's profile by every name of it, from a node's custom resources."""
    pairs = (key.removeprefix(PREFIX).partition("=") for key in resources if key.startswith(PREFIX) and "=" in key)
    return {name: device_id for name, _, device_id in pairs}


def folder_of(name: str) -> str:
    """Name of a folder for a device: ``cpu-avx512`` of ``cpu:avx512``."""
    return name.replace(":", "-").replace("/", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Devices that a node measures, by the name that each was asked for by, and where it keeps compiled code.

    ``builds``: kernels that the node compiles at a time. ``cores``: those of a device, where it has not all of the node's.
    ``cache``: a folder of the node, or empty.
    """

    devices: Mapping[str, Device]
    builds: int
    cores: Mapping[str, Sequence[int]] = field(default_factory=dict)
    cache: str = ""

    @property
    def resources(self) -> dict[str, float]:
        """Ray's custom resources: of each device its id and, as NAME=ID, its names; and the builds."""
        names = {f"{resource(name)}={self.devices[requested].id}": 1.0 for name, requested in self.names.items()}
        devices = {resource(device.id): 1.0 for device in self.devices.values()}
        return {BUILD: float(self.builds), **devices, **names}

    @property
    def names(self) -> dict[str, str]:
        """Requested name of a device by each of its names."""
        return {name: requested for requested, device in self.devices.items() for name in names_of(requested, device)}

    @property
    def text(self) -> str:
        """JSON form."""
        devices = {name: fields_of(device) for name, device in self.devices.items()}
        cores = {name: list(numbers) for name, numbers in self.cores.items()}
        return json.dumps({"devices": devices, "builds": self.builds, "cores": cores, "cache": self.cache})

    @staticmethod
    def of_text(text: str) -> Offer:
        """The offer of that text."""
        document: dict[str, Any] = json.loads(text)
        devices = {name: Device(**fields) for name, fields in document["devices"].items()}
        return Offer(devices=devices, builds=document["builds"], cores=document["cores"], cache=document["cache"])


def fields_of(device: Device) -> dict[str, Any]:
    """Fields of a device as JSON has them."""
    fields = {name: getattr(device, name) for name in Device.__dataclass_fields__ if name != "sources"}
    return {**fields, "sources": dict(device.sources)}


def offer_of(names: Sequence[str], *, cache: Path | None, cores: Sequence[int] = (), measure: bool = True) -> Offer:
    """Offer of this host: each device with its measured profile.

    Args:
        names: devices as ``--device`` takes them. Several CPUs of one host share its cores evenly.
        cache: folder of measured profiles and of compiled code.
        cores: the only ones to use; this process keeps to them from here on.
        measure: measure a profile that is not in the cache.

    Raises:
        UsageError: a device is named twice, there are fewer cores than CPUs, or a core is not this process's.
        UnknownDevice: no such device on this host.
        EnvironmentMissing: nothing compiles here.
    """
    from haotuner.backends.index import backend_for, own_device

    if len(set(names)) < len(names) or not names:
        raise UsageError(f"--device {','.join(names)}: name each device once")
    mine = _own_cores(cores)
    cpus = [name for name in names if shares_cores(name)]
    if len(mine) < len(cpus):
        raise UsageError(
            f"--device {','.join(names)}: {len(cpus)} CPUs of one host need a core each, and this process has {len(mine)}; "
            "name fewer, or let other machines join"
        )
    shares = {name: mine[at :: len(cpus)] for at, name in enumerate(cpus)} if len(cpus) > 1 else {}
    devices: dict[str, Device] = {}
    try:
        for name in names:
            os.sched_setaffinity(0, shares.get(name, mine))
            devices[name] = device = own_device(name, measure=measure, cache_dir=cache)
            backend = backend_for(device, name)
            backend.check(device, name, measures=True)
            backend.toolchain()
    finally:
        os.sched_setaffinity(0, mine)
    return Offer(devices=devices, builds=len(mine), cores=shares, cache="" if cache is None else str(cache))


def _own_cores(cores: Sequence[int]) -> list[int]:
    """Cores of this process, or those of them that are named."""
    mine = os.sched_getaffinity(0)
    if wrong := sorted(set(cores) - mine):
        raise UsageError(f"--cores {wrong[0]}: this process may use {','.join(map(str, sorted(mine)))}")
    return sorted(cores or mine)
