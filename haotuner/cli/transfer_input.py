"""Records that `haotuner transfer` reads: tables of a store, devices and families, with what is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from haotuner.cli.output import tell
from haotuner.errors import UnknownDevice, UsageError
from haotuner.host.cache_folder import cache_folder
from haotuner.host.files import open_regular
from haotuner.hw_profiles.find import find_device
from haotuner.records.address import open_store
from haotuner.records.clblast import is_winners_file, read_winners
from haotuner.records.text import SIZE_LIMIT_BYTES
from haotuner.spec.device import Device
from haotuner.spec.record import Record

if TYPE_CHECKING:  # LightGBM, pandas and scikit-learn take a second to import: only these verbs wait for them
    from haotuner.transfer.device_table import DeviceTable
    from haotuner.transfer.reading import DeviceTables


_HEAD_BYTES = 64_000
_CACHE_NAMES = (b'"device_name"', b'"kernel_name"', b'"tune_params_keys"', b'"cache"', b'"kernels"', b'"kernel_family"')


def read_store(db: str, *, quiet: bool, verbose: bool) -> DeviceTables:
    """The tables of a store; what was left out, and with ``verbose`` what was not, goes to stderr."""
    store = open_store(db, write=False)
    try:
        return read_rankable(store.records(), quiet=quiet, verbose=verbose)
    finally:
        store.close()


def known_winners(paths: Sequence[Path], *, seed: int, quiet: bool) -> list[DeviceTable]:
    """Tables of the winners that files hold; what was left out goes to stderr.

    Raises:
        UsageError: a file that is no table of winners, or of whose devices none is known; the message names it.
    """
    from haotuner.records.winners import winner_tables

    result: list[DeviceTable] = []
    for path in paths:
        tables = winner_tables(read_winners(path), seed=seed)
        for reason, count in () if quiet else tables.left_out.most_common():
            tell(f"left out {count}: {path}: {reason}")
        if not tables.tables:
            raise UsageError(f"{path}: not one winner of a GPU whose profile is known; add profiles, or leave it out")
        result += tables.tables
    return result


def caches_in(folder: Path) -> list[Path]:
    """Files of a folder and those below it that may be Kernel Tuner's caches, sorted: JSON that is no table of winners."""
    result = sorted((*folder.rglob("*.json"), *folder.rglob("*.json.gz")))
    return [path for path in result if path.is_file() and not is_winners_file(path)]


def is_something_else(path: Path) -> bool:
    """True if a plain JSON file has none of the names that a cache begins with: of such files folders are full."""
    if path.suffix != ".json":
        return False
    try:
        with open_regular(path, SIZE_LIMIT_BYTES) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False  # whoever reads it says what is wrong
    return bool(head.strip()) and not any(name in head for name in _CACHE_NAMES)


def read_rankable(records: Iterable[Record], *, quiet: bool, verbose: bool) -> DeviceTables:
    """The tables of records; what was left out, and with ``verbose`` what was not, goes to stderr."""
    from haotuner.transfer.reading import read_records

    read = read_records(records, known_device)
    if not quiet:
        for reason, count in read.left_out.most_common():
            tell(f"left out {count}: {reason}")
        for table in read.tables if verbose else ():
            rows = f"{len(table)} rows of {len(table.task_names)} tasks"
            tell(f"{table.family} on {table.device.id}: {rows}")
    return read


def known_device(name: str) -> Device:
    """The device of that name; nothing is measured for it. Hosts whose models ship are known by what these say of them.

    So is this host's CPU until it is measured: against typical rates alone, real times look impossible.

    Raises:
        UnknownDevice: no profile, no row of the table and no shipped model goes by that name.
    """
    try:
        device = find_device(name, measure=False, cache_dir=cache_folder(os.environ))
    except UnknownDevice:
        shipped = _shipped_device(name)
        if shipped is None:
            raise
        return shipped
    if device.kind == "cpu" and device.peak_gflops is None:
        return _shipped_device(device.id) or device
    return device


def _shipped_device(device_id: str) -> Device | None:
    """The device of the shipped model with that id, with the rates that were measured there."""
    from haotuner.transfer.models_shipped import models_shipped

    return next((model.device for model in models_shipped().models if model.device.id == device_id), None)


def known_families(read: DeviceTables, requested: Sequence[str] | None) -> Sequence[str]:
    """The families asked for, or all of the store; UsageError names those that it has not."""
    known = read.families()
    if unknown := [name for name in requested or () if name not in known]:
        raise UsageError(f"no records of --family {', '.join(unknown)}; the store has {', '.join(known)}")
    return requested or known
