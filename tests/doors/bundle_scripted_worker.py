"""A bundle's worker that does as it is told: what a task's kernel is called says what happens."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from haotuner.bundle.trials import CHECK
from haotuner.isolate.answers import Job, Refusal
from haotuner.isolate.program import Program


def scripted(told: Mapping[str, Any]) -> Program:
    """Serves checks."""
    return Program(verbs={CHECK: _check})


def never(told: Mapping[str, Any]) -> Program:
    """Does not get ready."""
    sys.exit("no device")


def slow(told: Mapping[str, Any]) -> Program:
    """Does not get ready for a long time."""
    time.sleep(600)
    return scripted(told)


def _check(job: Job) -> Job:
    what = job["task"]["kernel"].partition("__")[2].rstrip("0123456789")
    if what == "crash":
        os._exit(11)
    if what == "hang":
        time.sleep(600)
    if what == "fault":
        raise Refusal("verify", "crash", "illegal address", fatal=True)
    return {"check": {"wrong": 0}}
