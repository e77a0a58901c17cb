"""The device tables of a store or of a folder of public cache files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from haotuner.cli.output import tell
from haotuner.cli.transfer_input import caches_in, known_device, known_families, read_rankable, read_store
from haotuner.errors import HaotunerError, UsageError
from haotuner.records.importing import load_kernel_tuner
from haotuner.spec.record import Record
from haotuner.transfer.reading import DeviceTables


def device_tables(db: str | None, data: Path | None, *, quiet: bool, verbose: bool) -> DeviceTables:
    """The tables of a store, or of a folder of Kernel Tuner's cache files; UsageError unless one of them is named."""
    if (db is None) == (data is None):
        raise UsageError("name the records to read: either --db URL, a record store, or --data FOLDER, files to import")
    return read_folder(data, quiet=quiet, verbose=verbose) if data else read_store(str(db), quiet=quiet, verbose=verbose)


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
    return read_rankable(result, quiet=quiet, verbose=verbose)


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
