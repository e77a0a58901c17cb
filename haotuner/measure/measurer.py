"""Measurer: the interface of tuning to what answers trials, by measuring them or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from haotuner.backends.backend import Backend
from haotuner.records import Session
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.record import Record, Trial

GoesOn = Callable[[Record | None], bool]  # asked before each new measurement (None) and told each record; False: no more


class Measurer(Protocol):
    """Interface of what answers trials on one device. Close it."""

    backend: Backend
    device: Device
    fingerprint: str
    session: Session
    failures: dict[str, int]  # by reason
    builders: int  # kernels that are compiled at a time

    @property
    def reused(self) -> int:
        """Records of an earlier run that count in this one."""
        ...

    def start(self) -> None:
        """Start what takes seconds and is no part of a budget."""
        ...

    def close(self) -> None:
        """Stop all processes and remove what was written aside."""
        ...

    def renew(self) -> None:
        """Time in a new process from here on."""
        ...

    def known(self, trial: Trial) -> Record | None:
        """The record of a trial that is there already."""
        ...

    def prepare(self, names: Sequence[str], goes_on: GoesOn = ...) -> None:
        """Build kernels ahead; what is being built when ``goes_on`` says no is finished, and nothing more is begun."""
        ...

    def gather(self, names: Sequence[str]) -> None:
        """Build kernels so that any composition of them can be timed without another build."""
        ...

    def measure(self, trials: Iterable[Trial], goes_on: GoesOn = ...) -> list[Record]:
        """Records of the trials, in order; fewer when ``goes_on`` said no."""
        ...

    def compile_object(self, kernels: Sequence[MicroKernel], arch: str, out: Path) -> None:
        """One object file of kernels for a pack; RuntimeError with the compiler's words."""
        ...
