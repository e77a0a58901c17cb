"""Hashes of kernels' code, kept by the sources that they were made from: a run that resumes generates nothing again."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from haotuner.backends.object_cache import make_private, not_private
from haotuner.host.files import read_regular, written_aside
from haotuner.microkernels.index import FAMILIES

_PACKAGE = Path(__file__).resolve().parents[1]
_SOURCES = (".py", ".c", ".h", ".cuh")
_LARGEST_BYTES = 64 << 20
CODES = "codes"  # the folder, beside those of kept objects
_MOST_FILES = 8  # of other versions of the package, the newest
_FAMILIES = frozenset(family.name for family in FAMILIES)  # others are of kinds that files and packages of others bring


@lru_cache(maxsize=1)
def sources_hash() -> str:
    """Hash of every source of the package; where it lies counts for nothing."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*")):
        if path.suffix in _SOURCES:
            digest.update(f"{path.relative_to(_PACKAGE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def stored_codes(
    folder: Path | None, words: Sequence[str], names: Sequence[str], make: Callable[[Sequence[str]], Mapping[str, str]]
) -> dict[str, str]:
    """The hash of each kernel's code: what the folder has of this package, else what ``make`` says, which is stored.

    Args:
        folder: files by hash of package and ``words``; None, or one in which others may write: nothing is stored.
        words: what the code depends on beside the package: target and toolchain.
        names: of the kernels.
        make: hashes by name of those that are not stored.
    """
    key = hashlib.sha256(json.dumps([sources_hash(), *words]).encode()).hexdigest()[:32]
    path = None if folder is None or not_private(folder) else folder / f"{key}.json"
    stored = {} if path is None else _read(path)
    missing = [name for name in names if name not in stored]
    if missing:
        made = dict(make(missing))
        stored |= made
        own = {name: code for name, code in made.items() if name.partition("__")[0] in _FAMILIES}
        if path is not None and own:
            with contextlib.suppress(OSError):
                _write(path, own)
    return {name: stored[name] for name in names}


def _read(path: Path) -> dict[str, str]:
    try:
        data = json.loads(read_regular(path, _LARGEST_BYTES, follow=False))
    except (OSError, ValueError):  # damaged: made again
        return {}
    return {str(name): str(code) for name, code in data.items()} if isinstance(data, dict) else {}


def _write(path: Path, made: Mapping[str, str]) -> None:
    make_private(path.parent)
    with written_aside(path) as aside:
        aside.write_text(json.dumps({**_read(path), **made}, indent=0, sort_keys=True), encoding="utf-8")
    others = sorted(path.parent.glob("*.json"), key=lambda other: other.stat().st_mtime)
    for old in others[:-_MOST_FILES]:
        old.unlink(missing_ok=True)
