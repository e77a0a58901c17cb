"""Scratch folders that do not outlive their process for long: what a killed one left is removed by the next that starts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "haotuner-"
_ALIVE = ".alive"  # a file that the owner holds a lock on; the kernel lets go of it however the owner ends


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A private folder for large or many files, removed at the end. OSError if there is no place for it.

    Programs started with ``TMPDIR`` set to it leave nothing elsewhere, even when they are killed.
    """
    path = Path(tempfile.gettempdir())
    _remove_left(path)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=path))
    lock = -1
    try:
        lock = os.open(folder / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def _remove_left(position: Path) -> None:
    """Remove our own folders whose owner is gone; what cannot be looked at stays."""
    with contextlib.suppress(OSError):
        for folder in position.glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                result = folder.lstat()
                if folder.is_dir() and not folder.is_symlink() and result.st_uid == os.geteuid() and _is_left(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    try:
        lock = os.open(folder / _ALIVE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False  # being made, or not one of these
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
