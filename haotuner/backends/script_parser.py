"""TVM's script parser called on a stack of its own, and without parsing one text twice.

For each program and macro it asks ``inspect`` for every Python frame above it. ``inspect`` looks through all loaded modules
for each frame without a file (``-m``, ``-c``, and every expression that the parser evaluates). So a program takes the
longer, the deeper its caller: in a test twice as long as on a thread.

It also makes its tree of a program and of each macro anew for every kernel, a fifth of what a kernel of CUDA takes.
A macro asks where each frame above it is written though it wants the frames' globals alone: a seventh.
"""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")
TEXTS = 256  # that are kept; our families have some hundred programs and macros in all, a tree takes 50 kB
EVALUATED = "<ast>"  # the file of the parser's expressions, as compile() was told


def shallow(function: Callable[[], Result]) -> Result:
    """Result of the function, or its error, on a thread that does nothing else."""
    parse_once()
    find_soon()
    inspect.modulesbyfile.setdefault(EVALUATED, "")  # what looking would find: no module is read from there
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(function).result()


def find_soon() -> None:
    """Patch of TVM: a macro finds its parser in the frames above it without asking where each of them is written."""
    from tvm.script.parser.core.parser import ScriptMacro

    def above(self: ScriptMacro) -> Any:
        frame = inspect.currentframe()
        while frame is not None:
            parser = frame.f_globals.get(self.parser_object_name)
            if parser is not None:
                return parser
            frame = frame.f_back
        raise RuntimeError(f"{self.parser_object_name} not available")

    ScriptMacro._find_parser_def = above


def parse_once() -> None:
    """Patch of TVM's script parser: it makes its tree of a text once, and copies it for those who ask again."""
    from tvm.script.parser.core import doc

    if not isinstance(doc.parse, _Parsed):
        doc.parse = _Parsed(doc.parse)


class _Parsed:
    """As ``tvm.script.parser.core.doc.parse``; each caller has a tree of its own, for the parser changes it."""

    def __init__(self, parse: Callable[..., Any]) -> None:
        self._cached_parse = functools.lru_cache(maxsize=TEXTS)(lambda *config: pickle.dumps(parse(*config)))

    def __call__(self, source: str, filename: str = "<unknown>", mode: str = "exec") -> Any:
        return pickle.loads(self._cached_parse(source, filename, mode))
