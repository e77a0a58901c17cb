"""Names of files in a pack, by pattern: what a pack may hold, and what in a folder no pack has."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from haotuner.errors import PackInvalid
from haotuner.host.files import kind_of, read_regular
from haotuner.pack.folder import SIZE_LIMIT_BYTES
from haotuner.pack.parsing import parse

MANIFEST = "manifest.json"
SEAL = "manifest.sha256"  # the manifest's hash, so that any changed bit is found; packs of schema 1 have none
FACTS = "facts.json"
MODELS = "models"  # the folder of whole models
MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
LIBRARY = re.compile(r"lib/[0-9a-f]{16}\.so")
ARCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,38}")  # no name of a folder leads out of the pack
DEVICE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,78}")
_ON_DEVICE = r"sm_[1-9][0-9]+[af]?"
_LEVEL = rf"(x86-64(-v[234])?|{_ON_DEVICE}/[a-z0-9]+(-[a-z0-9]+)*)"
_OF_MODEL = rf"{MODELS}/{MODEL_NAME.pattern}\.(json|bytecode|weights)"
_PLAIN = rf"({re.escape(MANIFEST)}|{re.escape(SEAL)}|{FACTS}|{LIBRARY.pattern}|{_OF_MODEL})"
_FILE = re.compile(rf"({_LEVEL}/)?{_PLAIN}")
_FOLDER = re.compile(rf"({_LEVEL}/)?(lib|{MODELS})|{_LEVEL}|{_ON_DEVICE}")
_SEALED = re.compile(rb"[0-9a-f]{64}\n")


def is_level(name: Any) -> bool:
    """True if a level may have this name: that of a folder, or for a device of one in a folder."""
    return isinstance(name, str) and len(name) <= 80 and re.fullmatch(_LEVEL, name) is not None


def is_pack_file(name: str) -> bool:
    """True if a pack may hold a file of this name, relative to its folder. Such a name never leads out of it."""
    return _FILE.fullmatch(name) is not None


def foreign(folder: Path) -> str:
    """First foreign path in a folder, at any depth, which no pack has, relative to it; empty if there is none.

    Links are, whatever they point to, and so are pipes and devices. OSError where a folder cannot be read.
    """
    for where, folders, files in os.walk(folder, onerror=_raised):
        inside = Path(where).relative_to(folder)
        for names, known in ((files, _FILE), (folders, _FOLDER)):
            for name in sorted(names):
                path = (inside / name).as_posix()
                if not known.fullmatch(path) or kind_of(folder / path, follow=False) not in ("", "a folder"):
                    return path
    return ""


def _raised(error: OSError) -> None:
    raise error


def is_ours(folder: Path) -> bool:
    """True if haotuner wrote what lies in a folder, be it damaged or of another schema: nothing else may be replaced."""
    try:
        return not foreign(folder) and (_is_manifest(folder / MANIFEST) or _has_seal(folder))
    except OSError:
        return False


def _is_manifest(path: Path) -> bool:
    """True if it says of itself what manifests do, in any schema."""
    try:
        document = parse(path, read_regular(path, SIZE_LIMIT_BYTES, follow=False))
    except (OSError, PackInvalid):
        return False
    if not isinstance(document, dict) or type(document.get("schema")) is not int:
        return False
    files, levels = document.get("files"), document.get("levels")
    named = isinstance(files, dict) and bool(files) and all(LIBRARY.fullmatch(name) for name in files)
    return named or (isinstance(levels, dict) and bool(levels) and all(map(is_level, levels)))


def _has_seal(folder: Path) -> bool:
    """True if a manifest that cannot be read lies beside a seal and a library, of this folder or of a level in it."""
    try:
        sealed = _SEALED.fullmatch(read_regular(folder / SEAL, 100, follow=False))
    except OSError:
        return False
    return bool(sealed) and next(folder.glob("lib/*.so"), None) is not None
