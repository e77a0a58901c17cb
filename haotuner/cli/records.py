"""`haotuner records`: look at a record store, bring measurements in, take them out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from haotuner.cli.devices import columns
from haotuner.cli.output import say, tell
from haotuner.cli.transfer_input import caches_in, is_something_else
from haotuner.errors import HaotunerError, RecordsUnusable, UnknownDevice, UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.records.address import file_of, open_store, without_password
from haotuner.records.clblast import is_winners_file
from haotuner.records.export import FORMATS, export
from haotuner.records.importing import Imported, Loaded, is_export, load_jsonl, load_kernel_tuner
from haotuner.records.kernel_tuner import named
from haotuner.records.merging import merge
from haotuner.records.miopen import is_find_database, load_find_database
from haotuner.records.store import RecordStore
from haotuner.records.timings import is_timings, load_timings
from haotuner.spec.device import Device
from haotuner.spec.record import Timed

records_app = typer.Typer(help="Look at a record store, bring measurements in, take them out.", no_args_is_help=True)

_Db = Annotated[
    str, typer.Option("--db", metavar="URL", help="The record store: sqlite:///FILE or postgresql://USER@HOST/DATABASE.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
_Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print as little as possible.")]
_Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print more.")]
_SHOWN = 5  # reasons of refused rows printed for people; JSON has them all


@dataclass(frozen=True, slots=True)
class _Refused:
    """A file that did not come in."""

    path: Path
    error: HaotunerError

    def document(self) -> dict[str, Any]:
        return {"path": str(self.path), "error": str(self.error), "exit_code": self.error.exit_code}


@records_app.command("import")
def import_(
    db: _Db,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="Files to read, gzipped ones too; of a folder all that fit."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", help="A folder of public files: caches and tables."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="kernel-tuner, or jsonl as written by export; by default what a file is.")
    ] = "",
    device: Annotated[
        str | None, typer.Option(help="Device the rows were measured on, if the file names it wrongly.")
    ] = None,
    mapping: Annotated[
        str | None, typer.Option(help="xgemm, conv or dedispersion; by default what fits the parameters.")
    ] = None,
    json_output: _Json = False,
    quiet: _Quiet = False,
    verbose: _Verbose = False,
) -> None:
    """Store the measurements of files; what the store already holds is not stored twice.

    Every file is tried; if one did not come in, the others did, and the exit code is that of the first that did not.
    Of MIOpen's find databases a part is stored. CLBlast's winners hold no records: they are read and counted.
    """
    outcomes: list[dict[str, Any]] = []
    failures: list[_Refused] = []
    paths = [*(files or ()), *([data] if data is not None else ())]
    if not paths:
        raise UsageError("name what to read: FILE... or --data FOLDER")
    if data is not None and not data.is_dir():
        raise UsageError(f"--data {data} is no folder")
    load, every = _loader(form, device, mapping), [file for path in paths for file in _files_of(path, form)]
    tables = [path for path in every if is_winners_file(path)]
    every = [path for path in every if path not in tables]
    for table in map(_counted, tables):
        outcomes.append(table.document())
        if isinstance(table, _Refused):
            failures.append(table)
        elif not (quiet or json_output):
            say(table.table(None if verbose else _SHOWN))
    for outcome in _imported(every, load, db):
        outcomes.append(
            outcome.document() if isinstance(outcome, _Refused) else {**asdict(outcome), "path": str(outcome.path)}
        )
        if isinstance(outcome, _Refused):
            failures.append(outcome)
        elif not (quiet or json_output):
            say(_summary(outcome, None if verbose else _SHOWN))
    if json_output:
        say(json.dumps({"files": outcomes}, indent=1))
    if failures:
        raise _together(failures, len(every) + len(tables))


@records_app.command("export")
def export_(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    db: _Db,
    form: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "jsonl",
    op: Annotated[str | None, typer.Option(help="Only records of this op.")] = None,
    device: Annotated[str | None, typer.Option(help="Only records of this device: its id, or the driver's name.")] = None,
    session: Annotated[str | None, typer.Option(help="Only records of this session.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    json_output: _Json = False,
    quiet: _Quiet = False,
    verbose: _Verbose = False,
) -> None:
    """Write records to a file: jsonl (complete), parquet (for data frames), t4 (for other tuners' tools)."""
    with _store(db, write=False) as store:
        records = store.records(op=op, device_id=_device_id(store, device) if device is not None else None, session=session)
        written = export(records, out, form, replace=force)
    if json_output:
        say(json.dumps({"path": str(out), "format": form, "records": written}))
    elif not quiet:
        say(f"{out}: {written} records" + (f", {out.stat().st_size} bytes of {form}" if verbose else ""))


@records_app.command("merge")
def merge_(
    into: Annotated[str, typer.Argument(metavar="INTO", help="URL of the store that receives; a new one is created.")],
    sources: Annotated[list[str], typer.Argument(metavar="FROM...", help="URLs of the stores to read.")],
    json_output: _Json = False,
    quiet: _Quiet = False,
    verbose: _Verbose = False,
) -> None:
    """Bring the sessions and records of other stores into one, each once; `tune --resume` then goes on from there."""
    with contextlib.ExitStack() as stack:
        opened = []
        for url in sources:  # all are opened first: a wrong one makes no new store
            if _same_store(url, into):
                raise UsageError(f"{without_password(url)} is also the store that receives; name others as FROM")
            opened.append((without_password(url), stack.enter_context(_store(url, write=False))))
        target = stack.enter_context(_store(into, write=True))
        merged = [merge(source, target, name) for name, source in opened]
    if json_output:
        say(json.dumps({"into": without_password(into), "sources": [asdict(source) for source in merged]}, indent=1))
    elif not quiet:
        for source in merged:
            sessions = f", {source.sessions} new sessions" if verbose or source.sessions else ""
            say(f"{source.source}: {source.records} records, {source.new} new{sessions}")


@records_app.command()
def check(db: _Db, json_output: _Json = False, quiet: _Quiet = False, verbose: _Verbose = False) -> None:
    """Read the whole store: the file's structure, every row, every content hash. Exit 1 if anything is wrong."""
    with _store(db, write=False) as store:
        problems = store.check()
        sessions = store.sessions()
    if json_output:
        say(json.dumps({"ok": not problems, "problems": problems}, indent=1))
    elif not quiet or problems:
        say("\n".join(problems) or f"{without_password(db)}: sound")
        if verbose:
            say(
                "\n".join(f"session {session.id}: {session.what or 'no description'}" for session in sessions)
                or "no tuning session"
            )
    if problems:
        raise typer.Exit(1)


@records_app.command("list")
def list_(db: _Db, json_output: _Json = False, quiet: _Quiet = False, verbose: _Verbose = False) -> None:
    """List what the store holds: one line a session, device and op."""
    with _store(db, write=False) as store:
        groups = _groups(store)
    if json_output:
        say(json.dumps({"groups": groups}, indent=1))
        return
    if quiet:
        say("\n".join(dict.fromkeys(group["session"] for group in groups)))
        return
    header = ("session", "device", "op", "timed", "failed", *(("fingerprint",) if verbose else ()))
    say(columns([header, *(tuple(str(group[name]) for name in header) for group in groups)]))


def _same_store(url: str, other: str) -> bool:
    """True if both URLs name one store, as far as the URLs tell."""
    path = file_of(url)
    return url == other if path is None else path == file_of(other)


@contextlib.contextmanager
def _store(db: str, *, write: bool) -> Iterator[RecordStore]:
    store = open_store(db, write=write)
    try:
        yield store
    finally:
        store.close()


def _loader(form: str, device: str | None, mapping: str | None) -> Callable[[Path], Loaded]:
    """Reader of a file of that format; errors of the options themselves are raised here, before any file is read."""
    if form not in ("", "kernel-tuner", "jsonl"):
        raise UsageError(f"unknown format {form!r}; known: kernel-tuner, jsonl")
    if form == "jsonl":
        if device or mapping:
            raise UsageError("--device and --mapping are for foreign formats; jsonl files say both")
        return load_jsonl
    if device:
        _absent_too(device)
    if mapping:
        named(mapping)
    cache = partial(load_kernel_tuner, find_device=_absent_too, device=device, mapping=mapping)
    solvers = partial(load_find_database, device=device)
    if form or mapping:
        return cache
    if device:
        return lambda path: solvers(path) if is_find_database(path) else cache(path)
    timings = partial(load_timings, find_device=_absent_too)

    def load(path: Path) -> Loaded:
        if is_find_database(path):
            return solvers(path)
        return load_jsonl(path) if is_export(path) else timings(path) if is_timings(path) else cache(path)

    return load


def _files_of(path: Path, form: str) -> list[Path]:
    """The path itself, or of a folder the files of that format; with Kernel Tuner's also tables that hold no records.

    Raises:
        UsageError: a folder without any.
    """
    if not path.is_dir():
        return [path]
    if form == "jsonl":
        files = sorted(path.rglob("*.jsonl"))
    else:
        others = [path for path in path.rglob("*") if path.is_file() and (is_find_database(path) or is_winners_file(path))]
        every = {*caches_in(path), *others}
        strange = sorted(path for path in every if path not in others and is_something_else(path))
        for path_ in strange:
            tell(f"{path_}: no cache, no find database and no winners: passed over")
        files = sorted({*every, *(path.rglob("*.jsonl") if not form else ())} - set(strange))
    if not files:
        raise UsageError(f"{path}: no file of format {form or 'kernel-tuner or jsonl'} in this folder")
    return files


@dataclass(frozen=True, slots=True)
class _Counted:
    """A table that holds no records: what is in it, and which command uses it where it lies."""

    path: Path
    holds: str
    used_by: str
    left_out: dict[str, int]
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path), "stored": False}

    def table(self, most: int | None) -> str:
        reasons = sorted(self.left_out.items(), key=lambda reason: -reason[1])[:most]
        lines = [f"{self.path}: {self.holds}; no records to store, `{self.used_by}` reads the file"]
        return "\n".join(
            [*lines, *(f"  left out {count}: {reason}" for reason, count in reasons), *(f"  {n}" for n in self.notes)]
        )


def _counted(path: Path) -> _Counted | _Refused:
    """A table of winners, read to its end so that what is wrong with it is said now."""
    from haotuner.records.clblast import read_winners

    try:
        winners = read_winners(path)
    except HaotunerError as error:
        return _Refused(path, error)
    holds = f"winners of {len(winners.winners)} devices of {len(winners.vendors())} vendors, without times"
    return _Counted(path, holds, f"haotuner transfer fit --winners {path}", dict(winners.left_out), winners.notes)


def _imported(files: Sequence[Path], load: Callable[[Path], Loaded], db: str) -> Iterator[Imported | _Refused]:
    """Result of each file's import. The store is opened for the first sound one: a wrong file makes no new store."""
    with contextlib.ExitStack() as stack:
        store: RecordStore | None = None
        for path in files:
            try:
                loaded = load(path)
            except HaotunerError as error:
                yield _Refused(path, error)
                continue
            store = store or stack.enter_context(_store(db, write=True))
            try:
                yield loaded.into(store)
            except RecordsUnusable as error:  # a full disk, say: no other file would fare better
                yield _Refused(path, error)
                return
            except HaotunerError as error:
                yield _Refused(path, error)


def _together(failures: Sequence[_Refused], files: int) -> HaotunerError:
    """One error of all files that did not come in; its exit code is the first one's."""
    first = failures[0].error
    if files == 1:
        return first
    lines = "\n".join(f"  {failure.error}" for failure in failures)
    return type(first)(f"{len(failures)} of {files} files were not imported, what is sound in the others was:\n{lines}")


def _device_id(store: RecordStore, requested: str) -> str:
    """The id of a device that a user names as `import` understands it; ids that only the store knows are names too."""
    if next(store.records(device_id=requested), None) is not None:
        return requested
    try:
        return _absent_too(requested).id
    except UnknownDevice as error:
        ids = ", ".join(sorted({record.device_id for record in store.records()})) or "no records"
        raise UnknownDevice(
            f"--device {requested!r}: the store has {ids}, and no profile goes by that name: {error}"
        ) from error


def _absent_too(name: str) -> Device:
    """The device of a name a file gives; nothing is measured for it."""
    return find_device(name, measure=False)


def _summary(imported: Imported, most: int | None) -> str:
    ops = imported.op.split(", ")
    named = imported.op if len(ops) <= _SHOWN else f"{', '.join(ops[:2])} and {len(ops) - 2} more ops"
    text = f"{imported.path}: {imported.rows} rows of {named} on {imported.device_id}: "
    text += f"{imported.timed} timed, {imported.failed} failed, {imported.new} new"
    reasons = sorted(imported.refused.items(), key=lambda reason: -reason[1])
    text += "".join(f"\n  left out {count}: {reason}" for reason, count in reasons[:most])
    if most is not None and len(reasons) > most:
        text += f"\n  and {len(reasons) - most} more reasons; -v shows them"
    text += "".join(
        f"\n  dropped from {count} rows: {column}, which no record can hold" for column, count in imported.dropped.items()
    )
    return text + (f"\n  cut short: {imported.torn}" if imported.torn else "")


def _groups(store: RecordStore) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str, str], dict[str, Any]] = {}
    fingerprints = {session.id: session.fingerprint for session in store.sessions()}  # a record's is of its kernels, too
    for record in store.records():
        key = (record.session, record.device_id, record.trial.op.name)
        names = dict(zip(("session", "device", "op"), key, strict=True))
        fingerprint = fingerprints.get(record.session, record.fingerprint)
        group = groups.setdefault(key, {**names, "fingerprint": fingerprint, "timed": 0, "failed": 0})
        group["timed" if isinstance(record.outcome, Timed) else "failed"] += 1
    return list(groups.values())
