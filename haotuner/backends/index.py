"""The index of backends: an explicit tuple. A new kind of device is one implementation and one line here."""

from __future__ import annotations

from haotuner.backends.backend import Backend
from haotuner.backends.cpu.backend import CpuBackend
from haotuner.errors import UsageError
from haotuner.words.device import Device

BACKENDS: tuple[Backend, ...] = (CpuBackend(),)


def backend_for(device: Device, asked: str = "") -> Backend:
    """The backend that tunes and packs for a device; UsageError if there is none."""
    for backend in BACKENDS:
        if backend.name == device.kind:
            return backend
    raise UsageError(
        f"--device {asked or device.id}: packs are written for CPUs so far, {device.id} is a GPU; look at what its "
        f"kernels may reach with `haotuner candidates --op dense:n=2304,k=768 --device {device.id}`, or build them with "
        "`make gpu-bundle`"
    )


def backend_named(name: str) -> Backend:
    """The backend of that name; KeyError if there is none."""
    return {backend.name: backend for backend in BACKENDS}[name]
