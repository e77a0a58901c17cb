"""Child processes of a forked command, forked from it: they find imported what they import, a second of a core each.

Only what builds, times on a CPU, or verifies a new pack of one: CUDA cannot be used after a fork of who began to use it.
What such a process is when it starts afresh is tested where there is no forked command: tests/partition,
tests/isolate/test_isolate.py, tests/runtime/test_pack_files.py, tests/cli/test_kill.py, the GPU bundle.
"""

from __future__ import annotations

import gc
import os
import runpy
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from haotuner.backends.cpu import processes as cpu
from haotuner.backends.cuda import processes as cuda
from haotuner.isolate.child import BOOT

FORKED = (cpu.BUILDING, cpu.TIMING, cuda.BUILDING)
VERIFYING = "haotuner.pack"

# Of Popen._execute_child's arguments: words, descriptors to pass, environment, ends of pipes, whether to begin a session.
WORDS, PASSED, ENVIRONMENT, STDIN, STDOUT, STDERR, SESSION = 0, 4, 6, 10, 13, 15, 21


class Forking(subprocess.Popen[bytes]):
    """As Popen; forks where the command would boot a program of ours."""

    def _execute_child(self, *arguments: Any) -> None:
        words = list(arguments[WORDS])
        boots = words[:4] == [sys.executable, "-P", "-c", BOOT] and words[5] in FORKED
        verifies = words[:3] == [sys.executable, "-m", VERIFYING] and not _has_begun_cuda()
        if not boots and not verifies:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: other threads are lost, as they should be
            self.pid = os.fork()
        if self.pid == 0:
            _be(
                words[2:],
                [arguments[end] for end in (STDIN, STDOUT, STDERR)],
                arguments[PASSED],
                arguments[ENVIRONMENT],
                arguments[SESSION],
            )
        self._child_created = True
        self._close_pipe_fds(*arguments[10:16])  # type: ignore[attr-defined]


def _has_begun_cuda() -> bool:
    """Whether this process has loaded CUDA's driver."""
    return b"libcuda.so" in Path("/proc/self/maps").read_bytes()  # names of files may be any bytes


def _be(
    words: Sequence[str], ends: Sequence[int], passed: Sequence[int], environment: Mapping[str, str] | None, session: bool
) -> NoReturn:
    """The process that BOOT or a module would be, from start to end; ``words``: what the interpreter is told."""

    def run() -> None:
        gc.freeze()  # what is the parent's is not ended here
        if session:
            os.setsid()
        for target, end in enumerate(ends):
            os.dup2(end, target)
        first = 3
        for descriptor in sorted({end for end in passed if end > 2}):
            os.closerange(first, descriptor)
            first = descriptor + 1
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))
        for descriptor in passed:
            os.set_inheritable(descriptor, True)
        sys.stdin, sys.stdout, sys.stderr = (open(descriptor, mode, closefd=False) for descriptor, mode in enumerate("rww"))  # noqa: SIM115
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(words[1], {"__name__": "__main__"})
        else:
            sys.argv = list(words)
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)

    run_and_exit(run)


def run_and_exit(run: Callable[[], None]) -> NoReturn:
    """Be a process that does so, and says as the interpreter does how it ended."""
    code = 1
    try:
        run()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def fork_children() -> None:
    """From now on, in this process."""
    from haotuner.isolate import group
    from haotuner.tuning import publisher

    class Subprocess:
        """What `group` and `publishing` use of subprocess."""

        Popen = Forking

        def run(
            self, words: Sequence[str], *, timeout: float, check: bool, capture_output: bool, **how: Any
        ) -> subprocess.CompletedProcess[Any]:
            """As subprocess.run of a process that is told nothing."""
            assert capture_output and not check
            ends: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            with Forking(words, **ends, **how) as process:
                try:
                    outputs: Any = process.communicate(timeout=timeout)  # texts or bytes, as it was asked
                except BaseException:
                    process.kill()
                    raise
            return subprocess.CompletedProcess(words, process.returncode, *outputs)

        def __getattr__(self, name: str) -> Any:
            return getattr(subprocess, name)

    for module in (group, publisher):
        vars(module)["subprocess"] = Subprocess()
