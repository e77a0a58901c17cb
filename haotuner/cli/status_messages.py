"""Long work on a terminal or in a log: what goes on, and what is kept for when it is interrupted."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from haotuner.cli.output import tell
from haotuner.cli.output_path import check_output_path
from haotuner.errors import UsageError
from haotuner.host.files import read_regular

MOST_FIGURES = 64 << 20  # bytes of a file of figures of a report
_LINE_EVERY_S = 10.0  # without a terminal: often enough to see life, seldom enough for a log


@contextlib.contextmanager
def status_messages(*, quiet: bool, verbose: bool) -> Iterator[Any]:
    """A function that is told what goes on: a bar on a terminal, a line now and then elsewhere.

    All of it a line each with --verbose, nothing with --quiet.
    """
    if quiet:
        yield lambda _: None
    elif verbose:
        yield lambda text: tell(text)
    elif sys.stderr.isatty():
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        ) as bar:
            task = bar.add_task("starting", total=None)
            yield lambda text: bar.update(task, description=text, advance=1)
    else:
        last = [0.0]

        def say(text: str) -> None:
            if time.monotonic() - last[0] >= _LINE_EVERY_S:
                last[0] = time.monotonic()
                tell(text)

        yield say


@contextlib.contextmanager
def keep_partial_results(path: Path | None) -> Iterator[tuple[dict[str, Any], Callable[[str, Any], None]]]:
    """What an earlier run left in a file of JSON Lines, and a function that adds to it; without a file nothing is kept."""
    if path is None:
        yield {}, lambda _key, _answer: None
        return
    check_output_path(path, "--numbers")
    selected = {}
    try:
        for line in read_regular(path, MOST_FIGURES).decode().splitlines() if path.exists() else ():
            entry = json.loads(line)
            selected[entry["key"]] = {"found": entry["found"], "seconds": float(entry["seconds"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"--numbers {path} does not hold figures of a report ({error}); remove it or name another"
        ) from error
    with path.open("a", encoding="utf-8") as lines:

        def keep(key: str, answer: Any) -> None:
            lines.write(json.dumps({"key": key, **answer}) + "\n")
            lines.flush()

        yield selected, keep
