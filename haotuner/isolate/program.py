"""Request loop of a child process: a program says which verbs it serves; the loop, refusals and log are the same for all.

A program is a function, named ``module:function`` by its parent. It is called once, with what the parent told it, and
returns a `Program`. Until standard input closes, each of its lines is a request, ``{"do": verb, ...}``, and each answer is
one line.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from haotuner.isolate.answers import Job, Refusal
from haotuner.isolate.group import Limits

DETAIL_KEPT = 2000  # characters of an error that travel

Verb = Callable[[Job], Job]  # takes the request without its "do"; says no with a Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Verbs that a process serves, and its greeting when it is ready."""

    verbs: Mapping[str, Verb]
    greeting: Mapping[str, Any] = field(default_factory=dict)


def main() -> None:
    """Run the program that the arguments name: ``module:function``, what it is told, its limits or null (both JSON)."""
    name, config, limits = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent's to handle, whoever else was told; it kills us
        signal.signal(number, signal.SIG_IGN)
    if limits is not None:
        Limits(**limits).apply()
    requests, answers = _channel()
    module, _, function = name.partition(":")
    try:
        program: Program = getattr(importlib.import_module(module), function)(config)
    except Refusal as refusal:
        _say(answers, _refused(refusal, fatal=True))
        return
    _say(answers, dict(program.greeting))
    for line in requests:
        answer, fatal = attempt(program.verbs, json.loads(line))
        _say(answers, answer)
        if fatal:
            return


def attempt(verbs: Mapping[str, Verb], request: Job) -> tuple[Job, bool]:
    """The answer to a request, and whether the process is of no more use."""
    verb = request.pop("do", None)
    try:
        if verb not in verbs:
            raise Refusal("run", "error", f"asked to do {verb!r}; this program serves {', '.join(sorted(verbs))}")
        return verbs[verb](request), False
    except Refusal as refusal:
        return _refused(refusal, fatal=refusal.fatal), refusal.fatal
    except MemoryError as error:
        return _refused(Refusal("run", "memory", str(error)), fatal=False), False
    except Exception as error:  # the border of a process: whatever went wrong becomes an answer
        traceback.print_exc()  # where, for the log
        return _refused(Refusal("run", "error", described(error)), fatal=False), False


def described(error: BaseException) -> str:
    """An error as text: its class and what it says."""
    return f"{type(error).__name__}: {error}"


def _channel() -> tuple[TextIO, TextIO]:
    """Requests and answers on descriptors of their own.

    What libraries print goes to the log, not among the answers; what reads standard input finds its end.
    """
    requests, answers = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def _refused(refusal: Refusal, *, fatal: bool) -> Job:
    return {"refused": [refusal.stage, refusal.reason, refusal.detail[-DETAIL_KEPT:], fatal]}


def _say(answers: TextIO, answer: Job) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
