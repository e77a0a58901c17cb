"""Output of the command line: results on stdout, status on stderr, places to write to, nothing that steers a terminal."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from haotuner.errors import HaotunerError, UsageError

# C0 and C1 but for tab and end of line, what turns the direction of writing, and halves of surrogate pairs.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class OutputLost(HaotunerError):
    """A result could not be written to standard output: it is closed, or its disk is full."""


class ReaderLeft(Exception):  # noqa: N818  # no error: `haotuner inspect pack | head` is right use
    """Whoever read standard output has gone."""


def safe(text: str) -> str:
    """The text with control characters written out: packs, traces and records come from others."""
    return _STEERING.sub(lambda result: ascii(result[0])[1:-1], text)


def counted(count: int, noun: str) -> str:
    """A number with its noun, in the plural where there is not one of them."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def say(text: str) -> None:
    """Print a result on stdout.

    Raises:
        OutputLost: it cannot be written.
        ReaderLeft: the reader of a pipe has gone.
    """
    with writing():
        print(safe(text), flush=True)


def tell(text: str) -> None:
    """Print a message on stderr; where nobody can read it, it is lost, and the work goes on."""
    with contextlib.suppress(OSError, ValueError):
        print(safe(text), file=sys.stderr, flush=True)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Block in which errors of standard output become ``OutputLost`` or ``ReaderLeft``."""
    try:
        yield
    except BrokenPipeError:
        raise ReaderLeft from None
    except OSError as error:
        why = "it is closed" if error.errno == errno.EBADF else error.strerror
        raise OutputLost(f"cannot write to standard output: {why}; what was to be printed is lost") from None


def open_streams() -> None:
    """Put something where standard streams were closed, so that no file gets their numbers and is written into.

    Reads find the end; writes to stdout fail, which ``say`` tells; what is written to stderr is lost.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the smallest free number, which is this one
    streams: Any = sys
    streams.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    streams.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (streams.stdout, streams.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal of another alphabet costs letters, not the command


def give_up_stdout() -> None:
    """Let what is still buffered go nowhere: the interpreter flushes once more at its end, and would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def check_output_path(path: Path, option: str = "--out") -> None:
    """UsageError unless a file can be written at ``path``; nothing is left there, and what is there stays as it is."""
    if not path.name:
        raise UsageError(f"{option} {str(path)!r} names no file; name the file to write")
    try:
        if not path.parent.is_dir():
            raise UsageError(f"{option} {path}: there is no folder {path.parent}; make it first")
        if path.exists() and not path.is_file():
            what = "a folder" if path.is_dir() else "a device or a pipe"
            raise UsageError(f"{option} {path} is {what}; name a new file, or one to replace")
        if path.exists() and not os.access(path, os.W_OK):
            raise UsageError(f"{option} {path} may not be written; name another file, or allow it with chmod")
        beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # as long a name as any that will be needed
        beside.touch()
        beside.unlink()
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}; name another place") from error


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
