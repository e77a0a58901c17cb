"""Run of a request on one device: its laboratory, its publisher, and the report that it ends with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.measure.measurer import Measurer
from haotuner.spec.device import Device
from haotuner.tuning.initial_model import Starts
from haotuner.tuning.op_tasks import SIGNAL, Watch, Whole, stopped_of
from haotuner.tuning.plan_facts import row_of
from haotuner.tuning.publisher import Publisher, served
from haotuner.tuning.request import Request
from haotuner.tuning.strategies import Tuned

if TYPE_CHECKING:
    from haotuner.partition.tasks import ModelTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report that `haotuner tune` prints; ``document`` is its JSON form (README, *JSON*)."""

    pack: Path
    device: Device
    threads: tuple[int, ...]  # counts that the pack has plans for
    tuned: tuple[Tuned, ...]
    models: tuple[ModelTask, ...]  # as the pack holds them
    seconds: float
    stopped: str
    document: Mapping[str, Any]
    start: str = ""  # which model the search began with, in words

    @property
    def complete(self) -> bool:
        """True if every op has a measured plan, a model without ops was timed, and no signal cut the run short."""
        return self.stopped != SIGNAL and all(t.measured for t in self.tuned) and not self.document["unverified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run of a request, ready to measure. ``watch``: of the caller, which ends it where nothing can be measured any more."""

    request: Request
    device: Device
    threads: tuple[int, ...]
    lab: Measurer
    publisher: Publisher
    starts: Starts
    watch: Watch
    begin: float  # by ``time.monotonic``

    def finish(self, whole: Whole) -> Report:
        """Publish what was tuned; the report."""
        request, lab, publisher = self.request, self.lab, self.publisher
        tuned, stopped = served(whole.tuned, whole.models), whole.stopped or stopped_of(whole.tuned)
        unverified = request.zero_measure or (
            bool(request.models and tuned) and not any(tuned_op.measured for tuned_op in tuned)
        )
        document = publisher.publish(tuned, whole.models, unverified=unverified, stopped=stopped)
        ops, reused, failures = [row_of(t, lab) for t in tuned], lab.reused + whole.reused, lab.failures
        seconds = time.monotonic() - self.begin
        turns = [[turn.task, round(turn.seconds, 3), turn.us] for turn in whole.turns]
        lost = lab.lost if isinstance(lab, DeviceMeasurer) else ""
        report = {
            "pack": str(request.out),
            "device": self.device.id,
            "seconds": round(seconds, 3),
            "stopped": stopped,
            "reused": reused,
            "failures": failures,
            "started_from": publisher.start.document,
            "unverified": document["unverified"],
            "verification": document["verification"],
            "ops": ops,
            **({"turns": turns} if turns else {}),
            **({"kept": publisher.reason_kept} if publisher.reason_kept else {}),
            **({"lost": lost} if lost else {}),
        }
        return Report(
            pack=request.out,
            device=self.device,
            threads=tuple(self.threads),
            tuned=tuple(tuned),
            models=tuple(whole.models),
            seconds=seconds,
            stopped=stopped,
            document=report,
            start=self.starts.words,
        )
