"""Timings of one device in one file: the device first, then one line a state of one op.

Line 1: ``{"date", "device", "kernels"}``. Others: ``[op, threads, weights, split, {shape: [[kernel index, us...]...]}]``.
A shape is its rows where those are its only axis, else as the command line writes it (``b=1;h=14;w=14``).
``python -m tests.bench.cuda_records`` and ``own_devices`` write them; the tree has those of an H200 and six CPUs.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from haotuner.errors import UnknownDevice, UsageError
from haotuner.host.files import open_regular
from haotuner.hw_profiles.typical import typical
from haotuner.records.codec import trial_of
from haotuner.records.importing import Loaded
from haotuner.records.text import SIZE_LIMIT_BYTES, read_text
from haotuner.spec.device import Device
from haotuner.spec.record import Record, Timed, Trial
from haotuner.spec.shape import Shape

FILE_KIND = "a file of one device's timings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Medians in microseconds by trial, those of every round; ``refused``: reason to number of medians left out."""

    device: Device
    date: str
    rounds: Mapping[Trial, tuple[float, ...]]
    refused: Counter[str] = field(default_factory=Counter)


def is_timings(path: Path) -> bool:
    """True if the first line of a file is the head of one device's timings."""
    try:
        with open_regular(path, SIZE_LIMIT_BYTES) as file:
            head = json.loads(file.readline(1 << 20))
    except (OSError, ValueError, RecursionError):  # whoever reads it says what is wrong
        return False
    return isinstance(head, dict) and {"date", "device", "kernels"} <= head.keys()


def read_timings(path: Path) -> Timings:
    """The file's timings.

    Raises:
        EnvironmentMissing: the file cannot be read.
        UsageError: a line of it is not in the form of this module's docstring.
    """
    first, *lines = read_text(path, FILE_KIND)[0].splitlines() or [""]
    refused: Counter[str] = Counter()
    rounds: dict[Trial, tuple[float, ...]] = {}
    number = 1
    try:
        head = json.loads(first)
        device, date, kernels = Device(**head["device"]), str(head["date"]), head["kernels"]
        for number, line in enumerate(lines, start=2):  # noqa: B007  named by the error below
            op, threads, weights, split, times_by_shape = json.loads(line)
            for text, rows in times_by_shape.items():
                shape = _shape(text)
                for at, *medians in rows:
                    sound = tuple(us for us in medians if math.isfinite(us) and us > 0)
                    refused["a time that is no positive number"] += len(medians) - len(sound)
                    if sound:
                        kernel = kernels[at]
                        trial = trial_of(op=op, kernel=kernel, shape=shape, threads=threads, weights=weights, split=split)
                        rounds[trial] = sound
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{path}: line {number} is not one of {FILE_KIND} ({type(error).__name__}: {error}); get the file again"
        ) from error
    return Timings(device=device, date=date, rounds=rounds, refused=+refused)


def _shape(text: str) -> Shape:
    if "=" not in text:
        return Shape.of(m=int(text))
    return Shape.of({axis: int(extent) for axis, _, extent in (part.partition("=") for part in text.split(";"))})


def load_timings(path: Path, *, find_device: Callable[[str], Device]) -> Loaded:
    """The file's timings as records with one sample each: the least median of every trial, as load only ever slows.

    Raises:
        EnvironmentMissing: the file cannot be read.
        UsageError: it is damaged, has no time, or describes another device than the profile of that name.
    """
    timings = read_timings(path)
    _check_device(path, timings.device, find_device)
    try:
        when = datetime.fromisoformat(timings.date).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise UsageError(f"{path}: the date {timings.date!r} is none: {error}") from error
    session = f"import-{timings.device.id}-{timings.date}"
    records = tuple(
        Record(trial=trial, outcome=Timed(samples_us=(min(us),)), device_id=timings.device.id, fingerprint=session,
               session=session, when=when)
        for trial, us in timings.rounds.items()
    )  # fmt: skip
    return Loaded(
        path=path,
        expected_row="timed row",
        records=records,
        rows=len(records) + sum(timings.refused.values()),
        refused=timings.refused,
    )


def _check_device(path: Path, device: Device, find_device: Callable[[str], Device]) -> None:
    """UsageError if a profile goes by the file's device id and is of another device."""
    try:
        known = find_device(device.id)
    except UnknownDevice:  # a host whose records tell all that is known of it
        return
    compared = ["kind", "arch", *(["compute_units"] if typical(device).waves_hide_latency else [])]  # hosts rent out cores
    for name in compared:
        file_value, profile_value = getattr(device, name), getattr(known, name)
        if file_value != profile_value:
            raise UsageError(
                f"{path}: two devices under the name {device.id}: {name} is {file_value} in the file and {profile_value} in "
                "the profile; give the file's device another id, and add a profile of it"
            )
