"""Opening of the record store that a ``--db`` URL names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote_to_bytes

from haotuner.errors import UsageError
from haotuner.records.memory import MemoryStore
from haotuner.records.opening import BUSY_S
from haotuner.records.sqlite import SqliteStore
from haotuner.records.store import RecordStore

_SQLITE = "sqlite:///"
_MEMORY = "memory://"


def open_store(url: str, *, write: bool = True, busy_s: float = BUSY_S) -> RecordStore:
    """The store at a URL: ``sqlite:///relative.db``, ``sqlite:////absolute/path.db`` or ``memory://``.

    A store that does not exist is created, unless ``write`` is false. The caller closes it.

    Raises:
        UsageError: the URL is not one of these, or its path cannot be a file.
        RecordsUnusable: the file is damaged, locked, newer, read-only, or not a record store.
    """
    if url == _MEMORY:
        return MemoryStore()
    if url.startswith(_SQLITE):
        text = os.fsdecode(unquote_to_bytes(os.fsencode(url.removeprefix(_SQLITE))))
        if not text or text.endswith("/") or "\0" in text or "?" in url:
            raise UsageError(
                f"--db {url!r} names no file; write sqlite:///records.db or sqlite:////absolute/path/records.db"
            )
        return SqliteStore(Path(text), write=write, busy_s=busy_s)
    url = re.sub(r"//[^/?#]*@", "//***@", url)  # a password is never printed
    scheme, colon, _ = url.partition("://")
    if not colon or scheme == "sqlite":
        raise UsageError(
            f"--db {url!r} is not a URL; for a file write sqlite:///{url.partition('://')[2].lstrip('/') or url}"
        )
    raise UsageError(
        f"--db {url!r}: a store of kind {scheme!r} is not built; "
        "this haotuner keeps records in sqlite:///FILE, and `haotuner records export` moves them elsewhere"
    )
