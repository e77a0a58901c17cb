"""What a run has done so far: one small file, replaced whole, that the next run goes on from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from haotuner.errors import UsageError
from haotuner.host.files import written_aside

NAME = "state.json"
BEGUN, DONE, FAILED, SKIPPED = "begun", "done", "failed", "skipped"
TRIES = 3  # a task that was broken off so often is to blame itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How one task stands; ``said`` is why it was not done, or its last words."""

    status: str
    tries: int = 1
    seconds: float = 0.0
    said: str = ""


class State:
    """The entries by task, kept in a folder. UsageError if the file there is no state."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._entries: dict[str, Entry] = {}
        if self._path.exists():
            try:
                self._entries = {key: Entry(**fields) for key, fields in json.loads(self._path.read_text()).items()}
            except (ValueError, TypeError, AttributeError) as error:
                raise UsageError(f"{self._path} is not the state of a run ({error}); name another --out") from error

    def __getitem__(self, task: str) -> Entry | None:
        return self._entries.get(task)

    def items(self) -> Iterator[tuple[str, Entry]]:
        """Every task that was begun or skipped, in order."""
        return iter(self._entries.items())

    def over(self, task: str) -> bool:
        """Whether a task will not be tried any more."""
        entry = self._entries.get(task)
        return entry is not None and (entry.status != BEGUN or entry.tries >= TRIES)

    def begin(self, task: str) -> None:
        """A task starts; if nothing else is said of it, it was broken off."""
        entry = self._entries.get(task)
        self.put(task, Entry(status=BEGUN, tries=1 if entry is None else entry.tries + 1))

    def end(self, task: str, status: str, seconds: float, text: str = "") -> None:
        """A task ended."""
        entry = self._entries.get(task)
        self.put(task, Entry(status=status, tries=entry.tries if entry else 1, seconds=round(seconds, 1), said=text))

    def put(self, task: str, entry: Entry) -> None:
        """Write an entry down at once."""
        self._entries[task] = entry
        with written_aside(self._path) as aside:
            aside.write_text(json.dumps({key: asdict(value) for key, value in self._entries.items()}, indent=1))
