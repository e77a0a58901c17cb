"""The blind lab: answers no trial. For packs of absent devices, whose plans rest on predictions alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from haotuner.measure.child import BUILDING, measuring_process
from haotuner.measure.lab import GoesOn, Lab
from haotuner.records import Session
from haotuner.words.device import Device
from haotuner.words.record import Record, Trial


class Blind(Lab):
    """A ``Lab`` that measures nothing and stores nothing; it compiles for any x86-64 level. Close it."""

    def __init__(self, device: Device, *, environment: Mapping[str, str], seed: int = 0) -> None:
        # Nothing of Lab's state is wanted: no store, no timer, no scratch folder.
        self.device, self.seed = device, seed
        self.fingerprint, self.reused = "", 0
        self.session = Session(id="", fingerprint="", started=0.0)
        self.failures: dict[str, int] = {}
        self._builders = [measuring_process(BUILDING, environment)]

    def start(self) -> None:
        """The compiler starts when it is needed."""

    def close(self) -> None:
        """Stop the compiler."""
        self._builders[0].close()

    def known(self, trial: Trial) -> Record | None:
        """Nothing is."""
        return None

    def prepare(self, names: Sequence[str]) -> None:
        """Nothing will be timed, so nothing is built."""

    def gather(self, names: Sequence[str]) -> None:
        """Nothing will be timed, so nothing is built."""

    def measure(self, trials: Iterable[Trial], goes_on: GoesOn = lambda _: True) -> list[Record]:
        """No record at all, as if the time were up."""
        return []
