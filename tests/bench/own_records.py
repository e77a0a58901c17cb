"""Medians of one device's records as a small text file, and back to records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from haotuner.records import RecordStore
from haotuner.records.timings import read_timings
from haotuner.spec.device import Device
from haotuner.spec.record import Record, Timed, Trial
from haotuner.spec.shape import Shape

FOLDER = Path(__file__).parent / "records"
KINDS = FOLDER / "kinds"  # products of every kind but dense fp32, by ``kind_records``
State = tuple[str, int, str, str]  # op, threads, weights, split
DIGITS = 5


def comparable(store: RecordStore, fingerprint: str) -> Iterator[Record]:
    """Records of every session of a fingerprint: their own fingerprints are of their kernels, too."""
    for session in store.sessions():
        if session.fingerprint == fingerprint:
            yield from store.records(session=session.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRecords:
    """What one device measured: medians in microseconds by trial."""

    device: Device
    date: str
    rounds: Mapping[Trial, tuple[float, ...]]  # medians of every time it was measured, the first three at most

    @property
    def us(self) -> dict[Trial, float]:
        """The least of each trial's medians: other load only ever slows."""
        return {trial: min(medians) for trial, medians in self.rounds.items()}

    @staticmethod
    def of(device: Device, records: Iterable[Record], most: int | None = 3) -> OwnRecords:
        """Medians of the trials that did not fail, in the order in which they were measured; ``most`` rounds at most."""
        times: dict[Trial, list[float]] = {}
        last = 0.0
        for record in records:
            if isinstance(record.outcome, Timed):
                times.setdefault(record.trial, []).append(record.outcome.median_us)
                last = max(last, record.when)
        date = datetime.fromtimestamp(last, UTC).date().isoformat()
        return OwnRecords(device=device, date=date, rounds={trial: tuple(us[:most]) for trial, us in times.items()})

    @staticmethod
    def of_repeats(device: Device, records: Iterable[Record]) -> OwnRecords:
        """The least sample of every repeat of a trial, in their order: other load only ever slows."""
        repeats: dict[Trial, dict[int, float]] = {}
        last = 0.0
        for record in records:
            if isinstance(record.outcome, Timed):
                times = repeats.setdefault(replace(record.trial, repeat=0), {})
                times[record.trial.repeat] = min(record.outcome.samples_us)
                last = max(last, record.when)
        date = datetime.fromtimestamp(last, UTC).date().isoformat()
        rounds = {trial: tuple(us for _, us in sorted(times.items())) for trial, times in repeats.items()}
        return OwnRecords(device=device, date=date, rounds=rounds)

    def write(self, folder: Path) -> Path:
        """``<device id>.json`` in a folder, one line a state of one op."""
        kernels = sorted({trial.kernel for trial in self.rounds})
        indices = {kernel: at for at, kernel in enumerate(kernels)}
        states: dict[State, dict[str, list[list[float]]]] = {}
        for trial, medians in self.rounds.items():
            state = (trial.op.name, trial.threads, trial.weights, trial.split)
            rows = states.setdefault(state, {}).setdefault(shape_key(trial.shape), [])
            rows.append([indices[trial.kernel], *(float(f"{us:.{DIGITS}g}") for us in medians)])
        lines = [json.dumps([*state, {text: sorted(rows) for text, rows in sorted(by.items(), key=_by_extents)}],
                            separators=(",", ":"))
                 for state, by in sorted(states.items())]  # fmt: skip
        named = {"id": self.device.id, "kind": self.device.kind, "name": self.device.name, "arch": self.device.arch}
        head = {"date": self.date, "device": {**named, **self.device.numbers()}, "kernels": kernels}
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.device.id}.json"
        path.write_text(json.dumps(head, separators=(",", ":")) + "\n" + "\n".join(lines) + "\n", encoding="utf-8")
        return path

    @staticmethod
    def read(path: Path) -> OwnRecords:
        """What ``write`` wrote."""
        timings = read_timings(path)
        return OwnRecords(device=timings.device, date=timings.date, rounds=timings.rounds)

    def records(self) -> Iterator[Record]:
        """As records with one sample each."""
        for trial, us in self.us.items():
            yield Record(trial=trial, outcome=Timed(samples_us=(us,)), device_id=self.device.id, fingerprint="own",
                         session="own", when=0.0)  # fmt: skip


def _by_extents(item: tuple[str, object]) -> tuple[int, ...]:
    return tuple(int(extent.rpartition("=")[2]) for extent in item[0].split(";"))


def all_records(folder: Path = FOLDER) -> list[OwnRecords]:
    """Every device's, by id. Instruction sets of one host share its memory: each has the best rates that any of them saw."""
    records = [OwnRecords.read(path) for path in sorted(folder.glob("*.json"))]
    return [replace(own, device=_with_host_memory(own.device, [other.device for other in records])) for own in records]


def _with_host_memory(device: Device, others: Iterable[Device]) -> Device:
    """Other load only lowers a rate, and minutes differ: Zen 4 was measured at 22.9 GB/s with AVX2 and 33.6 with SSE."""
    host = [other for other in others if other.id.rpartition("-")[0] == device.id.rpartition("-")[0]]
    return replace(
        device,
        memory_gbps=max((other.memory_gbps or 0.0 for other in host), default=0.0) or None,
        memory_gbps_unit=max((other.memory_gbps_unit or 0.0 for other in host), default=0.0) or None,
    )


def shape_key(shape: Shape) -> str:
    """Text of a shape in such a file."""
    axes = shape.as_dict()
    return str(axes["m"]) if axes.keys() == {"m"} else str(shape)
