"""Verifies and times micro-kernels on this host's cores: the parent's side of the timing process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from haotuner.backends.backend import Facts, LibrarySlot
from haotuner.backends.cpu.interference import RetryPolicy, ThroughputProbe, undisturbed
from haotuner.backends.cpu.pack_conv import PLACES
from haotuner.backends.cpu.pack_dense import Blocking
from haotuner.backends.cpu.timer_conv import conv_facts
from haotuner.backends.cpu.timing_library import is_convolution, is_dense
from haotuner.backends.fingerprint import Policy
from haotuner.isolate.answers import ChildNotResponding
from haotuner.isolate.child import Child
from haotuner.microkernels.cpu.dense import tail_columns
from haotuner.microkernels.cpu.generated import joins_of, stages_of
from haotuner.spec.composition import SERIAL, WAYS, Composition
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Timed, Trial

VERIFY_LIMIT_S = 20.0
WHOLE_AXIS = 255  # HT_WHOLE of runtime/native/kinds/sliced.h: no axis is cut
TIME_LIMIT_S = 20.0  # a trial lasts milliseconds; a kernel that needs seconds more than its arithmetic asks for hangs
SLOWEST_GFLOPS = 5.0  # one row at a time, four lanes, from memory
TRIAL_CALLS = 5  # of a call too long for more than the least samples: a bare one, one to size the batch, three samples


class CpuTimer:
    """One timing process, what it has verified, and the pace of the machine when it began."""

    def __init__(
        self, device: Device, policy: Policy, process: Child, family_of: Callable[[MicroKernel], Family], *, seed: int
    ) -> None:
        self._device, self._policy, self._process, self._seed = device, policy, process, seed
        self._family_of = family_of
        self._verified: dict[tuple[str, str], float | Failed] = {}
        self._patience: defaultdict[int, RetryPolicy] = defaultdict(
            RetryPolicy
        )  # by threads: four on two cores always share them
        self._quiet: ThroughputProbe | None = None

    def start(self) -> None:
        """Have the process ready. WorkerLost if it cannot be had."""
        self._process.start()

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def renew(self) -> None:
        """Use a new process from here on: where code and data lie changes cold times by up to a quarter."""
        self._process.close()  # the next request starts it

    def resume(self, facts: Facts) -> None:
        """Go on at the pace that the first record with one tells."""
        self._quiet = self._quiet or ThroughputProbe.from_facts(facts)

    def verify(self, op: Op, kernel: MicroKernel, slot: LibrarySlot) -> float | Failed:
        """The largest error of a kernel as a share of the tolerance; looked at once a kernel and static extents."""
        key = kernel.name, op.name if not is_dense(kernel) else str(op["k"])
        if key not in self._verified:
            request = self._verify_dense(op, kernel, slot) if is_dense(kernel) else self._verify_sliced(op, kernel, slot)
            try:
                self._verified[key] = float(self._process.ask(request, VERIFY_LIMIT_S)["max_error"])
            except ChildNotResponding as error:
                self._verified[key] = error.failed("verify")
        return self._verified[key]

    def _verify_dense(self, op: Op, kernel: MicroKernel, slot: LibrarySlot) -> dict[str, Any]:
        setting = Blocking.of(op, [kernel], self._device)
        tile = {**{key: kernel[key] for key in ("mr", "nr", "pw")}, "nt": tail_columns(kernel)}
        base = self._base(slot.library) | setting.words(kernel["mr"]) | {"m": kernel["mr"], "op": op.name}
        return {**base, **tile, "do": "verify", "kernel": slot.index, "seed": self._seed}

    def _verify_sliced(self, op: Op, kernel: MicroKernel, slot: LibrarySlot) -> dict[str, Any]:
        tile = self._family_of(kernel).tile(kernel)
        of_op: dict[str, Any] = {"op": op.name, "tile": {**tile.extent, **tile.step}, "least_tiles": 1}
        stages = stages_of(self._family_of(kernel), kernel)
        of_op["folded"] = [*joins_of(self._family_of(kernel), op), *([stages.along] if stages is not None else [])]
        base = {**self._base(slot.library), **of_op, "kernel": slot.index, "seed": self._seed}
        if is_convolution(kernel):
            return {**base, "do": "verify_conv", **conv_facts(kernel)}
        return {**base, "do": "verify_sliced"}

    def time(
        self, trial: Trial, op: Op, composition: Composition, places: Mapping[str, LibrarySlot], max_error: float
    ) -> Failed | tuple[Timed, Facts]:
        """Samples of a composition; with them how disturbed the machine was."""
        kernels = composition.kernels
        if is_dense(kernels[0]):
            request = self._time_dense(trial, op, composition, kernels, places)
        else:
            request = self._time_sliced(trial, op, composition, places)
        request["cold_bytes"] = self._policy.cold_bytes(self._device) if trial.weights == "cold" else 0
        try:
            quiet = self._pace(request)
            limit_s = TIME_LIMIT_S + TRIAL_CALLS * op.flops(trial.shape) / 1e9 / SLOWEST_GFLOPS
            time_once = partial(self._process.ask, request, limit_s)
            answer, crowded = (
                (time_once(), 1.0) if trial.threads == 1 else self._patience[trial.threads].least_crowded(time_once)
            )
        except ChildNotResponding as error:
            return error.failed("time")
        samples, drift = undisturbed(trial, self._device, answer, quiet, crowded)
        # Times the drift, a sample is what the clock said.
        seen = {"drift": drift, "crowding": crowded} if trial.threads > 1 else {"drift": drift}
        return Timed(samples_us=samples, max_error=max_error), {**seen, **quiet.facts()}

    def _time_dense(
        self,
        trial: Trial,
        op: Op,
        composition: Composition,
        kernels: Sequence[MicroKernel],
        places: Mapping[str, LibrarySlot],
    ) -> dict[str, Any]:
        rows = trial.shape[op.dynamic[0]]
        words = Blocking.of(op, kernels, self._device).words(rows)
        return {
            **self._base(places[composition.parts[0].kernel].library),
            **words,
            "do": "time",
            "m": rows,
            "parts": [[places[part.kernel].index, part.tiles] for part in composition.parts],
            "threads": trial.threads,
            "split": list(WAYS).index(composition.share),
            "op": op.name,
        }

    def _time_sliced(
        self, trial: Trial, op: Op, composition: Composition, places: Mapping[str, LibrarySlot]
    ) -> dict[str, Any]:
        slot, alone = places[composition.parts[0].kernel], composition.share == SERIAL
        kernel, axes, conv = composition.kernels[0], op.axes, {}
        if is_convolution(kernel):
            axes, conv = PLACES, {"do": "time_conv", **conv_facts(kernel)}
        return {
            **self._base(slot.library),
            "do": "time_sliced",
            "op": op.name,
            "shape": trial.shape.as_dict(),
            "kernel": slot.index,
            "axis": WHOLE_AXIS if alone else axes.index(composition.share),
            "least_tiles": 1,
            "threads": trial.threads,
            **conv,
        }

    def _pace(self, request: Mapping[str, Any]) -> ThroughputProbe:
        """Throughput of the machine before the first trial, for all processes that time."""
        if self._quiet is None:
            look = {"do": "watch", "library": request["library"], "cold_bytes": self._policy.cold_bytes(self._device)}
            self._quiet = ThroughputProbe.quiet(self._process.ask(look, TIME_LIMIT_S))
        return self._quiet

    def _base(self, library: str) -> dict[str, Any]:
        return {
            "library": library,
            "threads": 1,
            "split": 0,
            "sample_ns": self._policy.sample_us * 1000,
            "limit_ns": self._policy.limit_us * 1000,
            "least": self._policy.least,
            "most": self._policy.most,
            "cold_bytes": 0,
        }
