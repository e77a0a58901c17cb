"""A folder of compiled units by their content: ``KEY/unit.cu``, ``KEY/unit.cubin``, ``KEY/facts.json``.

The key is a hash of source, architecture and flags, then the compiler's name. An entry appears whole or not at all,
whoever else writes the same one and whenever a process is killed; one that was damaged since is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.errors import UsageError

UNIT, CUBIN, FACTS = "unit.cu", "unit.cubin", "facts.json"
MEANING = 1  # of a key and an entry: raised when either changes
ABANDONED_SECONDS = 3600.0  # an unfinished entry that is older was left by a process that was killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One unit as it was built; ``unit`` is the text that became the cubin."""

    unit: str
    cubin: bytes
    facts: Mapping[str, Any]  # JSON


@dataclass(frozen=True, slots=True)
class CodeCache:
    """A folder that any number of processes use at a time."""

    folder: Path

    def find(self, content: str, compiler: str | None) -> Entry | None:
        """The entry of some content by a compiler's name; of any compiler if None. None where there is no sound one."""
        hashed = _hash(content)
        names = [f"{hashed}-*"] if compiler is None else [f"{hashed}-{_slug(compiler)}"]
        paths = sorted(position for name in names for position in self.folder.glob(name))
        return next((entry for position in paths if (entry := _sound(position)) is not None), None)

    def keep(self, content: str, compiler: str, entry: Entry) -> Path:
        """Publish an entry; its folder. UsageError if the cache cannot be written.

        Where another process was faster its entry stays, unless it is damaged.
        """
        path = self.folder / f"{_hash(content)}-{_slug(compiler)}"
        aside = self.folder / f".{uuid.uuid4().hex[:12]}.new"
        try:
            aside.mkdir(parents=True)
            facts = {**entry.facts, "sha256": _digest(entry)}
            _written(aside / UNIT, entry.unit.encode())
            _written(aside / CUBIN, entry.cubin)
            _written(aside / FACTS, json.dumps(facts, indent=1, sort_keys=True).encode())
            self._publish(aside, path)
        except OSError as error:
            raise UsageError(f"cannot keep compiled code in {self.folder}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        self._sweep()
        return path

    def _publish(self, aside: Path, position: Path) -> None:
        while True:
            try:
                aside.rename(position)  # onto a folder that is not there, or is empty
                return
            except OSError:
                if not position.exists():
                    raise
            if _sound(position) is not None:
                return
            damaged = self.folder / f".{uuid.uuid4().hex[:12]}.new"
            with contextlib.suppress(FileNotFoundError):  # another process took it away
                position.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)

    def _sweep(self) -> None:
        for left in self.folder.glob(".*.new"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)


def _hash(content: str) -> str:
    return hashlib.sha256(f"{MEANING}\0{content}".encode()).hexdigest()[:32]


def _digest(entry: Entry) -> str:
    return hashlib.sha256(entry.unit.encode() + b"\0" + entry.cubin).hexdigest()


def _slug(compiler: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", compiler.lower())


def _written(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())  # a rename that outlives its content would publish an empty file


def _sound(position: Path) -> Entry | None:
    try:
        facts = json.loads((position / FACTS).read_bytes())
        entry = Entry(unit=(position / UNIT).read_text(), cubin=(position / CUBIN).read_bytes(), facts=facts)
    except (OSError, ValueError):
        return None
    sound = isinstance(facts, dict) and facts.get("sha256") == _digest(entry)
    return entry if sound else None
