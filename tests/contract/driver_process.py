"""Behaviours in processes of their own: ``python -m tests.contract.driver_process DRIVER CUBIN WRONG_CUBIN``.

The parent loads libcuda and forks before anything is initialised, so a sticky error ends with its behaviour. One JSON
line a behaviour: its name and how it failed, or an empty text.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path

from tests.contract import driver_captures, driver_faults, driver_launches, driver_memory, driver_objects, driver_streams
from tests.contract.driver_case import Case
from tests.standin.client import Driver

SECONDS = 60  # of one behaviour; each takes milliseconds
SUITES = (driver_objects, driver_memory, driver_launches, driver_streams, driver_captures, driver_faults)
BEHAVIOURS = {
    name: function
    for suite in SUITES
    for name, function in vars(suite).items()
    if callable(function) and getattr(function, "__module__", "") == suite.__name__ and not name.startswith("_")
}


def _outcome(name: str, case: Case) -> str:
    answer, question = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answer)
        signal.alarm(SECONDS)
        said = ""
        try:
            BEHAVIOURS[name](case)
        except BaseException:  # a forked child must not run on
            said = traceback.format_exc()
        os.write(question, said.encode()[:60000])
        os._exit(0)
    os.close(question)
    with os.fdopen(answer, "rb") as stream:
        said = stream.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said or (f"ended with status {status}" if status else "")


def main(driver: str, cubin: str, wrong: str) -> None:
    """Run every behaviour; ``driver`` is late, early or real."""
    case = Case(driver=Driver(), kind=driver, cubin=Path(cubin).read_bytes(), wrong=Path(wrong).read_bytes())
    for name in BEHAVIOURS:
        print(json.dumps({"name": name, "failed": _outcome(name, case)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
