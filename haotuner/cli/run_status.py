"""Status of a run of `haotuner tune`, in a small file beside its pack: `haotuner watch` reads it while the run goes on."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from haotuner.host.files import read_regular, written_aside
from haotuner.pack.facts import NUMBER, check_facts
from haotuner.records.sqlite import Owner

WRITTEN_EVERY_S = 1.0  # a write takes 0.1 ms beside measurements, and nobody looks more often
MOST_BYTES = 1 << 20
_FORM = {"owner": str, "db": str, "stage": str, "seen": str, "budget_s": NUMBER, "left_s": NUMBER, "began": NUMBER,
         "written": NUMBER, "measures": bool}  # fmt: skip


def status_file(pack: Path) -> Path:
    """The file of a pack's run."""
    return pack.with_name(f"{pack.name}.run.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """State of a run. Times are seconds since the epoch."""

    owner: str  # ``Owner`` of the process
    db: str
    stage: str  # op and phase, in words
    seen: str  # trials and failures, in words
    budget_s: float
    left_s: float  # of the budget when this was written
    began: float
    written: float
    measures: bool  # whether the budget runs down now

    @property
    def alive(self) -> bool:
        """False where the process is known to be gone."""
        try:
            return Owner.parse(self.owner).lives()
        except ValueError:
            return False

    def left(self, now: float) -> float:
        """Seconds of the budget that are left."""
        return max(0.0, self.left_s - (now - self.written if self.measures else 0.0))


class StatusWriter:
    """Writes the status of this process, at most every ``WRITTEN_EVERY_S``; what cannot be written costs no run."""

    def __init__(self, path: Path, db: str) -> None:
        self._path, self._db, self._owner, self._began = path, db, str(Owner.mine()), time.time()
        self._written = -WRITTEN_EVERY_S

    def write(self, *, stage: str, seen: str, budget_s: float, left_s: float, measures: bool) -> None:
        """Write what a run is at."""
        if time.monotonic() - self._written < WRITTEN_EVERY_S:
            return
        self._written = time.monotonic()
        status = RunStatus(owner=self._owner, db=self._db, stage=stage, seen=seen, budget_s=budget_s, left_s=left_s,
                           began=self._began, written=time.time(), measures=measures)  # fmt: skip
        with contextlib.suppress(OSError), written_aside(self._path) as aside:
            aside.write_text(json.dumps(asdict(status)), encoding="utf-8")

    def close(self) -> None:
        """Remove the file: the run has ended."""
        if self._written > 0:
            with contextlib.suppress(OSError):
                self._path.unlink()


def read_status(path: Path) -> RunStatus | None:
    """The status in a file; None where there is none, or something else."""
    try:
        document: Any = json.loads(read_regular(path, MOST_BYTES, follow=False))
        check_facts(document, _FORM, "status")
        return RunStatus(**document)
    except (OSError, TypeError, ValueError, RecursionError):
        return None
