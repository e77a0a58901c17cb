"""TVM's script parser called on a stack of its own.

For each program and macro it asks ``inspect`` for every Python frame above it, and ``inspect`` looks through all loaded
modules for each frame without a file (``-m``, ``-c``, and every expression that the parser evaluates). So a program takes
the longer, the deeper its caller: in a test twice as long as on a thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
EVALUATED = "<ast>"  # the file of the parser's expressions, as compile() was told


def shallow(function: Callable[[], Result]) -> Result:
    """What the function returns, or raises, on a thread that does nothing else."""
    inspect.modulesbyfile.setdefault(EVALUATED, "")  # what looking would find: no module is read from there
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(function).result()
