"""The measuring process: whatever a job does, the parent gets an answer and the next job runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from haotuner.backends.cpu.processes import TIMING, process
from haotuner.errors import WorkerLost
from haotuner.isolate.answers import Crashed, Refused, TimedOut
from haotuner.isolate.child import Child
from tests.backends.native_jobs import ENVIRONMENT, job, job_library, mutant_library
from tests.standin.patience import WALL_S

LIMIT_S = float(WALL_S)  # these jobs answer in milliseconds, the machine may be busy


@pytest.fixture(scope="module")
def worker() -> Iterator[Child]:
    child = process(TIMING, ENVIRONMENT)
    yield child
    child.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mutant_library(tmp_path_factory.mktemp("sound"))


FAULTS = {
    "segfault": ("*(volatile int*)8 = 1;", Crashed, "SIGSEGV"),
    "real-time signal": ("signal(40, SIG_DFL); raise(40);", Crashed, "signal 40"),
    "exit 0": ("_exit(0);", Crashed, "exited with status 0"),
    "exit 3 with a word": ('fputs("last word", stderr); fflush(stderr); _exit(3);', Crashed, "status 3: last word"),
    "hang that ignores signals": ("signal(SIGTERM, SIG_IGN); for (volatile int i = 0;;) i++;", TimedOut, "no answer"),
    "garbage in the protocol": (
        'for (int fd = 3; fd < 64; ++fd) if (write(fd, "\\xff{garbage\\n", 10) < 0) continue;', Crashed, "unreadable"),
    "an answer that is no object": (
        'for (int fd = 3; fd < 64; ++fd) if (write(fd, "5\\n", 2) < 0) continue;', Crashed, "unreadable"),
    "a flood on stderr, then death": (
        "for (int i = 0; i < 100000; ++i) fprintf(stderr, \"line %d of a long complaint\\n\", i); abort();",
        Crashed, "line 99999 of a long complaint"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_an_answer_and_the_next_job_runs(fault: str, worker: Child, sound: Path, tmp_path: Path) -> None:
    body, kind, words = FAULTS[fault]
    library = job_library(tmp_path, body)
    with pytest.raises(kind) as error:
        worker.ask(job(library), 1.0 if kind is TimedOut else LIMIT_S)
    assert words in str(error.value) and len(str(error.value)) < 4000
    assert len(worker.ask(job(sound), LIMIT_S)["samples_us"]) >= 3


def test_what_a_job_prints_does_not_disturb_its_answer(worker: Child, tmp_path: Path) -> None:
    library = job_library(tmp_path, 'for (int i = 0; i < 100000; ++i) puts("noise"); fflush(stdout);')
    assert worker.ask(job(library), LIMIT_S)["samples_us"] == []


def test_a_second_answer_is_not_taken_for_that_of_the_next_job(worker: Child, sound: Path, tmp_path: Path) -> None:
    two = '{\\"samples_us\\": [1.0]}\\n{\\"samples_us\\": [2.0]}\\n'
    body = f'for (int fd = 3; fd < 64; ++fd) if (write(fd, "{two}", {len(two) - two.count(chr(92))}) < 0) continue;'
    assert worker.ask(job(job_library(tmp_path, body)), LIMIT_S)["samples_us"] == [1.0]
    assert len(worker.ask(job(sound), LIMIT_S)["samples_us"]) >= 3


def test_a_library_that_does_not_load_is_a_failed_job_in_the_same_child(worker: Child, sound: Path, tmp_path: Path) -> None:
    child = _child_of(worker, sound)
    (tmp_path / "text.so").write_text("not a library")
    for path in (tmp_path / "text.so", tmp_path / "missing.so"):
        with pytest.raises(Refused) as error:
            worker.ask(job(path), LIMIT_S)
        assert (error.value.stage, error.value.reason) == ("load", "error")
    assert _child_of(worker, sound) == child


def test_memory_that_is_not_there_is_a_failed_job(worker: Child, sound: Path) -> None:
    child = _child_of(worker, sound)
    with pytest.raises(Refused) as error:
        worker.ask(job(sound, n=1 << 20, panels=1 << 18, k=1 << 20, floats=1 << 40), LIMIT_S)  # 4 TiB of weights
    assert (error.value.stage, error.value.reason) == ("run", "memory")
    assert _child_of(worker, sound) == child


def test_a_job_that_takes_memory_without_end_dies_alone(worker: Child, sound: Path, tmp_path: Path) -> None:
    body = 'for (long long all = 0;; all += 1 << 30) if (!malloc(1 << 30)) { fprintf(stderr, "stopped"); abort(); }'
    with pytest.raises(Crashed, match="stopped"):  # malloc says no before the machine does; nothing is touched
        worker.ask(job(job_library(tmp_path, body)), LIMIT_S)
    assert worker.ask(job(sound), LIMIT_S)


def test_the_child_outlives_the_thread_that_started_it(sound: Path) -> None:
    own = process(TIMING, ENVIRONMENT)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(_child_of, own, sound).result()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(_child_of, own, sound).result() == first
    own.close()
    own.close()
    assert not _alive(first)


def test_signals_to_the_whole_group_are_left_to_the_parent(worker: Child, sound: Path) -> None:
    """A worker that dies of them would be taken for a kernel that crashes."""
    child = _child_of(worker, sound)
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        os.kill(child, signal_number)
    assert _child_of(worker, sound) == child


def test_what_a_dead_child_started_dies_as_well(worker: Child, sound: Path, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    body = f"""
      pid_t child = fork();
      if (child == 0) for (;;) pause();
      FILE* f = fopen("{note}", "w"); fprintf(f, "%d", child); fclose(f);
      abort();"""
    with pytest.raises(Crashed):
        worker.ask(job(job_library(tmp_path, body)), LIMIT_S)
    assert _gone_within(int(note.read_text()), LIMIT_S)


def test_kill_9_of_the_parent_leaves_nobody(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    body = f"""
      pid_t child = fork();
      if (child == 0) for (;;) pause();
      FILE* f = fopen("{note}.part", "w"); fprintf(f, "%d %d", getpid(), child); fclose(f);
      rename("{note}.part", "{note}");
      for (volatile int i = 0;;) i++;"""
    library = job_library(tmp_path, body)
    program = (
        "import sys; from pathlib import Path; from haotuner.backends.cpu.processes import TIMING, process\n"
        "from tests.backends.native_jobs import ENVIRONMENT, job\n"
        "process(TIMING, ENVIRONMENT).ask(job(Path(sys.argv[1])), 600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(library)])
    try:
        until = time.monotonic() + LIMIT_S
        while not note.exists():
            assert time.monotonic() < until and parent.poll() is None, "the job did not start"
            time.sleep(0.02)
        pids = [int(word) for word in note.read_text().split()]
        assert all(map(_alive, pids))
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert all(_gone_within(pid, LIMIT_S) for pid in pids)


def test_a_child_that_cannot_start_is_a_clear_error() -> None:
    lost = process(TIMING, {**ENVIRONMENT, "PYTHONHOME": "/nonexistent"})
    with pytest.raises(WorkerLost, match=r"(?s)did not start: exited with status 1.*haotuner doctor"):
        lost.ask({"do": "time"}, LIMIT_S)
    lost.close()


def _child_of(worker: Child, sound: Path) -> int:
    worker.ask(job(sound), LIMIT_S)
    assert worker.pid is not None
    return worker.pid


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def _gone_within(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while _alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not _alive(pid)
