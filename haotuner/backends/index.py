"""The index of backends: an explicit tuple. A new kind of device is one implementation and one line here."""

from __future__ import annotations

from pathlib import Path

from haotuner.backends.backend import Backend
from haotuner.backends.cpu.backend import CpuBackend
from haotuner.backends.cuda.backend import CudaBackend
from haotuner.errors import NothingLegal, UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.spec.device import Device
from haotuner.spec.op import Op

BACKENDS: tuple[Backend, ...] = (CpuBackend(), CudaBackend())


def backend_for(device: Device, requested: str = "") -> Backend:
    """The backend that tunes and packs for a device; UsageError if there is none."""
    for backend in BACKENDS:
        if backend.owns(device):
            return backend
    raise UsageError(
        f"--device {requested or device.id}: packs are written for {' and '.join(b.name for b in BACKENDS)} devices so far, "
        f"{device.id} is of another kind ({device.kind}); see what its kernels may reach with `haotuner candidates --op "
        f"dense:n=2304,k=768 --device {device.id}`"
    )


def own_device(text: str, *, measure: bool, cache_dir: Path | None) -> Device:
    """The device of that name: one that only a backend knows, else as ``find_device`` has it. UnknownDevice if none is."""
    for backend in BACKENDS:
        result = backend.own_device(text, measure=measure, cache_dir=cache_dir)
        if result is not None:
            return result
    return find_device(text, measure=measure, cache_dir=cache_dir)


def check_served(op: Op) -> None:
    """NothingLegal, in the words of the last backend, if none has a family for the op."""
    for index, backend in enumerate(reversed(BACKENDS), 1):
        try:
            backend.families(op)
            return
        except NothingLegal:
            if index == len(BACKENDS):
                raise


def backend_named(name: str) -> Backend:
    """The backend of that name; KeyError if there is none."""
    return {backend.name: backend for backend in BACKENDS}[name]
