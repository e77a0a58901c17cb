"""Writing a pack: aside in a locked folder, synced, then renamed into place."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from haotuner.errors import HaotunerError, PackInvalid, UsageError
from haotuner.host.files import synchronise
from haotuner.pack.folder import FACTS, MANIFEST, SEAL, foreign, is_ours, is_pack_file
from haotuner.pack.manifest import PACK_SCHEMA, ModelContent, model_files

NEW, OLD = ".new", ".old"  # OLD: of file systems that cannot exchange folders, an earlier pack while it is replaced


@contextlib.contextmanager
def folder_aside(target: Path) -> Iterator[Path]:
    """A new folder beside ``target``, removed at the end if it is still there. OSError where none can be made.

    Before, what killed processes left of such folders is removed.
    """
    remove_left(target)
    folder, lock = _made(target)
    try:
        yield folder
    finally:
        # What lies there now may be an earlier pack, exchanged for the new one, which keeps the lock.
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left(target: Path) -> None:
    """Remove folders for ``target`` whose process is gone; an earlier pack without a successor is put back."""
    name = re.compile(rf"\.{re.escape(target.name)}\.[a-z0-9_]{{8}}({NEW}|{OLD})")
    with contextlib.suppress(OSError):
        for folder in sorted(target.parent.iterdir()):
            if name.fullmatch(folder.name):
                with contextlib.suppress(OSError):
                    _remove(folder, target)


def _made(target: Path) -> tuple[Path, int]:
    """A new folder and the descriptor that holds its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=NEW, dir=target.parent))
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: then nobody removes what is left, either
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return folder, descriptor
        except FileNotFoundError:  # somebody took it for left behind before it was locked
            pass
        os.close(descriptor)


def _remove(folder: Path, target: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError: its process lives, or there are no locks
        if folder.suffix == OLD and not target.exists():
            folder.rename(target)
        elif foreign(folder) in ("", UMASK):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


UMASK = "umask"  # a folder that is made and removed to see the process's umask


def open_mode(folder: Path) -> None:
    """Give a folder the mode that the umask says: mkdtemp's own are for their owner alone.

    The umask is read off a new folder, since setting it to read it would show in other threads.
    """
    probe = folder / UMASK
    probe.mkdir()
    mode = probe.stat().st_mode
    probe.rmdir()
    folder.chmod(mode & 0o777)


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
        with folder_aside(out.resolve()):
            pass
    except OSError as error:
        raise UsageError(
            f"--out {_short(out)}: the folder {_short(parent)} cannot be written to ({error.strerror}); name another one "
            "with --out"
        ) from error


def _check_replaceable(out: Path) -> None:
    if is_ours(out):
        return
    path = foreign(out)
    what = f"{path}, which no haotuner pack has" if path else "something else than a haotuner pack"
    raise UsageError(f"--out {out} holds {what}; it is left as it is. Name another folder with --out")


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 120 else f"{text[:60]}…{text[-40:]} ({len(text)} letters)"


def write_pack(
    out: Path,
    library: Path,
    document: Mapping[str, Any],
    check: Callable[[Path], None],
    models: Mapping[str, ModelContent] | None = None,
) -> Path:
    """Write ``document`` (without schema and files) and the library as a pack at ``out``; replaces an earlier pack.

    ``models``: whole models, by name. Facts of ops then lie in a file of their own.

    ``check`` sees the finished pack before it is published and raises if it is not right. HaotunerError on a full or
    read-only disk; the earlier pack is then untouched and nothing is left behind.
    """
    data = library.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    name = f"lib/{digest[:16]}.so"
    documents, files = model_files(models or {})
    whole = {"schema": PACK_SCHEMA, **document, "files": {name: digest}}
    if documents:
        whole["models"] = documents
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


Step = Callable[[str], None]  # told what was done last, so that tests can end the process there


def publish(out: Path, files: Mapping[str, bytes], check: Callable[[Path], None], step: Step = lambda _: None) -> Path:
    """Put files, by path relative to ``out``, there in one step; the rest is as in ``write_pack``.

    Every name is one that packs have, so that none leads out of the folder. A process that is killed at any step leaves the
    earlier pack or the new one, and what it left beside is removed by the next that publishes there.
    """
    for name in files:
        if not is_pack_file(name):
            raise PackInvalid(
                f"{ascii(name)[1:-1]:.200} is no file of a pack; nothing was written. Restore the pack it came from"
            )
    check_destination(out)
    target = out.resolve()
    with _explained_errors(target), folder_aside(target) as aside:
        open_mode(aside)
        step("made")
        folders = {aside}
        for name, data in files.items():
            path = aside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _put(path, data)
            folders |= {parent for parent in path.parents if parent.is_relative_to(aside)}
            step(f"written {name}")
        for folder in folders:
            synchronise(folder)
        step("synced")
        check(aside)
        step("checked")
        _swap(aside, target, step)
        step("published")
    return out


@contextlib.contextmanager
def _explained_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HaotunerError(
            f"could not write the pack {target}: {error.strerror or error}; free some space or name another folder with "
            "--out. The records are safe: run the same command with --resume"
        ) from error


def _put(path: Path, data: bytes) -> None:
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "wb"
    ) as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _swap(aside: Path, target: Path, step: Step) -> None:
    """Rename into place; an earlier pack is exchanged in one step, and is then what lies aside."""
    if target.exists() and not _exchange(aside, target):
        old = aside.with_suffix(OLD)  # a file system without exchange: two renames, undone if the second fails
        target.rename(old)
        step("moved")
        try:
            aside.rename(target)
        except OSError:
            old.rename(target)
            raise
        step("exchanged")
        shutil.rmtree(old, ignore_errors=True)
    elif not target.exists():
        aside.rename(target)
    step("exchanged")
    synchronise(target.parent)


def _exchange(path: Path, other: Path) -> bool:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(AT_FDCWD, os.fsencode(path), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0)
