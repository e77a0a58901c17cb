"""Journal of a run as JSON Lines: appended, flushed, and read again by the next slice."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SYNC_SECONDS = 1.0  # a power cut loses at most that; a kill of the process loses nothing that was appended


class Journal:
    """One append-only file. A torn last line, left by a kill, is cut off when the file is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8")
        self._synced = time.monotonic()

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one line; no kill of this process can take it back."""
        self.append_text(json.dumps(entry, sort_keys=True, separators=(",", ":")))

    def append_text(self, line: str) -> None:
        """Write one line that is JSON already."""
        self._file.write(line + "\n")
        self._file.flush()
        if time.monotonic() - self._synced > SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def close(self) -> None:
        """Bring everything to the disk."""
        os.fsync(self._file.fileno())
        self._file.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Every entry so far."""
        return entries(self.path)


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a journal; none where there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
