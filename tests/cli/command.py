"""Runs the command line as a user does, each command in a process; see warm.py for where that comes from."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.warm import run_warm
from tests.standin.patience import WALL_S

ROOT = Path(__file__).resolve().parents[2]
LONGEST_BUDGET_S = 256
TINY = ("--op", "dense:n=48,k=32", "--shapes", "m=1..24", "--peers", "none", "--threads", "1")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Stdout as one JSON document; fails if anything else was printed there."""
        return json.loads(self.out)


def environment(cache: Path) -> dict[str, str]:
    """The caller's, with the cache folder of a session of tests, so that peaks are measured once."""
    return {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "haotuner", *words]


def race(*words: str) -> list[str]:
    """``haotuner words`` of a race that is sent signals."""
    return [sys.executable, "-m", "tests.cli.alone", *words]


def haotuner(*words: str, cache: Path, cwd: Path, timeout_s: float = WALL_S) -> Answer:
    return run_command(words, cwd, environment(cache), timeout_s)


def run_command(words: Sequence[str], cwd: Path, environment: Mapping[str, str], timeout_s: float = WALL_S) -> Answer:
    """What ``haotuner words`` says in an environment."""
    return Answer(*run_warm(words, cwd, environment, timeout_s))


def tuned(run: Callable[..., Answer], *words: str, budget_s: int) -> Answer:
    """Answer of ``tune`` where every op has times; where a budget was too short, twice as much goes on from its records.

    ``run``: runs words of the command line. A busy machine compiles and times several times as slowly as an idle one.
    """
    answer = run("tune", *words, "--budget", f"{budget_s}s")
    while answer.code == 3 and budget_s < LONGEST_BUDGET_S:
        budget_s *= 2
        answer = run("tune", *words, "--budget", f"{budget_s}s", "--resume")
    return answer
