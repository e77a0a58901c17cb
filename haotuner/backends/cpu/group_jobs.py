"""Job of a host that times generated groups: their C, the programs that it calls, and the calls to time.

A job holds all that it needs, so that a run carries it out on this host or sends it to a node of a fleet.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.backends.cpu.compile import RUNTIME_SOURCES
from haotuner.backends.cpu.pack_source import GROUP_FLAGS
from haotuner.backends.toolchain import Toolchain
from haotuner.errors import HaotunerError
from haotuner.isolate import group as command
from haotuner.isolate.answers import TimedOut

BUILD_LIMIT_S = 120.0
NOTHING = "ht_nothing"  # a function of the library with a group's arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupJob:
    """Groups to compile and time on one thread.

    ``source``: C of their functions ``ht_group_N``. ``programs``: object code of the programs that it calls, or nothing.
    ``values``: by group and request the sizes of a call; ``tasks``: the calls (``group_timer.py``).
    ``limit_s``: of the process that times.
    """

    source: str
    programs: bytes
    values: Sequence[Sequence[Sequence[int]]]
    tasks: Sequence[Mapping[str, Any]]
    limit_s: float


def timed_here(job: GroupJob) -> list[str]:
    """Lines of a process of this host that times, each a JSON list of group, request and microseconds.

    Those that it printed before it ended early; none without a compiler: the pack's own build says what is wrong.
    """
    with tempfile.TemporaryDirectory() as scratch:
        library = Path(scratch) / "groups.so"
        try:
            _build(job, library)
            text = json.dumps({"library": str(library), "values": job.values, "tasks": job.tasks})
            times = [sys.executable, "-m", "haotuner.backends.cpu.group_timer"]
            return command.run(times, job.limit_s, stdin=text).out.splitlines()
        except TimedOut as error:
            return error.out.splitlines()
        except (OSError, RuntimeError, HaotunerError):
            return []


def _build(job: GroupJob, library: Path) -> None:
    """A library of a job's groups for this host's CPU; RuntimeError where it cannot be built."""
    source, toolchain, link_arguments = library.with_suffix(".c"), Toolchain.find(), list[str]()
    if job.programs:
        compiled = library.with_suffix(".o")
        compiled.write_bytes(job.programs)
        link_arguments = [str(RUNTIME_SOURCES / name) for name in ("programs.c", "tvm_ffi_stubs.c")]
        link_arguments += [str(compiled), "-I", str(toolchain.include)]
    source.write_text(job.source, encoding="utf-8")
    words = [*toolchain.command, "-std=c11", "-O3", "-march=native", *GROUP_FLAGS, "-fPIC", "-shared",
             "-I", str(RUNTIME_SOURCES), str(source), *link_arguments, "-o", str(library), "-lm"]  # fmt: skip
    if command.run(words, BUILD_LIMIT_S).code != 0:
        raise RuntimeError("the C compiler refused the groups")
