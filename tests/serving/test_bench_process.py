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

from haotuner.bench.contender import Setting
from haotuner.bench.lineup import STRIKES, Lineup
from haotuner.bench.process import Child, Down, Missing, child_environment
from tests.serving import bench_fakes as fakes

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0  # a loaded machine
PREPARE = {"do": "prepare", "op": "dense_n8_k4", "count": 1, "seed": 0}
AIM = {"do": "aim", "m": 2, "count": 1, "seed": 0}


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.kill()


def start(children: list[Child], contender: type) -> Child:
    child = Child(fakes.spec(contender), Setting(threads=1), dict(os.environ))
    children.append(child)
    return child


def state(pid: int) -> str:
    """The letter of man 5 proc; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def reaches(pid: int, *states: str) -> bool:
    """Whether the process comes to one of these states within a few seconds."""
    until = time.monotonic() + 20
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
    child.hello(LIMIT_S)
    assert state(child.pid) == "T"
    before = cpu_s(child.pid)
    time.sleep(0.2)
    assert cpu_s(child.pid) == before
    child.ask(PREPARE, LIMIT_S)
    assert state(child.pid) == "T"
    assert cpu_s(child.pid) > before


def test_what_a_library_prints_is_not_taken_for_an_answer(children):
    child = start(children, fakes.Chatty)
    assert child.hello(LIMIT_S)["version"] == "1"
    assert child.ask(PREPARE, LIMIT_S) == {}


def test_a_library_that_is_not_installed_is_missing_and_one_that_fails_to_load_has_failed(children):
    with pytest.raises(Missing, match="no_such_library_at_all"):
        start(children, fakes.Absent).hello(LIMIT_S)
    with pytest.raises(Down, match="another kernel") as caught:
        start(children, fakes.Broken).hello(LIMIT_S)
    assert (caught.value.failed.stage, caught.value.alive) == ("load", False)


def test_an_error_in_a_request_leaves_the_process_alive(children):
    child = start(children, fakes.Raising)
    child.hello(LIMIT_S)
    for _ in range(2):
        with pytest.raises(Down, match="cannot pack this") as caught:
            child.ask(PREPARE, LIMIT_S)
        assert caught.value.alive


def test_a_crash_names_the_signal_and_what_was_said(children):
    child = start(children, fakes.CrashingAtOnce)
    child.hello(LIMIT_S)
    child.ask(PREPARE, LIMIT_S)
    with pytest.raises(Down, match="SIGSEGV(.|\n)*about to die") as caught:
        child.ask({**AIM, "m": fakes.BAD_M}, LIMIT_S)
    assert caught.value.failed.reason == "crash"


def test_a_hang_ends_at_its_limit_and_the_process_with_it(children):
    child = start(children, fakes.HangingAtOnce)
    child.hello(LIMIT_S)
    child.ask(PREPARE, LIMIT_S)
    with pytest.raises(Down) as caught:
        child.ask({**AIM, "m": fakes.BAD_M}, 0.5)
    assert caught.value.failed.reason == "timeout"
    assert gone(child.pid)


def test_killing_ends_a_stopped_process_and_what_it_started(children):
    child = start(children, fakes.Parent)
    grandchild = int(child.hello(LIMIT_S)["version"])
    assert reaches(grandchild, "T"), "the group is stopped as one"
    child.kill()
    assert gone(child.pid) and gone(grandchild)


def test_the_environment_of_a_contender_has_its_threads_and_nothing_that_could_hamper_it(children):
    given = {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "9",
        "OPENBLAS_CORETYPE": "Nehalem",
        "KMP_AFFINITY": "compact",
        "HAOTUNER_TEST": "1",
    }
    found = child_environment(given, Setting(threads=3))
    assert found == {"PATH": "/bin", "HAOTUNER_TEST": "1", "OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3",
                     "OPENBLAS_NUM_THREADS": "3", "BLIS_NUM_THREADS": "3"}  # fmt: skip
    assert child_environment(given, Setting(threads=1, isa="avx2"))["OPENBLAS_CORETYPE"] == "Haswell"
    child = Child(fakes.spec(fakes.Knowing), Setting(threads=2, pack="p", isa="sse"), {**os.environ, **given})
    children.append(child)
    told = child.hello(LIMIT_S)["version"]
    assert told == "p,OMP_NUM_THREADS=2,OPENBLAS_CORETYPE=Nehalem,MKL_ENABLE_INSTRUCTIONS=SSE4_2,HAOTUNER_TEST=1"


def test_who_keeps_dying_is_given_up_and_the_others_go_on():
    specs = {"doomed": fakes.spec(fakes.Doomed), "right": fakes.spec(fakes.Right)}
    with Lineup(specs, Setting(threads=1), dict(os.environ), {}) as lineup:
        for strike in range(STRIKES):
            assert lineup.start() == {}, f"before strike {strike} it is started anew"
            _, failed = lineup.ask_all({name: PREPARE for name in lineup.names()}, LIMIT_S)
            assert list(failed) == ["doomed"]
            assert "status 7" in failed["doomed"].detail
        assert list(lineup.start()) == ["doomed"]
        assert lineup.names() == ["right"]


RACE = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
from haotuner.bench.contender import Setting
from haotuner.bench.lineup import Lineup
from tests.serving import bench_fakes as fakes
specs = {"a": fakes.spec(fakes.Right), "b": fakes.spec(fakes.Spinning)}
import os
with Lineup(specs, Setting(threads=1), dict(os.environ), {}) as lineup:
    lineup.start()
    print(*lineup.pids(), flush=True)
    lineup.ask("a", {"do": "prepare", "op": "dense_n8_k4", "count": 1, "seed": 0}, 60)
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
        race.wait(timeout=30)
    assert all(gone(pid) for pid in pids)
