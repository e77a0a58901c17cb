"""Measurer that measures nothing: for packs of absent devices, whose plans rest on predictions alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from haotuner.backends.backend import Backend
from haotuner.measure.device_measurer import compile_object
from haotuner.measure.measurer import GoesOn
from haotuner.records import Session
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.record import Record, Trial


class PredictionsOnly:
    """A ``Measurer`` without a store and without a timer. It compiles. Close it."""

    def __init__(self, backend: Backend, device: Device, *, environment: Mapping[str, str]) -> None:
        self.backend, self.device = backend, device
        self.fingerprint, self.reused = "", 0
        self.session = Session(id="", fingerprint="", started=0.0)
        self.failures: dict[str, int] = {}
        self.builders = 1
        self._builder = backend.builder(environment)

    def start(self) -> None:
        """The compiler starts when it is needed."""

    def close(self) -> None:
        """Stop the compiler."""
        self._builder.close()

    def renew(self) -> None:
        """There is no process that times."""

    def known(self, trial: Trial) -> Record | None:
        """Nothing is."""
        return None

    def prepare(self, names: Sequence[str], goes_on: GoesOn = lambda _: True) -> None:
        """Nothing will be timed, so nothing is built."""

    def gather(self, names: Sequence[str]) -> None:
        """Nothing will be timed, so nothing is built."""

    def measure(self, trials: Iterable[Trial], goes_on: GoesOn = lambda _: True) -> list[Record]:
        """No record at all, as if the time were up."""
        return []

    def compile_object(self, kernels: Sequence[MicroKernel], arch: str, out: Path) -> None:
        """One object file of kernels for a pack; RuntimeError with the compiler's words."""
        compile_object(self.backend, self._builder, kernels, arch, out)
