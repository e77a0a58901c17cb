"""Verifies and times micro-kernels on a GPU of this host: the parent's side of the timing process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from haotuner.backends.backend import Facts, LibrarySlot
from haotuner.backends.fingerprint import Policy
from haotuner.isolate.answers import ChildNotResponding
from haotuner.isolate.child import Child
from haotuner.microkernels.cuda.conv import product_of, product_shape
from haotuner.microkernels.cuda.direct import direct_family
from haotuner.microkernels.cuda.families import PHASE_FAMILIES, WINDOW_FAMILIES
from haotuner.ops.convolution import is_convolution
from haotuner.spec.cold import GPU_CACHES, UNKNOWN_CACHE_BYTES
from haotuner.spec.composition import WHOLE, Composition, sum_parts
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Timed, Trial

VERIFY_LIMIT_S = 60.0  # a few small products and rows of a large one, and the loading of code
TIME_LIMIT_S = 60.0  # a trial lasts milliseconds; a kernel that needs seconds more than its arithmetic asks for hangs
SLOWEST_GFLOPS = 50.0
TRIAL_CALLS = 64  # of a call that is longer than a sample: warm-up, sizing, samples over all weights


def _timed(op: Op, kernel: MicroKernel) -> Op:
    """Op that is verified and timed: of a convolution by columns the product that it is; all kernels read the same ones."""
    return product_of(op) if is_convolution(op.kind) and not _reads_image(kernel) else op


_WINDOWED = frozenset(family.name for family in (*WINDOW_FAMILIES, *PHASE_FAMILIES))


def _reads_image(kernel: MicroKernel) -> bool:
    """True if it is a kernel of convolutions, not of the product that one is."""
    return direct_family(kernel.family) is not None or kernel.family in _WINDOWED


class CudaTimer:
    """One timing process and what it has verified."""

    def __init__(self, device: Device, policy: Policy, process: Child, *, seed: int) -> None:
        self._device, self._policy, self._process, self._seed = device, policy, process, seed
        self._verified: dict[tuple[str, str], float | Failed] = {}

    def start(self) -> None:
        """Have the process ready. WorkerLost if it cannot be had."""
        self._process.start()

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def renew(self) -> None:
        """Use a new process from here on: another context, and memory elsewhere."""
        self._process.close()  # the next request starts it

    def resume(self, facts: Facts) -> None:
        """Nothing: a GPU's clock is read beside each time, its pace is nobody else's."""

    def verify(self, op: Op, kernel: MicroKernel, slot: LibrarySlot) -> float | Failed:
        """The largest error of a kernel as a share of the tolerance; looked at once a kernel and op."""
        key = kernel.name, op.name
        if key not in self._verified:
            request = {
                "do": "verify",
                "op": _timed(op, kernel).name,
                "kernel": kernel.name,
                "library": slot.library,
                "seed": self._seed,
            }
            try:
                self._verified[key] = float(self._process.ask(request, VERIFY_LIMIT_S)["max_error"])
            except ChildNotResponding as error:
                self._verified[key] = error.failed("verify")
        return self._verified[key]

    def time(
        self, trial: Trial, op: Op, composition: Composition, places: Mapping[str, LibrarySlot], max_error: float
    ) -> Failed | tuple[Timed, Facts]:
        """Samples of a composition; with them how they were taken and what is known of the device meanwhile."""
        extent, left, first = trial.shape[op.dynamic[0]], len(composition.parts), composition.kernels[0]
        parts: list[list[Any]] = []
        for name, tiles in composition.parts:
            left -= 1
            parts.append([name, places[name].library, tiles if left else WHOLE])  # the last region takes what is left
        request = {
            "do": "time",
            "op": _timed(op, first).name,
            "m": extent,
            "parts": parts,
            "splits": sum_parts(composition.share),
            "cold_bytes": self._cold_bytes() if trial.weights == "cold" else 0,
            "sample_us": self._policy.sample_us,
            "limit_us": self._policy.limit_us,
            "least": self._policy.least,
            "most": self._policy.most,
        }
        if op.kind == "batch_matmul":  # several axes may be dynamic
            request["extents"] = dict(op.extents(trial.shape))
        if "_generated_" in first.family:
            request["shape"] = trial.shape.as_dict()
        if _reads_image(first):
            request["image"] = trial.shape.as_dict()
        elif is_convolution(op.kind):
            request["extents"] = dict(product_of(op).extents(product_shape(op, trial.shape)))
        limit_s = TIME_LIMIT_S + TRIAL_CALLS * op.flops(trial.shape) / 1e9 / SLOWEST_GFLOPS
        try:
            answer = self._process.ask(request, limit_s)
        except ChildNotResponding as error:
            return error.failed("time")
        return Timed(samples_us=tuple(map(float, answer["samples_us"])), max_error=max_error), dict(answer["facts"])

    def _cold_bytes(self) -> int:
        return GPU_CACHES * (self._device.l2_bytes or UNKNOWN_CACHE_BYTES)
