"""Opening of the record store that a ``--db`` URL names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote_to_bytes

from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.host.extras import how_to_get, missing
from haotuner.records.memory import MemoryStore
from haotuner.records.opening import BUSY_S
from haotuner.records.sqlite import SqliteStore
from haotuner.records.store import RecordStore

_SQLITE = "sqlite:///"
POSTGRES = ("postgresql://", "postgres://")
_MEMORY = "memory://"


def open_store(url: str, *, write: bool = True, busy_s: float = BUSY_S) -> RecordStore:
    """The store at a URL: ``sqlite:///FILE``, ``postgresql://USER@HOST/DATABASE`` or ``memory://``.

    A store that does not exist is created, unless ``write`` is false. The caller closes it.

    Raises:
        UsageError: the URL is not one of these, or its path cannot be a file.
        RecordsUnusable: the file is damaged, locked, newer, read-only, or not a record store.
    """
    if url == _MEMORY:
        return MemoryStore()
    if (path := file_of(url)) is not None:
        return SqliteStore(path, write=write, busy_s=busy_s)
    if url.startswith(POSTGRES):
        if absent := missing(("sqlalchemy", "psycopg", "alembic")):
            raise EnvironmentMissing(f"--db postgresql://: not installed: {', '.join(absent)}; run: {how_to_get('fleet')}")
        from haotuner.records.postgres import PostgresStore

        return PostgresStore(url, write=write, busy_s=busy_s)
    url = without_password(url)
    scheme, colon, _ = url.partition("://")
    if not colon or scheme == "sqlite":
        raise UsageError(
            f"--db {url!r} is not a URL; for a file write sqlite:///{url.partition('://')[2].lstrip('/') or url}"
        )
    raise UsageError(
        f"--db {url!r}: a store of kind {scheme!r} is not built; "
        "this haotuner keeps records in sqlite:///FILE or postgresql://, and `haotuner records export` moves them elsewhere"
    )


def file_of(url: str) -> Path | None:
    """The file that a ``sqlite:///`` URL names, its links resolved; None for other URLs.

    Raises:
        UsageError: the URL names no file.
    """
    if not url.startswith(_SQLITE):
        return None
    text = os.fsdecode(unquote_to_bytes(os.fsencode(url.removeprefix(_SQLITE))))
    if not text or text.endswith("/") or "\0" in text or "?" in url:
        raise UsageError(f"--db {url!r} names no file; write sqlite:///records.db or sqlite:////absolute/path/records.db")
    return Path(text).resolve()


def without_password(url: str) -> str:
    """A URL to be printed or stored: who and what lies before the host becomes stars, and so does a password behind it."""
    url = re.sub(r"//[^/?#@]*(:[^/?#]*)?@", "//***@", url)
    return re.sub(r"(?i)([?&](?:ssl)?password=)[^&#]*", r"\1***", url)
