"""Outcomes of a request to a child process: an answer, a refusal, a time-out, or a death."""

from __future__ import annotations

from typing import Any

from haotuner.spec.record import Failed

Job = dict[str, Any]  # a request or an answer: what JSON can say
MISSING = "missing"  # a refusal's reason: the library that the program needs is not installed


class Refusal(Exception):
    """Raised by a program: the request failed at a known stage for a known reason (words of record.Failed).

    ``fatal`` says that the process is of no more use. It ends once it has said so.
    """

    def __init__(self, stage: str, reason: str, detail: str, *, fatal: bool = False) -> None:
        super().__init__(detail)
        self.stage, self.reason, self.detail, self.fatal = stage, reason, detail, fatal


class ChildNotResponding(Exception):
    """No answer came; the message says why. ``alive`` says whether the same process can be asked again."""

    reason = "error"
    alive = False

    def failed(self, stage: str) -> Failed:
        """The failure for a record; ``stage`` is where it happened, unless the program named another."""
        return Failed(stage=stage, reason=self.reason, detail=str(self))


class Refused(ChildNotResponding):
    """The program raised a Refusal."""

    def __init__(self, stage: str, reason: str, detail: str, *, fatal: bool = False) -> None:
        super().__init__(detail)
        self.stage, self.reason, self.detail = stage, reason, detail
        self.alive = not fatal

    def failed(self, stage: str) -> Failed:
        """The failure as the program named it."""
        return Failed(stage=self.stage, reason=self.reason, detail=self.detail)


class TimedOut(ChildNotResponding):
    """The limit passed; the process and all that it started were killed. ``out``: what a command had written until then."""

    reason = "timeout"

    def __init__(self, detail: str, out: str = "") -> None:
        super().__init__(detail)
        self.out = out


class Crashed(ChildNotResponding):
    """The process died; the message names the signal or the exit status and ends with its last words."""

    reason = "crash"
