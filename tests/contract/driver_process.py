"""Behaviours in processes of their own: ``python -m tests.contract.driver_process DRIVER CUBIN WRONG_CUBIN``.

The parent loads libcuda and forks before anything is initialised, so a sticky error ends with its behaviour. One JSON
line a behaviour: its name and how it failed, or an empty text.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

from tests.contract import driver_captures, driver_faults, driver_launches, driver_memory, driver_objects, driver_streams
from tests.contract.driver_case import Case
from tests.standin.apart import failure_of
from tests.standin.client import Driver

SUITES = (driver_objects, driver_memory, driver_launches, driver_streams, driver_captures, driver_faults)
BEHAVIOURS = {
    name: function
    for suite in SUITES
    for name, function in vars(suite).items()
    if callable(function) and getattr(function, "__module__", "") == suite.__name__ and not name.startswith("_")
}


def main(driver: str, cubin: str, wrong: str) -> None:
    """Run every behaviour; ``driver`` is late, early or real."""
    case = Case(driver=Driver(), kind=driver, cubin=Path(cubin).read_bytes(), wrong=Path(wrong).read_bytes())
    for name in BEHAVIOURS:
        print(json.dumps({"name": name, "failed": failure_of(functools.partial(BEHAVIOURS[name], case))}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
