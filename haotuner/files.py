"""Files that somebody else names: read only if they are regular and not too large, replaced only if they are regular.

Every refusal is an ``OSError`` whose ``strerror`` says what was found, so that callers tell it as they tell a missing file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
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


def read_regular(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most ``most_bytes``.

    A pipe would be waited for without end, and a device such as /dev/zero never stops.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger.
        ValueError: a zero byte in the path.
    """
    _only_regular(kind_of(path))
    # Without waiting: what was a file a moment ago may be a pipe now.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        _only_regular(_KINDS.get(stat.S_IFMT(os.fstat(file.fileno()).st_mode), ""))
        data = file.read(most_bytes + 1) if os.fstat(file.fileno()).st_size <= most_bytes else None
    if data is None or len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {_size(most_bytes)}, which no such file has")
    return data


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A new, empty file in the folder of ``path``, to be filled; it takes that name when the block ends well.

    A reader sees the old file or the new one, never half of it. If the block fails, nothing is left.

    Raises:
        OSError: the folder is missing, full or read-only, or a pipe, device, link or folder is at ``path``: a rename would
            put a file where it was.
    """
    _only_regular(kind_of(path, follow=False))
    with new_file_beside(path) as aside:
        yield aside
        _only_regular(kind_of(path, follow=False))
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


def _only_regular(kind: str) -> None:
    if kind:
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file")


def _size(count: int) -> str:
    return f"{count >> 30} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"
