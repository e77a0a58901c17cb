"""What the verbs about tables without records share: reading every table of a folder, and printing what was judged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from haotuner.cli.output import say, tell
from haotuner.errors import HaotunerError, UsageError


class Table(Protocol):
    """A file's rows, and what is wrong or odd about them."""

    @property
    def left_out(self) -> Counter[str]:
        """Reason to number of rows."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What else is odd."""
        ...


T = TypeVar("T", bound=Table)


def tables_in(
    folder: Path, is_table: Callable[[Path], bool], read: Callable[[Path], T], *, quiet: bool
) -> Iterator[tuple[Path, T]]:
    """Every usable table in a folder and those below it, by name; what is left out goes to stderr.

    Raises:
        UsageError: no folder.
    """
    if not folder.is_dir():
        raise UsageError(f"--data {folder} is no folder")
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and is_table(path)):
        try:
            table = read(path)
        except HaotunerError as error:
            if not quiet:
                tell(f"left out: {error}")
            continue
        for reason, count in () if quiet else table.left_out.most_common():
            tell(f"{path}: left out {count}: {reason}")
        for note in () if quiet else table.notes:
            tell(f"{path}: {note}")
        yield path, table


def show(document: Mapping[str, Any], section: Callable[[Mapping[str, Any]], Iterable[str]], *, json_output: bool) -> None:
    """Prints a document as JSON, or its section of Markdown."""
    say(json.dumps(document, indent=1) if json_output else "\n".join(section(document)))
