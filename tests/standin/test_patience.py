"""What hangs is ended; what works, in whatever group, or stands in line for a file, is waited for."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.standin import patience
from tests.standin.apart import HUNG, failure_of
from tests.standin.patience import ended, ran


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("SOON_S", 0.1), ("LOOK_S", 0.05), ("IDLE_S", 0.4)):
        monkeypatch.setattr(patience, name, seconds)


def forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return child


def sleep() -> None:
    time.sleep(1000)


def poll() -> None:
    while True:
        time.sleep(0.005)


def spin(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def below(work: Callable[[], None]) -> None:
    """Work in a session of its own, below a process that waits."""

    def apart() -> None:
        os.setsid()
        work()

    os.waitpid(forked(apart), 0)


def test_the_exit_code_of_what_ends():
    assert ended(forked(lambda: os._exit(3)), 10) == 3
    assert ended(forked(lambda: os.kill(os.getpid(), signal.SIGKILL)), 10) == -9


@pytest.mark.parametrize(
    "work", [sleep, poll, lambda: spin(1000), lambda: below(sleep)], ids=["sleeps", "polls", "spins", "below sleeps"]
)
def test_what_hangs_is_ended(work):
    child = forked(work)
    assert ended(child, 0.2) is None
    assert patience._family(child) == {}


def test_what_descends_from_a_hung_process_is_ended_with_it(tmp_path):
    note = tmp_path / "pid"

    def work() -> None:
        note.write_text(str(os.getpid()))
        spin(1000)

    assert ended(forked(lambda: below(work)), 0.2) is None
    killed = int(note.read_text())
    limit = time.monotonic() + patience.WALL_S  # a signal takes effect when the process next has a core
    while any(facts[0] != "Z" for facts in patience._family(killed).values()):  # a zombie: nobody has asked for it
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_process_that_works_in_another_group_is_waited_for():
    assert ended(forked(lambda: below(lambda: spin(0.8))), 100) == 0


def test_a_process_in_line_for_a_file_is_waited_for(tmp_path):
    with (tmp_path / "lock").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)

        def work() -> None:
            with (tmp_path / "lock").open("w") as other:
                fcntl.flock(other, fcntl.LOCK_EX)

        child = forked(work)
        release = threading.Timer(1.0, fcntl.flock, (lock_file, fcntl.LOCK_UN))
        release.start()
        assert ended(child, 100) == 0
        release.join()


def test_a_limit_of_the_callers_ends_the_process(monkeypatch):
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    child = forked(sleep)
    monkeypatch.setattr("tests.standin.patience.time.sleep", stop)
    with pytest.raises(KeyboardInterrupt):
        ended(child, 10)
    assert patience._family(child) == {}


def test_what_a_command_says():
    done = ran([sys.executable, "-c", "import sys; print(1); print(2, file=sys.stderr); sys.exit(3)"], 10)
    assert (done.returncode, done.stdout, done.stderr) == (3, "1\n", "2\n")
    assert isinstance(done, subprocess.CompletedProcess)


def test_a_command_that_hangs_fails_with_what_it_said():
    with pytest.raises(AssertionError, match=r"(?s)python.* hung\n.*so far"):
        ran([sys.executable, "-c", "import time; print('so far', flush=True); time.sleep(1000)"], 10, idle=1)


def test_a_command_that_waits_until_another_hung_is_waited_for():
    command = "import time; from tests.standin.apart import failure_of; print(failure_of(lambda: time.sleep(1000)))"
    assert ran([sys.executable, "-c", command], 10, cwd=Path(__file__).parents[2]).stdout == f"{HUNG}\n"


def test_how_a_function_failed():
    def fails() -> None:
        raise ValueError("odd")

    assert failure_of(lambda: None) == ""
    assert failure_of(fails).endswith("ValueError: odd\n")
    assert failure_of(lambda: os.kill(os.getpid(), signal.SIGKILL)) == "ended with status -9"
    assert failure_of(sleep) == failure_of(lambda: spin(1000), seconds=0.2) == HUNG
