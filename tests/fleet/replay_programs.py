"""Programs of nodes that answer from a latency surface instead of compiling and timing, each after a fixed pause."""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from collections.abc import Mapping
from typing import Any
from unittest import mock

from haotuner.backends.backend import Facts, LibrarySlot
from haotuner.fleet.node_programs import BuilderProgram, Built, MeasurerProgram, Setup
from haotuner.spec.composition import Composition
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Timed, Trial

TIMING_S, BUILDING_S = 0.02, 0.02  # about what a short trial takes; a build takes longer, which a replay need not
TIMING_WORD, BUILDING_WORD = "HAOTUNER_TEST_TIMING_S", "HAOTUNER_TEST_BUILDING_S"
CLOCK_WORD = "HAOTUNER_TEST_CLOCK_S"  # by so many seconds the clock of a node is wrong


def true_us(trial: Trial) -> float:
    """Microseconds of a trial: by its rows, and by its kernel within a factor of two; the same at every time."""
    share = zlib.crc32(trial.kernel.encode()) / 2**32
    return 1.0 + float(sum(extent for _, extent in trial.shape.axes)) * (1.0 + share) / trial.threads


class ReplayTimer:
    """``Timer`` that sleeps and answers what the surface says."""

    def __init__(self) -> None:
        self._pause_s = float(os.environ.get(TIMING_WORD, TIMING_S))

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def renew(self) -> None:
        pass

    def resume(self, facts: Facts) -> None:
        pass

    def verify(self, op: Op, kernel: MicroKernel, slot: LibrarySlot) -> float | Failed:
        return 0.1

    def time(
        self, trial: Trial, op: Op, composition: Composition, slots: Mapping[str, LibrarySlot], max_error: float
    ) -> Failed | tuple[Timed, Facts]:
        time.sleep(self._pause_s)
        return Timed(samples_us=(true_us(trial),) * 3, max_error=max_error), {"drift": 1.0}


class ReplayMeasurer(MeasurerProgram):
    def __init__(self, requested: str) -> None:
        true, wrong_s = time.time, float(os.environ.get(CLOCK_WORD, "0"))
        mock.patch("time.time", lambda: true() + wrong_s).start()
        super().__init__(requested)

    def _timer(self, setup: Setup) -> ReplayTimer:
        return ReplayTimer()


class ReplayBuilder(BuilderProgram):
    def ready(self) -> None:
        pass

    def ask(self, request: Mapping[str, Any], limit_s: float) -> Built:
        names = list(request["kernels"])
        if request["do"] == "code":
            return Built(answer={"code": {name: hashlib.sha256(name.encode()).hexdigest()[:32] for name in names}})
        time.sleep(float(os.environ.get(BUILDING_WORD, BUILDING_S)) * len(names))
        return Built(answer={}, data=" ".join(names).encode())
