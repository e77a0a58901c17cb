"""Status messages of long work, on a terminal or in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from haotuner.cli.output import tell

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
