"""The blind lab: answers no trial. For packs of absent devices, whose plans rest on predictions alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from haotuner.device import Device
from haotuner.kernel import MicroKernel
from haotuner.measure.lab import BUILD_LIMIT_S, GoesOn, Lab
from haotuner.measure.worker import JobCrashed, JobFailed, JobTimeout, Worker
from haotuner.record import Record, Trial
from haotuner.records import Session


class Blind(Lab):
    """A ``Lab`` that measures nothing and stores nothing; it compiles for any x86-64 level. Close it."""

    def __init__(self, device: Device, *, environment: Mapping[str, str], seed: int = 0) -> None:
        # Nothing of Lab's state is wanted: no store, no timer, no scratch folder.
        self.device, self.seed = device, seed
        self.fingerprint, self.reused = "", 0
        self.session = Session(id="", fingerprint="", started=0.0)
        self.failures: dict[str, int] = {}
        self._compiler = Worker("build", {**environment, "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"})

    def start(self) -> None:
        """The compiler starts when it is needed."""

    def close(self) -> None:
        """Stop the compiler."""
        self._compiler.close()

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

    def compile_object(self, kernels: Sequence[MicroKernel], mcpu: str, out: Path) -> None:
        """One object file of kernels; RuntimeError with the compiler's words."""
        job = {"do": "object", "kernels": [kernel.name for kernel in kernels], "mcpu": mcpu, "out": str(out)}
        try:
            self._compiler.call(job, BUILD_LIMIT_S)
        except (JobFailed, JobTimeout, JobCrashed) as error:
            raise RuntimeError(f"could not compile the kept micro-kernels: {error}") from error
