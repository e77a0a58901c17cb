"""A child process read line by line with a time limit, in a process group that ends with it."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, TextIO

from haotuner.errors import WorkerLost

OVER: Final = "over"  # no line of JSON: the child closed its output
REAP_SECONDS = 20.0  # the driver tears a context down before a killed process is gone


class Child:
    """``python -m MODULE ARGUMENTS`` with its output on a pipe and its errors in a file."""

    def __init__(self, module: str, *arguments: str, python_path: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="haotuner-gpu-")
        self._errors = Path(self._folder.name, "errors")
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],  # -P: not from the folder that the run was started in
                stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
                env={**os.environ, "PYTHONPATH": python_path, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        assert self._process.stdout is not None
        self._output = self._process.stdout
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        self.words = ""  # the end of its errors, once it has ended

    def line(self, until: float) -> str | None:
        """The next line; None when there is none by then (``time.monotonic``), OVER at the end of the output."""
        while b"\n" not in self._buffer:
            wait = until - time.monotonic()
            if wait <= 0 or not self._selector.select(wait):
                return None
            chunk = os.read(self._output.fileno(), 65536)
            if not chunk:
                return OVER
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

    def end(self) -> int:
        """Kill what is left of the group; the exit code, negative for a signal. WorkerLost if it cannot be killed."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it may end between the two calls
                os.killpg(self._process.pid, signal.SIGKILL)
        try:
            code = self._process.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise WorkerLost(
                f"a killed worker is still there after {REAP_SECONDS:.0f} s: the driver waits for its kernel. "
                "Nothing more can be measured on this GPU until the machine is started again"
            ) from error
        self._selector.close()
        self._output.close()
        self.words = self._errors.read_text(errors="replace").strip()[-400:]
        self._folder.cleanup()
        return code

    def exit_code(self) -> int:
        """Wait for a child that has closed its output."""
        try:
            return self._process.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:
            return self.end()


def answer_stream() -> TextIO:
    """In a child: its output for answers alone; whatever libraries print goes to the errors from here on."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    return answers


def died(code: int, words: str) -> str:
    """How a process ended, in words."""
    return f"died by {signal.Signals(-code).name}" if code < 0 else f"exited {code}" + (f": {words}" if words else "")
