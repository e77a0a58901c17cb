"""Files that somebody else names, read and replaced with care, and scratch folders that do not outlive their process.

Every refusal is an ``OSError`` whose ``strerror`` says what was found, so that callers tell it as they tell a missing file.

Scratch folders that do not outlive their process for long: what a killed one left is removed by the next that starts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def kind_of(path: Path, *, follow: bool = True) -> str:
    """``"a pipe"``, ``"a folder"`` and the like for what lies at ``path``; empty for a regular file or for nothing.

    ``follow``: whether a link stands for what it points to.
    """
    try:
        mode = path.stat().st_mode if follow else path.lstat().st_mode
    except FileNotFoundError:
        return ""
    return _KINDS.get(stat.S_IFMT(mode), "")


def open_regular(path: Path | str, most_bytes: int, *, follow: bool = True, folder: int | None = None) -> BufferedReader:
    """A regular file of at most ``most_bytes``, open for reading; the caller closes it.

    A pipe would be waited for without end, and a device such as /dev/zero never stops.

    Args:
        path: the file.
        most_bytes: the largest size; the file may grow afterwards, so that readers bound what they take, too.
        follow: whether a link stands for what it points to; otherwise it is refused (ELOOP).
        folder: descriptor of the folder that ``path`` is relative to; None: the current one.

    Raises:
        OSError: it cannot be opened, is no regular file, or is larger.
        ValueError: a zero byte in the path.
    """
    # Looked at before it is opened, since the opening alone makes some devices act.
    _only_regular(os.stat(path, dir_fd=folder, follow_symlinks=follow).st_mode)
    # Without waiting: what was a file a moment ago may be a pipe now.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    file = os.fdopen(os.open(path, flags, dir_fd=folder), "rb")
    try:
        facts = os.fstat(file.fileno())
        _only_regular(facts.st_mode)
        if facts.st_size > most_bytes:  # a sparse file takes no disk and would take the memory
            raise _too_large(most_bytes)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Path | str, most_bytes: int, *, follow: bool = True, folder: int | None = None) -> bytes:
    """The content of a regular file of at most ``most_bytes``; arguments and errors as of ``open_regular``."""
    with open_regular(path, most_bytes, follow=follow, folder=folder) as file:
        data = file.read(most_bytes + 1)  # of files in /proc no size is known
    if len(data) > most_bytes:
        raise _too_large(most_bytes)
    return data


def open_beneath(folder: Path, name: str, most_bytes: int) -> BufferedReader:
    """A regular file in or below a folder, open for reading. Links are followed as long as they stay below the folder.

    No part of the path is trusted twice: it is resolved, and then walked without following any link that came since.

    Raises:
        PermissionError: the path leads out of the folder.
        OSError: as of ``open_regular``.
        ValueError: a zero byte in the name.
    """
    root = os.path.realpath(folder, strict=True)
    path = os.path.realpath(Path(root) / name, strict=True)
    if os.path.commonpath((root, path)) != root:
        raise PermissionError(errno.EACCES, "it leads out of its folder")
    *folders, last = Path(path).relative_to(root).parts or (".",)
    with contextlib.ExitStack() as opened:
        inner = _open_folder(root, None, opened)
        for part in folders:
            inner = _open_folder(part, inner, opened)
        return open_regular(last, most_bytes, follow=False, folder=inner)


def _open_folder(name: str, outer: int | None, opened: contextlib.ExitStack) -> int:
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=outer)
    opened.callback(os.close, descriptor)
    return descriptor


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A new, empty file in the folder of ``path``, to be filled; it takes that name when the block ends well.

    A reader sees the old file or the new one, never half of it. If the block fails, nothing is left.

    Raises:
        OSError: the folder is missing, full or read-only, or a pipe, device, link or folder is at ``path``: a rename would
            put a file where it was.
    """
    _nothing_else(path)
    with new_file_beside(path) as aside:
        yield aside
        _nothing_else(path)
        aside.replace(path)


@contextlib.contextmanager
def new_file_beside(path: Path) -> Iterator[Path]:
    """A new, empty file in the folder of ``path``, as private as the umask says; removed at the end if it is still there."""
    aside = path.parent / f".{uuid.uuid4().hex[:12]}.new"  # short: the name itself may be as long as names can be
    os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))  # the umask takes its part
    try:
        yield aside
    finally:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()


def synchronise(path: Path) -> None:
    """Wait until a disk has a file's content, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _nothing_else(path: Path) -> None:
    """OSError unless a regular file or nothing is at ``path``."""
    with contextlib.suppress(FileNotFoundError):
        _only_regular(path.lstat().st_mode)


def _only_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        code = errno.ELOOP if stat.S_ISLNK(mode) else errno.EINVAL
        raise OSError(code, f"it is {kind}, not a regular file")


def _too_large(most_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {_size(most_bytes)}, which no such file has")


def _size(count: int) -> str:
    if count < 1 << 20:
        return f"{count:,} bytes"
    return f"{count >> 30} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


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
