"""Measurements from files into a record store: foreign ones row by row, JSON Lines of `export`.

Times of one file that cannot all be in one unit, or that contradict what is known of the same trial.

No line of a file says its unit. What a row says of itself (``kernel_tuner.py``) is not always there, so the times of one
problem on one device are held against each other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from haotuner.cost.series import without_throttled
from haotuner.errors import EnvironmentMissing, UnknownDevice, UsageError
from haotuner.records.clblast import is_tuner_file, read_tuner
from haotuner.records.codec import decode
from haotuner.records.kernel_tuner import CacheFile, KernelMapping, Refusal, choose, read_cache, record_of, unkept
from haotuner.records.store import RecordStore
from haotuner.records.text import read_text
from haotuner.spec.device import Device
from haotuner.spec.record import Record, Timed
from haotuner.spec.units import SAME, gap_of


def one_unit(records: Sequence[Record]) -> tuple[list[Record], Counter[str]]:
    """The records without those that another one contradicts, and how many were left out for what reason.

    Raises:
        UsageError: the times of a problem fall into two groups, neither of which is an accident.
    """
    timed = [record for record in records if isinstance(record.outcome, Timed)]
    left_out: dict[int, str] = {}  # ``id()`` of a record, since content hashes of all rows take longer than the rest
    for same in _grouped(timed, lambda record: record.trial.key()):
        if _us(same[-1]) > _us(same[0]) * SAME:
            reason = f"the same configuration was measured more than {SAME:g} times apart: mixed units?"
            left_out |= {id(record): reason for record in same}
    for group in _grouped((r for r in timed if id(r) not in left_out), lambda record: record.trial.op.name):
        gap = gap_of([_us(record) for record in group])
        if gap is None:
            continue
        fast, slow = group[: gap.fast], group[gap.fast :]
        if not gap.accident:
            raise UsageError(
                f"mixed units? {group[0].trial.op.name} on {group[0].device_id} has {_summary(fast)}, {_summary(slow)}, and "
                f"nothing for a factor of {gap.factor:.0f} between; times must be milliseconds: "
                "convert the wrong ones, or import the right ones from a file of their own; nothing was stored"
            )
        reason = f"{gap.factor:.0f} times away from every other time: mixed units?"
        left_out |= {id(record): reason for record in min(fast, slow, key=len)}
    sound = [record for record in records if id(record) not in left_out]
    return sound, Counter(left_out[id(record)] for record in records if id(record) in left_out)


def fits_store(records: Sequence[Record], store: RecordStore) -> tuple[list[Record], int]:
    """The records without those whose trial the store has timed more than 100 times apart, and how many these are."""
    ids: set[str] = set()
    seen: dict[str, tuple[float, float]] = {}  # trial to its fastest and slowest
    for fingerprint in sorted({record.fingerprint for record in records}):
        for old in store.records(fingerprint=fingerprint):
            ids.add(old.id)
            if isinstance(old.outcome, Timed):
                us, key = old.outcome.median_us, old.trial.key()
                low, high = seen.get(key, (us, us))
                seen[key] = (min(low, us), max(high, us))
    sound = [record for record in records if _agrees(record, seen) or record.id in ids]  # what is stored already stays
    return sound, len(records) - len(sound)


def _agrees(record: Record, seen: dict[str, tuple[float, float]]) -> bool:
    if not isinstance(record.outcome, Timed) or not seen:
        return True
    us = record.outcome.median_us
    low, high = seen.get(record.trial.key(), (us, us))
    return high / SAME <= us <= low * SAME


def _grouped(records: Iterable[Record], key: Callable[[Record], str]) -> Iterable[list[Record]]:
    """The records of each key, fastest first."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return [sorted(group, key=_us) for group in groups.values()]


def _summary(group: Sequence[Record]) -> str:
    return f"{len(group)} times of {_ms(group[0])} to {_ms(group[-1])} ms"


def _us(record: Record) -> float:
    return record.outcome.median_us if isinstance(record.outcome, Timed) else 0.0


def _ms(record: Record) -> str:
    return f"{_us(record) / 1000:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Result of importing one file."""

    path: Path
    device_id: str
    mapping: str
    op: str
    rows: int
    timed: int
    failed: int
    new: int  # records the store did not hold before
    refused: Mapping[str, int]  # reason to number of rows left out
    dropped: Mapping[str, int]  # column to number of rows whose number in it no record can hold; the rows came in
    torn: str  # where reading stopped, empty for a whole file


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The usable records of one file.

    Raises:
        UsageError: there is none, or rows were refused and not one timed row is left.
    """

    path: Path
    expected_row: str  # what a usable row of such a file is called
    records: tuple[Record, ...]
    rows: int
    refused: Counter[str]
    dropped: Counter[str] = field(default_factory=Counter)
    mapping: str = ""  # of a foreign file
    torn: str = ""

    def __post_init__(self) -> None:
        timed = any(isinstance(record.outcome, Timed) for record in self.records)
        if timed or (self.records and not self.refused):
            return
        why = "; ".join(f"{reason} ({count})" for reason, count in self.refused.most_common(3))
        result = f", only {len(self.records)} failed" if self.records else ""
        raise UsageError(
            f"{self.path}: not one {self.expected_row}{result}: {why or self.torn or 'it has no rows'}; nothing was stored"
        )

    def into(self, store: RecordStore) -> Imported:
        """Store the records in one transaction; those that the store already holds are left as they are.

        Raises:
            UsageError: what the store has of the same trials leaves not one timed row.
        """
        ready = self._agreeing(store) if self.mapping else self  # our own export is moved whole, whatever it says
        timed = sum(isinstance(record.outcome, Timed) for record in ready.records)
        return Imported(
            path=self.path,
            device_id=", ".join(sorted({record.device_id for record in ready.records})),
            mapping=self.mapping,
            op=", ".join(sorted({record.trial.op.name for record in ready.records})),
            rows=self.rows,
            timed=timed,
            failed=len(ready.records) - timed,
            new=store.append(ready.records),
            refused=dict(ready.refused),
            dropped=dict(self.dropped),
            torn=self.torn,
        )

    def _agreeing(self, store: RecordStore) -> Loaded:
        sound, odd = fits_store(self.records, store)
        if not odd:
            return self
        reason = "more than 100 times away from what the store has of the same configuration: mixed units?"
        return replace(self, records=tuple(sound), refused=self.refused + Counter({reason: odd}))


def load_kernel_tuner(
    path: Path, *, find_device: Callable[[str], Device], device: str | None = None, mapping: str | None = None
) -> Loaded:
    """The rows of one cache file of Kernel Tuner, or of one file of CLBlast's tuner, as records.

    Args:
        path: the file, gzipped or not, complete or cut at any byte.
        find_device: the device of a name, such as ``haotuner.hw_profiles.find.find_device``.
        device: overrides the file's ``device_name``.
        mapping: ``xgemm``, ``conv`` or ``dedispersion``; by default the one that knows the file's parameters.

    Raises:
        EnvironmentMissing: the file, or the device of this host that it names, cannot be read.
        UnknownDevice: ``find_device`` knows no such device.
        UsageError: not a cache file, no mapping fits, the device cannot run such kernels, the times are of several units,
            or not one timed row is usable. The message names the file.
    """
    cache = read_tuner(path) if is_tuner_file(path) else read_cache(path)
    rule = _rule(cache, mapping)
    result = _device(cache, rule, device, find_device)
    records: list[Record] = []
    refused: Counter[str] = Counter(cache.odd)
    dropped: Counter[str] = Counter()
    for _, row in cache.rows:
        try:
            records.append(record_of(cache, row, rule, result))
            dropped.update(unkept(row, rule))
        except Refusal as refusal:
            refused[str(refusal)] += 1
    try:
        sound, odd = one_unit(records)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    sound, throttled = without_throttled(sound)
    return Loaded(
        path=path,
        expected_row="usable row" if not records else "usable timed row",
        records=tuple(sound),
        rows=len(cache.rows) + sum(cache.odd.values()),
        refused=refused + odd + throttled,
        dropped=dropped,
        mapping=rule.name,
        torn=cache.torn,
    )


def _rule(cache: CacheFile, mapping: str | None) -> KernelMapping:
    """The mapping, found to fit all of the file."""
    try:
        rule = choose(cache.keys, mapping)
        rule.fits(cache.problem_size)
    except UsageError as error:
        raise UsageError(f"{cache.path}: {error}") from error
    for key in rule.unknown(cache.keys):  # must not vary, or two kernels would get one name
        values = {json.dumps(row.get(key)) for _, row in cache.rows}
        if len(values) > 1:
            raise UsageError(
                f"{cache.path}: mapping {rule.name} does not know the parameter {key}, which takes {len(values)} values; "
                "import the rows of one value from a file of their own"
            )
    return rule


def _device(cache: CacheFile, rule: KernelMapping, inputs: str | None, find: Callable[[str], Device]) -> Device:
    """The device of the file, found to be one that such kernels run on."""
    try:
        device = find(inputs or cache.device_name)
    except UnknownDevice as error:
        hint = "" if inputs else "; name a known device with --device, or add a profile (haotuner/hw_profiles/README.md)"
        raise UnknownDevice(f"{cache.path}: {error}{hint}") from error
    except EnvironmentMissing as error:  # the file names a device of this host, which cannot answer
        raise EnvironmentMissing(f"{cache.path}: {error}") from error
    if device.kind not in rule.kinds:
        raise UsageError(
            f"{cache.path}: {rule.family} runs on GPUs, and {inputs or cache.device_name!r} is {device.id}, "
            f"of kind {device.kind}; name the GPU that was measured with --device"
        )
    return device


def is_export(path: Path) -> bool:
    """True if the first line of a file, gzipped or not, is one that ``export`` writes."""
    try:
        first = json.loads(read_text(path, "a file of measurements")[0].partition("\n")[0])
    except (UsageError, EnvironmentMissing, ValueError, RecursionError):  # whoever reads it says what is wrong
        return False
    return isinstance(first, dict) and {"schema", "trial"} <= first.keys()


def load_jsonl(path: Path) -> Loaded:
    """The records of one file, gzipped or not.

    Lines that do not decode, or whose content hash does not fit, are counted under their reason. A last line without
    an end of line was cut and is reported as such.

    Raises:
        EnvironmentMissing: the file cannot be read.
        UsageError: not one line is a record, or lines were refused and not one is of a timed record.
    """
    text, stopped = read_text(path, "a file of `haotuner records export`")
    records: list[Record] = []
    refused: Counter[str] = Counter()
    lines = text.split("\n")
    torn = stopped
    for number, content in enumerate(lines, start=1):
        if not content:
            continue
        try:
            records.append(decode(json.loads(content)))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            if number == len(lines):
                torn = f"{stopped}{': ' if stopped else ''}line {number} is cut short"
            else:
                refused[f"line {number}: {error}"[:160]] += 1
    return Loaded(
        path=path,
        expected_row="timed record" if records else "record of this schema",
        records=tuple(records),
        rows=len(records) + sum(refused.values()),
        refused=refused,
        torn=torn,
    )
