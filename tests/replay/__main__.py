"""Compare what the library chooses today with the goldens of a replay.

    python -m tests.replay [GROUP ...] [--quick]        a line a group; 1 if any differs
    python -m tests.replay [GROUP ...] --full FOLDER    also every text and number in full, to compare two trees with diff
    python -m tests.replay [GROUP ...] --write          rewrite the goldens; the commit says why they changed

Nothing is timed. All of it takes about four minutes of one core, and bits of calls five more for three instruction sets.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.replay import golden
from tests.replay.groups import Make, groups

SHOWN = 8  # differences told of a group


def main() -> int:
    """Compare or write; 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    parser.add_argument("--quick", action="store_true", help="only the cases of every test run")
    parser.add_argument("--write", action="store_true", help="rewrite the goldens")
    parser.add_argument("--full", type=Path, metavar="FOLDER", help="write all that was found in full")
    arguments = parser.parse_args()
    if arguments.write and arguments.quick:
        parser.error("--write needs every case; leave out --quick")
    known = groups(quick=arguments.quick, new=arguments.write)
    if unknown := sorted(set(arguments.groups) - set(known)):
        parser.error(f"no group {', '.join(unknown)}; there are {', '.join(known)}")
    differs = False
    for group in arguments.groups or known:
        begin = time.monotonic()
        cases = made(known[group])
        seconds = time.monotonic() - begin
        if arguments.full:
            in_full(arguments.full / group, cases)
        if arguments.write:
            golden.write(group, cases)
            size = golden.path_of(group).stat().st_size // 1000
            print(f"{group}: written, {len(cases)} cases, {size} kB, {seconds:.0f} s", flush=True)
            continue
        lines, summary = compared(group, cases, whole=not arguments.quick)
        differs |= bool(lines)
        print(f"{group}: {summary}, {seconds:.0f} s", *lines[:SHOWN], sep="\n  ", flush=True)
        if len(lines) > SHOWN:
            print(f"  ... and {len(lines) - SHOWN} more")
    return int(differs)


def compared(group: str, cases: Mapping[str, Mapping[str, Any]], *, whole: bool) -> tuple[list[str], str]:
    """Differences of a group, a line each, and what to say of it in one line."""
    was = golden.read(group)
    lines, close, differing = [], 0, 0
    for case, fields in cases.items():
        if case not in was:
            lines.append(f"{case}: has no golden")
            differing += 1
            continue
        differences, near = golden.differences(was[case], fields)
        close += near
        differing += bool(differences)
        lines += [f"{case}: {difference}" for difference in differences]
    gone = sorted(was.keys() - cases.keys()) if whole else []
    lines += [f"{case}: is no longer replayed" for case in gone]
    summary = f"differs in {differing + len(gone)} of {len(cases)} cases" if lines else f"same ({len(cases)} cases)"
    near_only = f"; {close} lists of numbers agree to {golden.COARSE} digits, not to {golden.FINE}" if close else ""
    return lines, summary + near_only


def in_full(folder: Path, cases: Mapping[str, Mapping[str, Any]]) -> None:
    """A file a case, a line an item."""
    folder.mkdir(parents=True, exist_ok=True)
    for case, fields in cases.items():
        text = "".join(f"{name}: {json.dumps(value, indent=0, ensure_ascii=False)}\n" for name, value in fields.items())
        (folder / f"{case.replace('/', '_')}.txt").write_text(text, encoding="utf-8")


def made(group: Mapping[str, Make]) -> dict[str, dict[str, Any]]:
    """Every case of a group."""
    return {case: dict(make()) for case, make in group.items()}


if __name__ == "__main__":
    sys.exit(main())
