"""`haotuner verify`: files, host and numbers of a pack."""

from __future__ import annotations

import json

import typer

from haotuner.cli.options import Json, PackFolder, Quiet
from haotuner.cli.output import counted, say, tell
from haotuner.verify.pack_check import not_verified
from haotuner.verify.pack_check import verify as problems_of
from haotuner.verify.pack_groups import learn_from


def verify(pack: PackFolder, json_output: Json = False, quiet: Quiet = False) -> None:
    """Check every file's hash, the host, and the results of every op against float64; exit 5 when something is wrong."""
    learn_from(pack)
    problems = problems_of(pack)
    left = [] if problems else not_verified(pack)
    if json_output:
        say(json.dumps({"ok": not problems, "problems": problems, **({"not_checked": left} if left else {})}, indent=1))
    else:
        for problem in problems:
            tell(problem)
        for why in left:
            tell(f"{pack}: {why}")
        if not quiet:
            passed = "verified, but for results" if left else "verified"
            say(f"{pack}: {counted(len(problems), 'problem') if problems else passed}")
    if problems:
        raise typer.Exit(5)
