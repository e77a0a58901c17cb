"""A pack's folder, held open while it is read: names of its files, and strict JSON.

JSON of a pack, read strictly: whoever wrote it may mean harm.

Files are opened relative to the folder's descriptor. A pack is replaced by an exchange of folders, and the old one is
deleted, so a reader may find its files gone; it then begins again with the new folder.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from haotuner.errors import HaotunerError, PackInvalid
from haotuner.host.files import kind_of, open_regular, read_regular

DEPTH_LIMIT = 32
BRACKETS_LIMIT = 500_000  # a pack of 256 ops has some 40,000; two million empty lists take the parser 0.2 s
_ALIKE, _NO_BRACKETS = bytes.maketrans(b"{}", b"[]"), bytes(set(range(256)) - set(b"[]{}"))


def parse(path: Path, raw: bytes) -> Any:
    """JSON of bounded depth without repeated keys or constants such as NaN; PackInvalid names ``path``."""
    if raw.count(b"[") + raw.count(b"{") > BRACKETS_LIMIT or _depth(raw) > DEPTH_LIMIT:
        raise PackInvalid(f"{path}: nested too deeply to be a manifest")
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise PackInvalid(f"{path}: not valid JSON ({error}); tune again or restore the pack from where it came") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _depth(raw: bytes) -> int:
    """Deepest nesting, or a little more when brackets stand inside texts, which no manifest has. Counted up to the limit."""
    rest, depth = raw.translate(_ALIKE, _NO_BRACKETS), 0
    while rest and depth <= DEPTH_LIMIT:
        inner = rest.replace(b"[]", b"")  # the innermost pairs
        if len(inner) == len(rest):
            return depth + len(rest)  # what closes nothing, or is never closed
        rest, depth = inner, depth + 1
    return depth


SIZE_LIMIT_BYTES = 16 << 20  # of a manifest: the largest pack tried has 0.3 MB; a hostile one must not fill the memory
LIBRARY_LIMIT_BYTES = 1 << 30
ATTEMPTS = 100  # a pack is loaded in milliseconds; nobody replaces one so often

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Folder:
    """An open folder of a pack."""

    path: Path
    descriptor: int

    def read(self, name: str, limit: int) -> bytes:
        """Content of a regular file of at most ``limit`` bytes. OSError as of ``open_regular``."""
        return self.read_facts(name, limit)[0]

    def read_facts(self, name: str, limit: int) -> tuple[bytes, os.stat_result]:
        """``read``, and the facts of the file that was read."""
        with open_regular(name, limit, follow=False, folder=self.descriptor) as stream:
            return stream.read(limit + 1)[: limit + 1], os.fstat(stream.fileno())

    def read_below(self, name: str, limit: int) -> tuple[bytes, os.stat_result]:
        """``read_facts`` of a file in a folder of this one, ``lib/<hash>.so``; no part of the path may be a link."""
        first, _, rest = name.partition("/")
        if rest:
            with self.inner(first) as inner:
                return inner.read_below(rest, limit)
        try:
            return self.read_facts(first, limit)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise linked(self.path / first) from error
            raise

    @contextmanager
    def inner(self, name: str) -> Iterator[Folder]:
        """A folder inside this one. OSError as the system says it; PackInvalid for a link."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(name, flags, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and stat.S_ISLNK(
                os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode
            ):
                raise linked(self.path / name) from error
            raise
        try:
            yield Folder(self.path / name, descriptor)
        finally:
            os.close(descriptor)

    def moved(self) -> bool:
        """True if the path names another folder by now, or none."""
        try:
            return not os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except OSError:
            return True


def linked(path: Path) -> PackInvalid:
    """The refusal of a link."""
    return PackInvalid(f"{path} is a link; a pack holds its own files: copy the pack with its contents")


def steadily(pack: Path, read: Callable[[Folder], T]) -> T:
    """``read`` with the pack's folder, again where it failed because another pack took its place meanwhile.

    PackInvalid if there is no such folder; otherwise what ``read`` raises.
    """
    for attempt in range(ATTEMPTS):
        try:
            descriptor = os.open(pack, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            words = getattr(error, "strerror", None) or error
            raise PackInvalid(f"{pack} is not a haotuner pack: cannot read it ({words}); name the directory "
                              "that `haotuner tune --out` wrote") from error  # fmt: skip
        folder = Folder(pack, descriptor)
        try:
            return read(folder)
        except HaotunerError:
            if attempt == ATTEMPTS - 1 or not folder.moved():
                raise
        finally:
            os.close(descriptor)
    raise AssertionError("the last attempt returns or raises")


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
