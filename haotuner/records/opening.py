"""Opening an SQLite record store: the check of its path, and what SQLite's errors mean for a person.

Check that a path can hold a record store: made before SQLite may touch it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from haotuner.errors import RecordsUnusable, UsageError
from haotuner.host.files import new_file_beside, synchronise
from haotuner.records.schema import APPLICATION_ID, OLDEST, UPGRADES, USER_VERSION, image

MOUNTS = Path("/proc/self/mounts")
# WAL keeps its index in memory shared by the processes of one host (sqlite.org/wal.html, "Overview"), and file locks
# are unreliable on these. 9p is left out: sandboxes mount their local root as 9p, and where it cannot share memory
# SQLite itself refuses.
NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "glusterfs", "beegfs", "gpfs", "pvfs2", "orangefs")
    + ("fuse.sshfs", "fuse.glusterfs", "fuse.s3fs")
)
# Up to here every page is checked when a store is opened, in half a second. Of a larger one the tables that are changed
# are: records are never changed, each row's digest is compared when it is read, and ``check`` reads them all.
CHECKED_BYTES = 128 << 20
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
    synchronise(path.parent)


def flush(path: Path) -> None:
    """Make what is committed in the store at ``path`` survive a power cut.

    Only the log can hold what was never flushed: SQLite flushes it before it copies anything to the file. SQLite locks
    the file and its -shm, never the log, so closing a descriptor of the log drops no lock.
    """
    with contextlib.suppress(FileNotFoundError):
        synchronise(path.with_name(path.name + "-wal"))
    synchronise(path.parent)  # the log's name


_ALONE = "ro&immutable=1"  # neither locks nor log (sqlite.org/uri.html)
_RUNS = (
    "SELECT CASE WHEN type = 'table' THEN 'virtual table' ELSE type END, name FROM sqlite_master "
    "WHERE type IN ('trigger', 'view') OR sql LIKE 'CREATE VIRTUAL%' LIMIT 1"
)
BUSY_S = 10.0  # a writer holds the lock for milliseconds; ten seconds mean that something keeps it


def connect(path: Path, *, write: bool, busy_s: float = BUSY_S) -> sqlite3.Connection:
    """A connection to the store at ``path``, which is found sound before anything could change it.

    Raises:
        RecordsUnusable: not SQLite, another program's database, another schema, damaged, or locked.
    """
    with guarded(path, "open", busy_s):
        _probe(path, busy_s)
        if not write and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            return _connection(path, "ro" if _log(path).exists() else _ALONE, busy_s)
        db = _connection(path, "rw", busy_s)  # also for reading: a read-only connection leaves its log behind
        # NORMAL survives the death of the process; ``RecordStore.sync`` adds the power cut.
        db.execute("PRAGMA synchronous = NORMAL" if write else "PRAGMA query_only = ON")
        if write and version(db) < USER_VERSION:
            _upgrade(db)
        return db


def version(db: sqlite3.Connection) -> int:
    """Version of the tables; another process may upgrade them while they are read."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _upgrade(db: sqlite3.Connection) -> None:
    """Bring older tables up to date, all steps or none; who comes second finds it done."""
    db.execute("BEGIN IMMEDIATE")
    with db:  # commits, or rolls back what an error left
        for step in range(version(db), USER_VERSION):
            db.execute(UPGRADES[step])
        db.execute(f"PRAGMA user_version = {USER_VERSION}")


@contextlib.contextmanager
def guarded(path: Path, doing: str, busy_s: float) -> Iterator[None]:
    """Turn errors of SQLite and of the disk inside the block into ``RecordsUnusable`` that says what to do."""
    try:
        yield
    except OSError as error:
        raise RecordsUnusable(
            f"records: cannot {doing}: {path}: {error.strerror}; check the disk (space, health)"
        ) from error
    except sqlite3.Error as error:
        raise RecordsUnusable(_error_message(path, doing, busy_s, error)) from error
    except UnicodeDecodeError as error:  # names or texts in it that SQLite repeats in what it says of damage
        raise RecordsUnusable(_damaged(path, "it holds names or texts that are not UTF-8")) from error


def _probe(path: Path, busy_s: float) -> None:
    """Refuse an unsound file without leaving a trace of the attempt beside it.

    Where there is no log nobody has the file open, and SQLite is told to read it alone: it then makes no log of its
    own. If somebody comes meanwhile, what was read may be torn, and a refusal counts only with a log in place.
    """
    if not _log(path).exists():
        before = path.stat()
        try:
            with contextlib.closing(_connection(path, _ALONE, busy_s)) as db:
                _sound(path, db)
                _whole(path, db)
                return
        except (sqlite3.Error, UnicodeDecodeError, RecordsUnusable):
            after = path.stat()
            undisturbed = (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)
            if undisturbed and not _log(path).exists():
                raise
    with contextlib.closing(_connection(path, "ro", busy_s)) as db:
        _sound(path, db)


def _connection(path: Path, mode: str, busy_s: float) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?mode={mode}",
        uri=True,
        timeout=busy_s,
        isolation_level=None,  # transactions are begun and ended by name
        check_same_thread=False,  # the store has a lock of its own
    )
    db.execute("PRAGMA trusted_schema = OFF")  # what a file of others says runs no function but those that only compute
    return db


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _sound(path: Path, db: sqlite3.Connection) -> None:
    application = db.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID:
        raise RecordsUnusable(f"records: {path} is an SQLite database of another program; {ELSEWHERE}")
    result = version(db)
    if not OLDEST <= result <= USER_VERSION:
        newer = "newer than this haotuner, which" if result > USER_VERSION else "unknown to this haotuner, which"
        raise RecordsUnusable(
            f"records: {path} has schema {result}, {newer} reads schema {OLDEST} to {USER_VERSION}; "
            "upgrade haotuner, or name another --db (nothing was changed)"
        )
    for kind, name in db.execute(_RUNS):
        raise RecordsUnusable(
            f"records: {path} holds a {kind} ({ascii(name)[1:-1]:.60}), which would run when the store is used; no store of "
            f"haotuner has one. Nothing was run or changed; {ELSEWHERE}"
        )
    tables = ("",) if path.stat().st_size <= CHECKED_BYTES else ("(session)", "(claim)")
    for table in tables:
        for (text,) in db.execute(f"PRAGMA quick_check{table or '(1)'}"):
            if text != "ok":
                raise RecordsUnusable(_damaged(path, text))


def _whole(path: Path, db: sqlite3.Connection) -> None:
    """Every page is in the file; SQLite itself reads what is missing of the last one as zeros."""
    pages, page_bytes = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    size = path.stat().st_size
    if size < pages * page_bytes:
        raise RecordsUnusable(_damaged(path, f"{size} bytes of {pages * page_bytes}, it was cut short"))


def _error_message(path: Path, doing: str, busy_s: float, error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    message = f"records: cannot {doing}: {path}"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return (
            f"{message} has been locked by another process for more than {busy_s:g} s; "
            f"wait for it or end it (`fuser {path}` names it), or name another --db"
        )
    if code == sqlite3.SQLITE_FULL:
        return f"{message}: the disk is full; free space and run again with --resume, what was stored is kept"
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
        return f"{message} or its folder is not writable ({error}); change the mode, or {ELSEWHERE}"
    if code == sqlite3.SQLITE_NOTADB:
        return f"records: {path} is not an SQLite database, or its start was overwritten; nothing was changed; {ELSEWHERE}"
    if code == sqlite3.SQLITE_CORRUPT:
        return _damaged(path, str(error))
    return f"{message}: {error}; check the disk (space, health), then run `haotuner records check`"


def _damaged(path: Path, how: str) -> str:
    return (
        f"records: {path} is damaged ({how}); nothing was changed. Put back a copy; "
        f"`sqlite3 {path} .recover` can print what is left for a new file"
    )
