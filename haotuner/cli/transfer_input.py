"""What the transfer verbs read: a store's tables, devices, families and counts, with what is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from haotuner.cli.cache_folder import cache_folder
from haotuner.cli.output import tell
from haotuner.errors import HaotunerError, UnknownDevice, UsageError
from haotuner.host.files import open_regular
from haotuner.hw_profiles.find import find_device
from haotuner.records.address import open_store
from haotuner.records.clblast import is_winners_file
from haotuner.records.importing import load_kernel_tuner
from haotuner.records.text import SIZE_LIMIT_BYTES
from haotuner.spec.device import Device
from haotuner.spec.record import Record

if TYPE_CHECKING:  # LightGBM, pandas and scikit-learn take a second to import: only these verbs wait for them
    from haotuner.transfer.reading import DeviceTables


_HEAD_BYTES = 64_000
_CACHE_NAMES = (b'"device_name"', b'"kernel_name"', b'"tune_params_keys"', b'"cache"')


def device_tables(db: str | None, data: Path | None, *, quiet: bool, verbose: bool) -> DeviceTables:
    """The tables of a store, or of a folder of Kernel Tuner's cache files; UsageError unless one of them is named."""
    if (db is None) == (data is None):
        raise UsageError("name the records to read: either --db URL, a record store, or --data FOLDER, files to import")
    return read_folder(data, quiet=quiet, verbose=verbose) if data else read_store(str(db), quiet=quiet, verbose=verbose)


def read_store(db: str, *, quiet: bool, verbose: bool) -> DeviceTables:
    """The tables of a store; what was left out, and with ``verbose`` what was not, goes to stderr."""
    store = open_store(db, write=False)
    try:
        return _read(store.records(), quiet=quiet, verbose=verbose)
    finally:
        store.close()


def read_folder(folder: Path, *, quiet: bool, verbose: bool) -> DeviceTables:
    """The tables of every Kernel Tuner cache file in a folder and those below it; nothing is stored.

    Files that are none, or whose kernels or devices are unknown, are left out, and so are rows of the others that say
    nothing; all of it goes to stderr, and where a file was cut short.

    Raises:
        UsageError: no folder, or no file of it can be used.
    """
    if not folder.is_dir():
        raise UsageError(f"--data {folder} is no folder; name one that holds Kernel Tuner's cache files (*.json, *.json.gz)")
    result: list[Record] = []
    refused: list[str] = []
    for path in caches_in(folder):
        try:
            loaded = load_kernel_tuner(path, find_device=known_device)
        except HaotunerError as error:
            refused.append(str(error))
            continue
        result += loaded.records
        for reason, count in () if quiet else loaded.refused.most_common():
            tell(f"{path}: left out {count}: {reason}")
        if loaded.torn and not quiet:
            tell(f"{path}: cut short: {loaded.torn}")
    if not result:
        why = "; ".join(refused[:3]) or "it holds no *.json and no *.json.gz"
        raise UsageError(f"--data {folder} holds no Kernel Tuner cache file that can be used: {why}")
    for reason in () if quiet else refused:
        tell(f"left out: {reason}")
    return _read(result, quiet=quiet, verbose=verbose)


def caches_in(folder: Path) -> list[Path]:
    """Files of a folder and those below it that may be Kernel Tuner's caches, sorted: JSON that is no table of winners."""
    result = sorted((*folder.rglob("*.json"), *folder.rglob("*.json.gz")))
    return [path for path in result if path.is_file() and not is_winners_file(path)]


def is_something_else(path: Path) -> bool:
    """Whether a plain JSON file has none of the names that a cache begins with: of such files folders are full."""
    if path.suffix != ".json":
        return False
    try:
        with open_regular(path, SIZE_LIMIT_BYTES) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False  # whoever reads it says what is wrong
    return bool(head.strip()) and not any(name in head for name in _CACHE_NAMES)


def _read(records: Iterable[Record], *, quiet: bool, verbose: bool) -> DeviceTables:
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

    Raises:
        UnknownDevice: no profile, no row of the table and no shipped model goes by that name.
    """
    try:
        return find_device(name, measure=False, cache_dir=cache_folder(os.environ))
    except UnknownDevice:
        from haotuner.transfer.models_shipped import models_shipped

        result = next((model.device for model in models_shipped().models if model.device.id == name), None)
        if result is None:
            raise
        return result


def known_families(read: DeviceTables, requested: Sequence[str] | None) -> Sequence[str]:
    """The families asked for, or all of the store; UsageError names those that it has not."""
    known = read.families()
    if unknown := [name for name in requested or () if name not in known]:
        raise UsageError(f"no records of --family {', '.join(unknown)}; the store has {', '.join(known)}")
    return requested or known


def shared_families(read: DeviceTables, requested: Sequence[str] | None = None) -> list[str]:
    """Those of the families asked for, or of all, that at least two devices measured; UsageError if one asked for is not."""
    names = known_families(read, requested)
    result = [family for family in names if len(read.of(family)) > 1]
    if not result or (requested and len(result) < len(names)):
        alone = ", ".join(name for name in names if name not in result)
        left = f"; left out: {'; '.join(read.left_out)}" if read.left_out else ""
        raise UsageError(
            f"records of two devices are needed, of {alone} the store has one{left}; "
            f"import more with: haotuner records import FILE --db URL"
        )
    return result


def counts_of(option: str, text: str, *, least: int = 0) -> tuple[int, ...]:
    """Counts such as ``0,16,32``, ascending and each once; UsageError names the option."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) < 7 and int(word) >= least for word in words):
        raise UsageError(f"{option} {text!r}: write counts from {least} up, such as 16,32,64")
    return tuple(sorted({int(word) for word in words}))
