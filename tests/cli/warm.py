"""Commands in processes forked from one that has imported what they import: most of a short command's time.

A forked process runs ``python -m haotuner`` from start to end, with the words, folder, environment and files of the command.
What a process of its own does otherwise (signals, imports, what is installed, the host's peak) is tested with one.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.run_folder import cache_folder

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.005
COLD_BYTES = 64 << 20
MODULES = ("lightgbm", "pandas", "scipy.optimize", "scipy.stats", "tvm", "haotuner.tuning.session", "haotuner.microkernels")
_running: dict[tuple[str, Path], Warm] = {}


def run_warm(
    words: Sequence[str], cwd: Path, environment: Mapping[str, str], seconds: float, tree: Path = ROOT
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``haotuner words`` of a tree; subprocess.TimeoutExpired after so many seconds.

    One warm process is kept for each tree and LD_LIBRARY_PATH, which the loader reads once.
    """
    kept_for = environment.get("LD_LIBRARY_PATH", ""), tree
    if kept_for not in _running:
        if not _running:
            atexit.register(_close_all)
        _running[kept_for] = Warm(environment, tree)
    return _running[kept_for].run(words, cwd, environment, seconds)


def _close_all() -> None:
    while _running:
        _running.popitem()[1].close()


class Warm:
    """The process that forks."""

    def __init__(self, environment: Mapping[str, str], tree: Path = ROOT) -> None:
        self._asked = 0
        where = {**environment, "PYTHONPATH": os.pathsep.join(map(str, (tree, ROOT)))}  # the tests are in ours alone
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.warm"], cwd=tree, env=where, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, words: Sequence[str], cwd: Path, environment: Mapping[str, str], seconds: float) -> tuple[int, str, str]:
        """As ``run_warm``."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._asked += 1
        with tempfile.TemporaryDirectory() as folder:
            request = {"place": self._asked, "words": list(words), "cwd": str(cwd), "environment": dict(environment),
                       "seconds": seconds, "folder": folder}  # fmt: skip
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = {}
            while answer.get("place") != self._asked:  # one that a test did not wait for
                answer = json.loads(self._process.stdout.readline())
            out, err = (Path(folder, name).read_text() for name in ("out", "err"))
        if answer["code"] is None:
            raise subprocess.TimeoutExpired(list(words), seconds, out, err)
        return int(answer["code"]), out, err

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)  # a loaded host takes its time
        self._process.stdout.close()


def _next_command() -> dict[str, Any]:
    """Fork for each request, answer how it ended; returns in the forked processes alone."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setsid()
            return request
        print(json.dumps({"place": request["place"], "code": _ended(child, request["seconds"])}), flush=True)
    sys.exit()


def _ended(child: int, seconds: float) -> int | None:
    """The exit code; None if it took longer, and it and what it started were ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_S)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _become(request: dict[str, Any]) -> None:
    """Be the process of one command."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for descriptor, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(request["folder"], name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # the old one has read ahead
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["haotuner", *request["words"]]


def spare_races() -> None:
    """What each race does anew, 6 s of a core where caches are large: the peak once a run, scattered pages never."""
    from haotuner.bench import race
    from haotuner.hw_profiles import cpu, cpu_peak

    def peak_of(*, cache_dir: Path | None, **options: Any) -> cpu_peak.CpuPeak | cpu_peak.NotMeasured:
        return cpu_peak.peak_of(cache_dir=cache_dir or cache_folder() / "haotuner", **options)

    vars(cpu)["peak_of"] = peak_of
    vars(race)["ScatteredPages"] = nullcontext


def _spare_memory() -> None:
    """Cold weights of tunings on CPUs are those of a small cache; beside one of 300 MB they took 1.4 s of a core each."""
    from haotuner.backends.fingerprint import Policy
    from haotuner.cli import call_time
    from haotuner.spec.device import Device

    vars(call_time)["CACHE_MOST_BYTES"] = COLD_BYTES
    whole = Policy.cold_bytes

    def cold_bytes(self: Policy, device: Device) -> int:
        return min(whole(self, device), COLD_BYTES)

    type.__setattr__(Policy, "cold_bytes", cold_bytes)


def _parse_once() -> None:
    """Typer imports pydantic where it first looks at a verb's words: 0.08 s of a core each."""
    from haotuner.cli.app import run

    with redirect_stdout(io.StringIO()):  # ours tells how commands ended
        run(["devices", "--help"])


def _run() -> None:
    """A process of ``python -m haotuner`` but for the end of its modules, 0.1 s of a core that nobody sees."""
    try:
        runpy.run_module("haotuner", run_name="__main__", alter_sys=True)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
        atexit._run_exitfuncs()


if __name__ == "__main__":
    from haotuner.cli.app import GROUPS, VERBS
    from haotuner.entry import LightgbmAlone, WithoutTorch
    from tests.cli.fork_children import fork_children, run_and_exit

    gc.disable()  # imports leave next to no garbage
    sys.meta_path[:0] = [WithoutTorch(), LightgbmAlone()]
    for module in (*MODULES, *(f"haotuner.cli.{verb}" for verb in (*VERBS, *GROUPS))):
        import_module(module)
    spare_races()
    _spare_memory()
    _parse_once()
    gc.freeze()
    gc.enable()
    next_command = _next_command()
    _become(next_command)
    fork_children()
    run_and_exit(_run)
