"""Output of the command line: results on stdout, all else on stderr, and nothing that could steer a terminal."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from haotuner.errors import HaotunerError

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
