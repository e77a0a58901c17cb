"""Source of an export: choices of a pack's plans, or choices and records of a store, for one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from haotuner.cli.options import facts_of
from haotuner.cli.transfer_input import known_device
from haotuner.errors import UsageError
from haotuner.pack.manifest import Manifest, read_manifest
from haotuner.pack.op import PackOp
from haotuner.records.address import open_store
from haotuner.records.choices import Choice, fastest, planned
from haotuner.spec.device import Device, is_standin
from haotuner.spec.op import Op
from haotuner.spec.record import Record
from haotuner.verify.pack_groups import meaning_of

Extents = Callable[[Op, int, int], Sequence[int]]  # of an op's dynamic axis, within its tuned range (both ends included)


@dataclass(slots=True, kw_only=True)
class ExportSource:
    """Choices of a pack or a store on one device, and reasons why some of its plans are no choice of one kernel."""

    device: Device
    choices: list[Choice]
    records: list[Record] = field(default_factory=list)  # of a store
    left_out: Counter[str] = field(default_factory=Counter)


def is_store(source: str) -> bool:
    """True of the URL of a store, False of a pack's folder."""
    return "://" in source


def read_source(source: str, *, op: str | None, device: str | None, extents: Extents) -> ExportSource:
    """The choices of a pack or a store.

    Args:
        source: a pack's folder, or a store's URL.
        op: only this op, by its name; None takes all.
        device: only this device of a store; None takes the only one.
        extents: at which a pack's plans are asked.

    Raises:
        UsageError: several devices and none named, no op of that name, nothing timed, records of a stand-in for tests.
        PackInvalid, RecordsUnusable, UnknownDevice: as their readers say.
    """
    if is_store(source):
        return _of_store(source, op, device)
    if device is not None:
        raise UsageError("--device chooses among the devices of a store; a pack is for one")
    return _of_pack(Path(source), op, extents)


def _of_store(url: str, op: str | None, device: str | None) -> ExportSource:
    store = open_store(url, write=False)
    try:
        records = list(store.records(op=op))
    finally:
        store.close()
    ids = sorted({record.device_id for record in records})
    if not records:
        raise UsageError(f"{url} has no records{f' of --op {op}' if op else ''}; `haotuner records list` says what it has")
    if device is None and len(ids) > 1:
        raise UsageError(f"{url} has records of {', '.join(ids)}: a file is of one device; choose with --device")
    chosen = ids[0] if device is None else device if device in ids else known_device(device).id
    if chosen not in ids:
        raise UsageError(f"--device {device}: the store has records of {', '.join(ids)}; choose among these")
    if is_standin(chosen):
        raise UsageError(f"records of {chosen} are of a stand-in for tests, whose times are invented: they are not exported")
    records = [record for record in records if record.device_id == chosen]
    return ExportSource(device=known_device(chosen), choices=fastest(records), records=records)


def _of_pack(path: Path, op: str | None, extents: Extents) -> ExportSource:
    manifest = read_manifest(path)
    entries = [entry for entry in manifest.ops if op in (None, entry.name)]
    if not entries:
        known = ", ".join(entry.name for entry in manifest.ops)
        raise UsageError(f"--op {op}: the pack has {known}; choose among these")
    with facts_of(path):
        result = ExportSource(device=Device(**manifest.document["device"]), choices=[])
        for entry in entries:
            _plans(entry, manifest, extents, result)
    return result


def _plans(entry: PackOp, manifest: Manifest, extents: Extents, result: ExportSource) -> None:
    """Choices of one op, appended; reasons where its plan has none."""
    plan = entry.facts.get("plans", {}).get(str(entry.threads[-1]), {})
    if len(entry.dynamic) != 1 or "cells" not in plan:
        why = "several dynamic axes" if len(entry.dynamic) > 1 else "plans that join several kernels for a shape"
        result.left_out[f"ops with {why}"] += 1
        return
    axis, problem = entry.dynamic[0], meaning_of(entry)
    points = [extent for extent in extents(problem, axis.first, axis.last) if axis.first <= extent <= axis.last]
    choices, shared = planned(manifest.device_id, problem, axis.name, plan, points)
    result.choices += choices
    if shared:
        result.left_out["shapes that several kernels share"] += shared
