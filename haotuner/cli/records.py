"""`haotuner records`: look at a record store, bring measurements in, take them out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from haotuner.cli.devices import columns
from haotuner.device import Device
from haotuner.errors import UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.record import Timed
from haotuner.records.address import open_store
from haotuner.records.export import FORMATS, export
from haotuner.records.importing import Imported, import_kernel_tuner
from haotuner.records.jsonl import import_jsonl
from haotuner.records.store import RecordStore

records_app = typer.Typer(help="Look at a record store, bring measurements in, take them out.", no_args_is_help=True)

_Db = Annotated[str, typer.Option("--db", metavar="URL", help="The record store: sqlite:///FILE.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
_Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print as little as possible.")]
_Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print more.")]
_SHOWN = 5  # reasons of refused rows printed for people; JSON has them all


@records_app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files to read; gzipped ones too.")],
    db: _Db,
    form: Annotated[str, typer.Option("--format", help="kernel-tuner, or jsonl as written by export.")] = "kernel-tuner",
    device: Annotated[
        str | None, typer.Option(help="Device the rows were measured on, if the file names it wrongly.")
    ] = None,
    mapping: Annotated[str | None, typer.Option(help="xgemm or conv; by default what fits the file's parameters.")] = None,
    json_output: _Json = False,
    quiet: _Quiet = False,
    verbose: _Verbose = False,
) -> None:
    """Store the measurements of files; what the store already holds is not stored twice."""
    if form not in ("kernel-tuner", "jsonl"):
        raise UsageError(f"unknown format {form!r}; known: kernel-tuner, jsonl")
    if form == "jsonl" and (device or mapping):
        raise UsageError("--device and --mapping are for foreign formats; jsonl files say both")
    done = []
    with _store(db, write=True) as store:
        for path in files:
            one = (
                import_jsonl(path, store)
                if form == "jsonl"
                else import_kernel_tuner(path, store, find_device=_absent_too, device=device, mapping=mapping)
            )
            done.append(one)
            if not (quiet or json_output):
                typer.echo(_told(one, None if verbose else _SHOWN))
    if json_output:
        typer.echo(json.dumps({"files": [{**asdict(one), "path": str(one.path)} for one in done]}, indent=1))


@records_app.command("export")
def export_(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    db: _Db,
    form: Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")] = "jsonl",
    op: Annotated[str | None, typer.Option(help="Only records of this op.")] = None,
    device: Annotated[str | None, typer.Option(help="Only records of this device id.")] = None,
    session: Annotated[str | None, typer.Option(help="Only records of this session.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    json_output: _Json = False,
    quiet: _Quiet = False,
    verbose: _Verbose = False,
) -> None:
    """Write records to a file: jsonl (complete), parquet (for data frames), t4 (for other tuners' tools)."""
    with _store(db, write=False) as store:
        written = export(store.records(op=op, device_id=device, session=session), out, form, replace=force)
    if json_output:
        typer.echo(json.dumps({"path": str(out), "format": form, "records": written}))
    elif not quiet:
        typer.echo(f"{out}: {written} records" + (f", {out.stat().st_size} bytes of {form}" if verbose else ""))


@records_app.command()
def check(db: _Db, json_output: _Json = False, quiet: _Quiet = False, verbose: _Verbose = False) -> None:
    """Read the whole store: the file's structure, every row, every content hash. Exit 1 if anything is wrong."""
    with _store(db, write=False) as store:
        problems = store.check()
        sessions = store.sessions()
    if json_output:
        typer.echo(json.dumps({"ok": not problems, "problems": problems}, indent=1))
    elif not quiet or problems:
        typer.echo("\n".join(problems) or f"{db}: sound")
        if verbose:
            typer.echo(
                "\n".join(f"session {one.id}: {one.what or 'no description'}" for one in sessions) or "no tuning session"
            )
    if problems:
        raise typer.Exit(1)


@records_app.command("list")
def list_(db: _Db, json_output: _Json = False, quiet: _Quiet = False, verbose: _Verbose = False) -> None:
    """What the store holds: one line a session, device and op."""
    with _store(db, write=False) as store:
        groups = _groups(store)
    if json_output:
        typer.echo(json.dumps({"groups": groups}, indent=1))
        return
    if quiet:
        typer.echo("\n".join(dict.fromkeys(group["session"] for group in groups)))
        return
    header = ("session", "device", "op", "timed", "failed", *(("fingerprint",) if verbose else ()))
    typer.echo(columns([header, *(tuple(str(group[name]) for name in header) for group in groups)]))


@contextlib.contextmanager
def _store(db: str, *, write: bool) -> Iterator[RecordStore]:
    store = open_store(db, write=write)
    try:
        yield store
    finally:
        store.close()


def _absent_too(name: str) -> Device:
    """The device of a name a file gives; nothing is measured for it."""
    return find_device(name, measure=False)


def _told(one: Imported, most: int | None) -> str:
    text = (
        f"{one.path}: {one.rows} rows of {one.op} on {one.device_id}: {one.timed} timed, {one.failed} failed, {one.new} new"
    )
    reasons = sorted(one.refused.items(), key=lambda reason: -reason[1])
    text += "".join(f"\n  left out {count}: {reason}" for reason, count in reasons[:most])
    if most is not None and len(reasons) > most:
        text += f"\n  and {len(reasons) - most} more reasons; -v shows them"
    return text + (f"\n  cut short: {one.torn}" if one.torn else "")


def _groups(store: RecordStore) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str, str], dict[str, Any]] = {}
    for record in store.records():
        key = (record.session, record.device_id, record.trial.op)
        names = dict(zip(("session", "device", "op"), key, strict=True))
        group = groups.setdefault(key, {**names, "fingerprint": record.fingerprint, "timed": 0, "failed": 0})
        group["timed" if isinstance(record.outcome, Timed) else "failed"] += 1
    return list(groups.values())
