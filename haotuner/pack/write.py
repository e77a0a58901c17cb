"""Writing a pack: aside, synced, then renamed into place, so that a reader sees the old pack or the new one."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from haotuner.errors import HaotunerError, PackInvalid, UsageError
from haotuner.pack.facts_apart import FACTS
from haotuner.pack.levels import is_placed
from haotuner.pack.manifest import MANIFEST, PACK_SCHEMA, SEAL, read_manifest
from haotuner.pack.models import MODELS, model_files
from haotuner.runtime.host import LEVELS

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # <fcntl.h>, <linux/fs.h>


def check_destination(out: Path) -> None:
    """UsageError unless ``out`` is free or holds a haotuner pack that may be replaced, and its folder takes a new one."""
    try:
        if out.is_symlink() or (out.exists() and not out.is_dir()):
            raise UsageError(f"--out {out} exists and is not a directory; move it away or name another folder")
        if out.is_dir() and any(out.iterdir()):
            _check_replaceable(out)
        parent = out.resolve().parent
        if not _is_utf8(out.resolve()):
            raise UsageError(
                f"--out {ascii(str(out))[1:-1]}: the path is not UTF-8 text, and no pack can be loaded from there"
            )
        if not parent.is_dir():
            raise UsageError(f"--out {out}: the folder {parent} does not exist; create it first")
    except (OSError, ValueError) as error:  # a name that is too long; a zero byte
        raise UsageError(f"--out {_short(out)}: {getattr(error, 'strerror', None) or error}; name another folder") from error
    try:
        _aside(out.resolve()).rmdir()
    except OSError as error:
        raise UsageError(
            f"--out {_short(out)}: the folder {_short(parent)} cannot be written to ({error.strerror}); name another one "
            "with --out"
        ) from error


def _check_replaceable(out: Path) -> None:
    try:
        read_manifest(out)
    except PackInvalid as error:
        if not _was_pack(out):
            raise UsageError(
                f"--out {out} holds something else than a haotuner pack; it is left as it is. Name another folder with --out"
            ) from error


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 120 else f"{text[:60]}…{text[-40:]} ({len(text)} letters)"


def _aside(target: Path) -> Path:
    """A new folder beside the target, where a pack is put together."""
    return Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".new", dir=target.parent))


def _was_pack(out: Path) -> bool:
    """A pack of another schema or with a damaged manifest is still ours to replace: only what packs have is inside."""
    names = {path.name for path in out.iterdir() if not (path.is_dir() and is_placed(path.name))}
    return names <= {MANIFEST, SEAL, FACTS, "lib", MODELS, *LEVELS} and (out / MANIFEST).is_file()


def write_pack(
    out: Path,
    library: Path,
    document: Mapping[str, Any],
    check: Callable[[Path], None],
    models: Mapping[str, tuple[bytes, bytes]] | None = None,
) -> Path:
    """Write ``document`` (without schema and files) and the library as a pack at ``out``; replaces an earlier pack.

    ``models``: schedule and weights of whole models, by name. Facts of ops then lie in a file of their own.

    ``check`` sees the finished pack before it is published and raises if it is not right. HaotunerError on a full or
    read-only disk; the earlier pack is then untouched and nothing is left behind.
    """
    data = library.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    name = f"lib/{digest[:16]}.so"
    told, files = model_files(models or {})
    whole = {"schema": PACK_SCHEMA, **document, "files": {name: digest}}
    if told:
        whole["models"] = told
        whole["ops"], files[FACTS] = _facts_apart(document["ops"])
        whole["facts_sha256"] = hashlib.sha256(files[FACTS]).hexdigest()
    return publish(out, {name: data, **files, **sealed(as_json(whole))}, check)


def _facts_apart(ops: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], bytes]:
    """Entries of ops without their facts, and these as the bytes of a file: of a model's ops they are megabytes."""
    facts = {op["name"]: op["facts"] for op in ops if "facts" in op}
    text = json.dumps(facts, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return [{key: value for key, value in op.items() if key != "facts"} for op in ops], (text + "\n").encode()


def sealed(manifest: bytes) -> dict[str, bytes]:
    """A manifest and the file that holds its hash, by path in the pack."""
    return {MANIFEST: manifest, SEAL: (hashlib.sha256(manifest).hexdigest() + "\n").encode()}


def as_json(document: Mapping[str, Any]) -> bytes:
    """A manifest's bytes; the same for the same content."""
    return (json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def publish(out: Path, files: Mapping[str, bytes], check: Callable[[Path], None]) -> Path:
    """Put files, by path relative to ``out``, there in one step; the rest is as in ``write_pack``."""
    check_destination(out)
    target = out.resolve()
    with _nothing_left(target) as aside:
        folders = {aside}
        for name, data in files.items():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            _put(aside / name, data)
            folders |= {parent for parent in (aside / name).parents if parent.is_relative_to(aside)}
        for folder in folders:
            _sync(folder)
        check(aside)
        _swap(aside, target)
    return out


@contextlib.contextmanager
def _nothing_left(target: Path) -> Iterator[Path]:
    aside: Path | None = None
    try:
        aside = _aside(target)
        aside.chmod(0o777 & ~_umask(aside))  # mkdtemp's own folders are for their owner alone
        yield aside
    except OSError as error:
        raise HaotunerError(
            f"could not write the pack {target}: {error.strerror or error}; free some space or name another folder with "
            "--out. The records are safe: run the same command with --resume"
        ) from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def _umask(aside: Path) -> int:
    """The process's umask, read off a new folder: setting it to read it would show in other threads."""
    probe = aside / "umask"
    probe.mkdir()
    mode = probe.stat().st_mode
    probe.rmdir()
    return ~mode & 0o777


def _put(path: Path, data: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _swap(aside: Path, target: Path) -> None:
    """Rename into place; an earlier pack is exchanged in one step, and is then what lies aside."""
    if target.exists() and not _exchange(aside, target):
        old = aside.with_suffix(".old")  # a file system without exchange: two renames, undone if the second fails
        target.rename(old)
        try:
            aside.rename(target)
        except OSError:
            old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)
    elif not target.exists():
        aside.rename(target)
    _sync(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)
