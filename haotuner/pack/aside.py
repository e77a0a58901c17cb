"""Folders beside a target, in which a pack is put together: locked by who works in them, removed when he is gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from haotuner.pack.names import foreign

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
