"""The processes of a race: they run only while they are asked, answer whatever happens, and never outlive the race."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from haotuner.bench.contender import Setting, child_environment
from haotuner.bench.processes import STRIKES, Processes, contender_process
from haotuner.isolate.answers import MISSING, Crashed, Refused, TimedOut
from haotuner.isolate.child import Child
from tests.racing import bench_fakes as fakes
from tests.standin.patience import WALL_S

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
LIMIT_S = float(WALL_S)
PREPARE = {"do": "prepare", "shape": {"m": 2}, "op": "dense_n8_k4", "count": 1, "seed": 0}
AIM = {"do": "aim", "shape": {"m": 2}, "count": 1, "seed": 0}


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.close()


def start(children: list[Child], contender: type) -> Child:
    child = contender_process(fakes.spec(contender), Setting(threads=1), dict(os.environ))
    children.append(child)
    child.launch()
    return child


def pid_of(child: Child) -> int:
    assert child.pid is not None
    return child.pid


def state(pid: int) -> str:
    """The letter of man 5 proc; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def reaches(pid: int, *states: str) -> bool:
    """Whether the process comes to one of these states."""
    until = time.monotonic() + WALL_S
    while state(pid) not in states and time.monotonic() < until:
        time.sleep(0.01)
    return state(pid) in states


def gone(pid: int) -> bool:
    """Whether the process ends; a zombie of somebody else's has ended."""
    return reaches(pid, "", "Z")


def cpu_s(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)


def test_a_process_stands_still_unless_it_is_asked(children):
    child = start(children, fakes.Spinning)
    child.greeting(LIMIT_S)
    assert state(pid_of(child)) == "T"
    before = cpu_s(pid_of(child))
    time.sleep(0.2)
    assert cpu_s(pid_of(child)) == before
    child.ask(PREPARE, LIMIT_S)
    assert state(pid_of(child)) == "T"
    assert cpu_s(pid_of(child)) > before


def test_what_a_library_prints_is_not_taken_for_an_answer(children):
    child = start(children, fakes.Chatty)
    assert child.greeting(LIMIT_S)["version"] == "1"
    assert child.ask(PREPARE, LIMIT_S) == {}


def test_a_library_that_is_not_installed_is_missing_and_one_that_fails_to_load_has_failed(children):
    with pytest.raises(Refused, match="no_such_library_at_all") as absent:
        start(children, fakes.Absent).greeting(LIMIT_S)
    assert absent.value.reason == MISSING
    with pytest.raises(Refused, match="another kernel") as caught:
        start(children, fakes.Broken).greeting(LIMIT_S)
    assert (caught.value.failed("run").stage, caught.value.alive) == ("load", False)


def test_an_error_in_a_request_leaves_the_process_alive(children):
    child = start(children, fakes.Raising)
    child.greeting(LIMIT_S)
    for _ in range(2):
        with pytest.raises(Refused, match="cannot pack this") as caught:
            child.ask(PREPARE, LIMIT_S)
        assert caught.value.alive and caught.value.stage == "build"


def test_a_crash_names_the_signal_and_what_was_said(children):
    child = start(children, fakes.CrashingAtOnce)
    child.greeting(LIMIT_S)
    child.ask(PREPARE, LIMIT_S)
    with pytest.raises(Crashed, match="SIGSEGV(.|\n)*about to die") as caught:
        child.ask({**AIM, "shape": {"m": fakes.BAD_M}}, LIMIT_S)
    assert caught.value.failed("run").reason == "crash"


def test_a_hang_ends_at_its_limit_and_the_process_with_it(children):
    child = start(children, fakes.HangingAtOnce)
    child.greeting(LIMIT_S)
    child.ask(PREPARE, LIMIT_S)
    process = pid_of(child)
    with pytest.raises(TimedOut) as caught:
        child.ask({**AIM, "shape": {"m": fakes.BAD_M}}, 0.5)
    assert caught.value.failed("run").reason == "timeout"
    assert gone(process)


def test_killing_ends_a_stopped_process_and_what_it_started(children):
    child = start(children, fakes.Parent)
    grandchild = int(child.greeting(LIMIT_S)["version"])
    assert reaches(grandchild, "T"), "the group is stopped as one"
    process = pid_of(child)
    child.close()
    assert gone(process) and gone(grandchild)


def test_the_environment_of_a_contender_has_its_threads_and_nothing_that_could_hamper_it(children):
    inherited = {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "9",
        "OPENBLAS_CORETYPE": "Nehalem",
        "KMP_AFFINITY": "compact",
        "HAOTUNER_TEST": "1",
    }
    environment = child_environment(inherited, Setting(threads=3))
    assert environment == {"PATH": "/bin", "HAOTUNER_TEST": "1", "OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3",
                     "OPENBLAS_NUM_THREADS": "3", "BLIS_NUM_THREADS": "3"}  # fmt: skip
    assert child_environment(inherited, Setting(threads=1, isa="avx2"))["OPENBLAS_CORETYPE"] == "Haswell"
    setting = Setting(threads=2, pack="p", isa="sse")
    child = contender_process(fakes.spec(fakes.Knowing), setting, {**os.environ, **inherited})
    children.append(child)
    child.launch()
    version = child.greeting(LIMIT_S)["version"]
    assert version == "p,OMP_NUM_THREADS=2,OPENBLAS_CORETYPE=Nehalem,MKL_ENABLE_INSTRUCTIONS=SSE4_2,HAOTUNER_TEST=1"


def test_who_keeps_dying_is_given_up_and_the_others_go_on():
    specs = {"doomed": fakes.spec(fakes.Doomed), "right": fakes.spec(fakes.Right)}
    with Processes(specs, Setting(threads=1), dict(os.environ), {}) as processes:
        for strike in range(STRIKES):
            assert processes.start() == {}, f"before strike {strike} it is started anew"
            _, failed = processes.ask_all({name: PREPARE for name in processes.names()}, LIMIT_S)
            assert list(failed) == ["doomed"]
            assert "status 7" in failed["doomed"].detail
        assert list(processes.start()) == ["doomed"]
        assert processes.names() == ["right"]


RACE = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
from haotuner.bench.contender import Setting
from haotuner.bench.processes import Processes
from tests.racing import bench_fakes as fakes
specs = {"a": fakes.spec(fakes.Right), "b": fakes.spec(fakes.Spinning)}
import os
with Processes(specs, Setting(threads=1), dict(os.environ), {}) as processes:
    processes.start()
    print(*processes.pids(), flush=True)
    processes.ask("a", {"do": "prepare", "shape": {"m": 2}, "op": "dense_n8_k4", "count": 1, "seed": 0}, 60)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: signal.Signals(n).name)
def test_no_process_outlives_a_race_that_is_ended(number):
    race = subprocess.Popen(
        [sys.executable, "-c", RACE], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert race.stdout is not None
    with race.stdout:
        pids = [int(word) for word in race.stdout.readline().split()]
        assert len(pids) == 2
        race.send_signal(number)
        race.wait(timeout=WALL_S)
    assert all(gone(pid) for pid in pids)
