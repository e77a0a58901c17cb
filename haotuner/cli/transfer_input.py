"""What the transfer verbs read: a store's tables, devices, families and counts, with what is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from haotuner.cli.cache_folder import cache_folder
from haotuner.cli.output import tell
from haotuner.errors import UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.records.address import open_store
from haotuner.words.device import Device

if TYPE_CHECKING:  # LightGBM, pandas and scikit-learn take a second to import: only these verbs wait for them
    from haotuner.transfer.reading import Read


def read_store(db: str, *, quiet: bool, verbose: bool) -> Read:
    """The tables of a store; what was left out, and with ``verbose`` what was not, goes to stderr."""
    from haotuner.transfer.reading import read_records

    store = open_store(db, write=False)
    try:
        read = read_records(store.records(), known_device)
    finally:
        store.close()
    if not quiet:
        for reason, count in read.left_out.most_common():
            tell(f"left out {count}: {reason}")
        for table in read.tables if verbose else ():
            rows = f"{len(table)} rows of {len(table.task_names)} tasks"
            tell(f"{table.family} on {table.device.id}: {rows}")
    return read


def known_device(name: str) -> Device:
    """The device of that name; nothing is measured for it."""
    return find_device(name, measure=False, cache_dir=cache_folder(os.environ))


def known_families(read: Read, asked: Sequence[str] | None) -> Sequence[str]:
    """The families asked for, or all of the store; UsageError names those that it has not."""
    known = read.families()
    if unknown := [name for name in asked or () if name not in known]:
        raise UsageError(f"no records of --family {', '.join(unknown)}; the store has {', '.join(known)}")
    return asked or known


def shared_families(read: Read, asked: Sequence[str] | None = None) -> list[str]:
    """Those of the families asked for, or of all, that at least two devices measured; UsageError if one asked for is not."""
    names = known_families(read, asked)
    found = [family for family in names if len(read.of(family)) > 1]
    if not found or (asked and len(found) < len(names)):
        alone = ", ".join(name for name in names if name not in found)
        left = f"; left out: {'; '.join(read.left_out)}" if read.left_out else ""
        raise UsageError(
            f"records of two devices are needed, of {alone} the store has one{left}; "
            f"import more with: haotuner records import FILE --db URL"
        )
    return found


def counts_of(option: str, text: str, *, least: int = 0) -> tuple[int, ...]:
    """Counts such as ``0,16,32``, ascending and each once; UsageError names the option."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) < 7 and int(word) >= least for word in words):
        raise UsageError(f"{option} {text!r}: write counts from {least} up, such as 16,32,64")
    return tuple(sorted({int(word) for word in words}))
