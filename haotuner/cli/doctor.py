"""`haotuner doctor`: whether tuning can work here, what is missing, and how to get it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from haotuner.cli.cache_folder import cache_folder
from haotuner.cli.checkup import PEERS, PINNED, TUNING, Check, checkup, installed
from haotuner.cli.devices import columns, device_json, in_full
from haotuner.cli.output import say, tell
from haotuner.errors import EnvironmentMissing
from haotuner.hw_profiles.find import find_device
from haotuner.hw_profiles.host import Host

_MARKS = {"ok": "ok", "missing": "MISSING", "warning": "warning", "absent": "-"}


def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only what is wrong.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Print the CPU's numbers with their sources too.")
    ] = False,
) -> None:
    """Check compiler, packages, CPU and GPU, and say what is missing and how to get it.

    Ends with 0 when tuning on this host's CPU can work, with 4 when not.
    """
    host, cache_dir = Host.here(), cache_folder(os.environ)
    if not quiet:
        tell("haotuner doctor: looking at this host; the first time it measures peak and bandwidth for about 2 s")
    checks = checkup(host=host, cache_dir=cache_dir, folder=Path.cwd(), version=installed)
    missing = [check for check in checks if check.status == "missing"]
    if json_output:
        say(json.dumps(_document(checks, host, cache_dir), indent=1))
    else:
        shown = [c for c in checks if not quiet or c.status in ("missing", "warning")]
        if shown:
            say(_table(shown))
        if verbose and not any(c.name == "platform" for c in missing):
            device = find_device("cpu", measure=False, cache_dir=cache_dir, host=host)
            say(f"\n{in_full('cpu', device)}")
    if missing:
        todo = "; ".join(f"{check.name}: {check.remedy or check.found}" for check in missing)
        raise EnvironmentMissing(f"tuning on this host cannot work yet: {todo}")
    if not json_output and not quiet:
        say("\nTuning on this host's CPU can work: `haotuner tune --shapes dynamic`")


def _table(checks: list[Check]) -> str:
    rows = [("check", "", "found")]
    for check in checks:
        rows.append((check.name, _MARKS[check.status], check.found))
        if check.remedy and check.status != "ok":
            rows.append(("", "", f"-> {check.remedy}"))
    return columns(rows)


def _document(checks: list[Check], host: Host, cache_dir: Path | None) -> dict[str, Any]:
    try:
        device: dict[str, Any] | None = device_json(find_device("cpu", measure=False, cache_dir=cache_dir, host=host))
    except EnvironmentMissing:
        device = None
    return {
        "ok": all(check.status != "missing" for check in checks),
        "checks": [asdict(check) for check in checks],
        "missing": [check.name for check in checks if check.status == "missing"],
        "python": sys.version.split()[0],
        "versions": {name: installed(name) for name in ("haotuner", *PINNED, *TUNING)},
        "peers": {name: installed(name) for name in PEERS},
        "device": device,
    }
