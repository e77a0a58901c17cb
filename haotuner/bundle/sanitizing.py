"""compute-sanitizer over one kernel of each family and load path: memory, races, uninitialised reads, barriers."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from haotuner.bundle.inventory import tool_path
from haotuner.bundle.manifest import Entry
from haotuner.bundle.trials import CHECK, Task
from haotuner.bundle.worker import request_of
from haotuner.isolate import command
from haotuner.isolate.answers import TimedOut

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TOOL = "compute-sanitizer"
ONE_SECONDS = 150.0  # a check of a small kernel takes 5 to 20 s under the slowest tool
FOUND = 9  # exit code of the tool when it reports errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One tool over one kernel; ``errors`` is None where the tool did not come to an end."""

    kernel: str
    tool: str
    errors: int | None
    detail: str

    def fields(self) -> dict[str, Any]:
        """The journal's form."""
        return asdict(self)


def available() -> bool:
    """True if the tool is on this machine."""
    return tool_path(TOOL) is not None


def sample(entries: Sequence[Entry]) -> list[Entry]:
    """The smallest tile of each family, load width and weight layout."""
    found: dict[tuple[str, int, bool], Entry] = {}
    for entry in sorted(entries, key=lambda e: (e.tile[0] * e.tile[1], e.kernel)):
        found.setdefault((entry.family, entry.vector, entry.kn), entry)
    return list(found.values())


def sanitize(
    entries: Sequence[Entry], told: Mapping[str, str], python_path: str, *, done: set[tuple[str, str]], deadline: float
) -> Iterator[Finding]:
    """Findings of every tool on every sampled kernel that is not done yet, until the deadline."""
    if not available():
        return
    for entry in sample(entries):
        for tool in TOOLS:
            if (entry.kernel, tool) not in done:
                if time.monotonic() + ONE_SECONDS > deadline:
                    return
                yield _one(entry, tool, told, python_path)


def _one(entry: Entry, tool: str, told: Mapping[str, str], python_path: str) -> Finding:
    rows, columns = entry.tile
    columns = columns // entry.vector * entry.vector
    task = Task(
        stage=CHECK, kernel=entry.kernel, dtype=entry.dtype, kn=entry.kn, extents=(rows + 1, columns + entry.vector, 136)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "setup.json")
        path.write_text(json.dumps({**told, "request": request_of(task)}))
        asked = [
            tool_path(TOOL) or TOOL, f"--tool={tool}", f"--error-exitcode={FOUND}", "--print-limit=3",
            sys.executable, "-P", "-m", "haotuner.bundle.worker", str(path),
        ]  # fmt: skip
        try:
            done = command.run(asked, ONE_SECONDS, {**os.environ, "PYTHONPATH": python_path})
        except TimedOut as error:
            return Finding(kernel=entry.kernel, tool=tool, errors=None, detail=str(error))
    text = done.out + done.errors
    summary = re.search(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", text)
    if summary is None:
        return Finding(kernel=entry.kernel, tool=tool, errors=None, detail=f"exit {done.code}: {text.strip()[-300:]}")
    lines = [line for line in text.splitlines() if line.startswith("=========")][1:4]
    errors = int(summary[1] or summary[2])
    return Finding(kernel=entry.kernel, tool=tool, errors=errors, detail=" | ".join(lines) if errors else "")
