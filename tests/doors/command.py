"""Runs the command line as a user does, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--op", "dense:n=48,k=32", "--shapes", "m=1..24", "--against", "none", "--threads", "1")


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


def haotuner(*words: str, cache: Path, cwd: Path, timeout_s: float = 100) -> Answer:
    done = subprocess.run(
        command(*words), cwd=cwd, env=environment(cache), capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return Answer(done.returncode, done.stdout, done.stderr)
