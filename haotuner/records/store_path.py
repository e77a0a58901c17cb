"""Check that a path can hold a record store: made before SQLite may touch it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from haotuner.errors import RecordsUnusable, UsageError
from haotuner.host.files import new_file_beside
from haotuner.records.schema import image

MOUNTS = Path("/proc/self/mounts")
# WAL keeps its index in memory shared by the processes of one host (sqlite.org/wal.html, "Overview"), and file locks
# are unreliable on these. 9p is left out: sandboxes mount their local root as 9p, and where it cannot share memory
# SQLite itself refuses.
NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "glusterfs", "beegfs", "gpfs", "pvfs2", "orangefs")
    + ("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs")
)
_SMALLEST_BYTES = 512  # one page of the smallest size (sqlite.org/fileformat2.html 1.3.2)
ELSEWHERE = "name another --db, such as sqlite:///records.db"


def inspect(path: Path, *, write: bool, mounts: Path = MOUNTS) -> bool:
    """True if a store exists at ``path`` (its links resolved); nothing is changed.

    Raises:
        UsageError: the folder is missing, or something that is not a file is in the way.
        RecordsUnusable: network file system, too small for a database, or not writable.
    """
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"records: {path}: the folder {folder} does not exist; create it, or name another --db")
    kind = filesystem(folder, mounts)
    if kind in NETWORK:
        raise RecordsUnusable(
            f"records: {path} is on a network file system ({kind}), where SQLite's write-ahead log loses data; "
            "name a --db on a local disk, and copy it afterwards if others need it"
        )
    if write and not os.access(folder, os.W_OK | os.X_OK):
        raise RecordsUnusable(f"records: the folder {folder} is not writable, and SQLite keeps its log there; {ELSEWHERE}")
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RecordsUnusable(f"records: cannot look at {path}: {error.strerror}; {ELSEWHERE}") from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise UsageError(f"records: {path} is {what}; --db must name a file, such as sqlite:///records.db")
    if not os.access(path, os.R_OK | os.W_OK if write else os.R_OK):
        raise RecordsUnusable(
            f"records: {path} is not {'writable' if write else 'readable'}; change its mode, or {ELSEWHERE}"
        )
    # The content is left to SQLite (``opening``): POSIX drops all locks of a process on a file as soon as it closes any
    # descriptor of it, so opening the file here would unlock a store this process already uses
    # (sqlite.org/howtocorrupt.html 2.2).
    size = path.stat().st_size
    if size < _SMALLEST_BYTES:
        # A store appears complete or not at all (``create``), so an empty file was never one of ours at work: it
        # was emptied or made by something else. Starting over in it would hide the loss.
        raise RecordsUnusable(
            f"records: {path} is damaged or no record store: it has {size} bytes, and the smallest database has "
            f"{_SMALLEST_BYTES}; put back a copy if it held records, or delete it and run again to start a new one"
        )
    return True


def create(path: Path) -> None:
    """Put a new, empty store at ``path``, complete or not at all; one that appeared meanwhile is left as it is."""
    try:
        with new_file_beside(path) as aside:
            with aside.open("wb") as file:
                file.write(image())
                file.flush()
                os.fsync(file.fileno())
            _publish(aside, path)
    except OSError as error:
        raise RecordsUnusable(f"records: cannot create {path}: {error.strerror}; free space, or {ELSEWHERE}") from error


def filesystem(folder: Path, mounts: Path = MOUNTS) -> str:
    """Type of the file system that holds a folder, as the kernel names it; empty when it cannot be told."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    where = str(folder.resolve())
    for fields in (line.split() for line in lines):
        if len(fields) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[1])  # blanks are written \040
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of mounts on one point the last one is on top
            best, kind = point, fields[2]
    return kind


def _publish(new: Path, path: Path) -> None:
    try:
        os.link(new, path)  # unlike a rename it never replaces a store that another process made first
    except FileExistsError:
        return
    except OSError:  # file systems without hard links (FAT, some FUSE)
        if not path.exists():
            new.rename(path)
    _flush(path.parent)


def flush(path: Path) -> None:
    """Make what is committed in the store at ``path`` survive a power cut.

    Only the log can hold what was never flushed: SQLite flushes it before it copies anything to the file. SQLite locks
    the file and its -shm, never the log, so closing a descriptor of the log drops no lock.
    """
    with contextlib.suppress(FileNotFoundError):
        _flush(path.with_name(path.name + "-wal"))
    _flush(path.parent)  # the log's name


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
