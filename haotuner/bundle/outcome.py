"""Answers of workers and peers as records, and what a run already knows from its files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from haotuner.bundle.manifest import Entry
from haotuner.bundle.trials import CHECK, PEAK, SUBSET, TIME, Known, Task, decode
from haotuner.words.record import Failed, Outcome, Record, Timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Fields that every record of a session has."""

    device_id: str
    fingerprint: str
    session: str


def record(task: Task, fields: Mapping[str, Any], entry: Entry, origin: Provenance) -> Record:
    """The record of a timed task, or of any that failed. A subset of the device is a device of its own."""
    outcome: Outcome
    if "failed" in fields:
        outcome = Failed(**fields["failed"])
    elif "check" in fields:
        checked = fields["check"]
        reason = "out_of_bounds" if checked["stray_bytes"] else "wrong"
        outcome = Failed(stage="verify", reason=reason, detail=", ".join(f"{k}={v}" for k, v in checked.items()))
    else:
        outcome = Timed(samples_us=tuple(fields["samples_us"]), max_error=float(fields.get("max_error", 0.0)))
    facts: dict[str, float | str] = {"stage": task.stage, **fields.get("facts", {})}
    facts["code"] = entry.code
    facts |= {f"ptxas_{name}": value for name, value in entry.facts.items()}
    if task.stage == CHECK:
        facts |= {"n": task.extents[1], "k": task.extents[2], "pattern": task.pattern}
    units = int(fields.get("facts", {}).get("units_granted", task.units))  # the driver may round up
    return Record(
        trial=task.trial(), outcome=outcome, fingerprint=origin.fingerprint, session=origin.session, when=time.time(),
        device_id=f"{origin.device_id}-{units}units" if units else origin.device_id, facts=facts,
    )  # fmt: skip


def right(fields: Mapping[str, Any]) -> bool:
    """True if a check's answer says that the kernel computes what it should."""
    checked = fields.get("check")
    return checked is not None and not (checked["wrong"] or checked["unwritten"] or checked["stray_bytes"])


def known(journal: Iterable[Mapping[str, Any]], fingerprint: str, codes: Mapping[str, str]) -> Known:
    """Answers of earlier slices with this judge on this kind of machine, of the kernels as they are now."""
    found = Known()
    for task, answer in answered(journal, fingerprint, codes):
        note(found, task, answer)
    return found


def answered(
    journal: Iterable[Mapping[str, Any]], fingerprint: str, codes: Mapping[str, str]
) -> Iterator[tuple[Task, Mapping[str, Any]]]:
    """Tasks of a journal with their answers, without those of another judge or machine, or of a kernel's older code."""
    for line in journal:
        if line.get("fingerprint") == fingerprint and "task" in line:
            task = decode(line["task"])
            if task.code == codes.get(task.kernel, ""):
                yield task, line["answer"]


def note(found: Known, task: Task, answer: Mapping[str, Any]) -> None:
    """Take one answer into account."""
    found.done.add(task.key())
    wrong = task.stage == CHECK and not right(answer)
    lost = task.stage != SUBSET and bool(answer.get("fault"))  # on a subset the context may be to blame
    if wrong or lost or (task.stage == PEAK and "failed" in answer):
        found.broken.add(task.kernel)
    if task.stage == TIME and task.weights == "cold" and "samples_us" in answer:
        samples = sorted(answer["samples_us"])
        found.times.setdefault((task.op().name, task.extents[0]), []).append((samples[len(samples) // 2], task.kernel))
