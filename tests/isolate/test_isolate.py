"""The supervised child: it answers, refuses, dies or hangs, and the parent goes on; nobody outlives the parent."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from haotuner.errors import WorkerLost
from haotuner.isolate import group
from haotuner.isolate.answers import MISSING, ChildNotResponding, Crashed, Refused, TimedOut
from haotuner.isolate.child import Child
from haotuner.isolate.group import Limits
from haotuner.spec.record import Failed
from tests.standin.patience import WALL_S

LIMIT_S = float(WALL_S)
PROGRAMS = "tests.isolate.isolate_programs"
COUNT = {"do": "count"}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def child() -> Iterator[Child]:
    process = Child(f"{PROGRAMS}:willing", {"x": 1})
    yield process
    process.close()


def state(pid: int) -> str:
    """The letter of man 5 proc; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def gone(pid: int) -> bool:
    """Whether the process ends; a zombie of somebody else's has ended."""
    until = time.monotonic() + WALL_S
    while state(pid) not in ("", "Z", "X") and time.monotonic() < until:
        time.sleep(0.01)
    return state(pid) in ("", "Z", "X")


def process_of(child: Child) -> int:
    assert child.pid is not None
    return child.pid


def test_it_answers_in_one_process_and_its_greeting_says_what_it_was_told(child: Child) -> None:
    child.launch()
    greeting = child.greeting(LIMIT_S)
    assert greeting["told"] == {"x": 1} and greeting["path"] == sys.path
    answers = [child.ask(COUNT, LIMIT_S) for _ in range(3)]
    assert [answer["count"] for answer in answers] == [1, 2, 3]
    assert {answer["process"] for answer in answers} == {child.pid}


def test_it_answers_a_program_that_has_a_thousand_files_open(child: Child) -> None:
    """As servers do: select takes no descriptor from 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < 1200:
        pytest.skip(f"descriptors: this host allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    descriptors: list[int] = []
    try:
        while not descriptors or descriptors[-1] < 1030:
            descriptors.append(os.dup(0))
        assert child.ask(COUNT, LIMIT_S)["count"] == 1
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "request_, stage, reason, words",
    [
        ({"do": "say_no"}, "verify", "wrong", "one is not two"),
        ({"do": "fail"}, "run", "error", "ZeroDivisionError: by nothing"),
        ({"do": "no_memory"}, "run", "memory", "so much"),
        ({"do": "fly"}, "run", "error", "asked to do 'fly'; this program serves count, environment"),
    ],
)
def test_a_refusal_names_stage_and_reason_and_the_process_lives(
    child: Child, request_: dict[str, Any], stage: str, reason: str, words: str
) -> None:
    child.ask(COUNT, LIMIT_S)
    with pytest.raises(Refused, match=words) as caught:
        child.ask(request_, LIMIT_S)
    assert caught.value.alive
    assert caught.value.failed("time") == Failed(stage=stage, reason=reason, detail=str(caught.value))
    assert child.ask(COUNT, LIMIT_S)["count"] == 2


def test_a_fatal_refusal_ends_the_process_and_the_next_request_finds_a_fresh_one(child: Child) -> None:
    first = child.ask(COUNT, LIMIT_S)["process"]
    with pytest.raises(Refused, match="context is gone") as caught:
        child.ask({"do": "give_up"}, LIMIT_S)
    assert not caught.value.alive and child.pid is None and gone(first)
    assert child.ask(COUNT, LIMIT_S)["count"] == 1


@pytest.mark.parametrize(
    "request_, limit_s, kind, reason, words",
    [
        ({"do": "exit", "code": 3}, LIMIT_S, Crashed, "crash", "exited with status 3"),
        ({"do": "sleep", "seconds": 600}, 0.3, TimedOut, "timeout", "no answer within 0 s"),
        ({"do": "odd", "refused": "no list"}, LIMIT_S, Crashed, "crash", "unreadable answer"),
    ],
)
def test_a_fault_ends_the_process_and_is_a_failure_of_the_stage_asked_for(
    child: Child, request_: dict[str, Any], limit_s: float, kind: type[ChildNotResponding], reason: str, words: str
) -> None:
    first = child.ask(COUNT, LIMIT_S)["process"]
    with pytest.raises(kind, match=words) as caught:
        child.ask(request_, limit_s)
    assert not caught.value.alive and gone(first)
    assert caught.value.failed("verify") == Failed(stage="verify", reason=reason, detail=str(caught.value))
    assert child.ask(COUNT, LIMIT_S)["count"] == 1


def test_what_is_printed_is_no_answer_and_who_reads_standard_input_takes_no_request(child: Child) -> None:
    assert child.ask({"do": "print"}, LIMIT_S) == {"printed": None}
    assert child.ask({"do": "read_input"}, LIMIT_S) == {"read": ""}
    assert child.ask(COUNT, LIMIT_S)["count"] == 1


def test_an_answer_that_nobody_took_is_not_given_to_the_next_request(child: Child) -> None:
    child.start(LIMIT_S)
    child.begin({"do": "sleep", "seconds": 0})  # and then the caller was interrupted
    assert child.ask(COUNT, LIMIT_S)["count"] == 1


def test_a_line_that_comes_after_the_answer_is_not_given_to_the_next_request(child: Child) -> None:
    child.ask({"do": "unasked"}, LIMIT_S)
    first = process_of(child)
    until = time.monotonic() + LIMIT_S
    while child._ready() and time.monotonic() < until:
        time.sleep(0.01)
    assert child.ask(COUNT, LIMIT_S)["count"] == 1
    assert child.pid != first


def test_a_second_half_goes_to_the_same_process_or_says_how_it_was_lost(child: Child) -> None:
    with pytest.raises(Crashed, match="gone"):
        child.begin(COUNT)
    child.start(LIMIT_S)
    os.kill(process_of(child), signal.SIGKILL)
    assert gone(process_of(child))
    with pytest.raises(Crashed, match="killed by SIGKILL"):
        child.begin(COUNT)


def test_a_library_that_is_missing_is_told_from_a_program_that_fails_and_one_that_hangs() -> None:
    for program, kind, words in (
        ("absent", Refused, "no_such_library"),
        ("broken", Crashed, r"(?s)status 1.*ValueError: cannot load this"),
        ("silent", TimedOut, "no answer"),
        ("no_such_program", Crashed, "no_such_program"),
    ):
        child = Child(f"{PROGRAMS}:{program}")
        child.launch()
        process = process_of(child)
        with pytest.raises(kind, match=words) as caught:
            child.greeting(3.0 if kind is TimedOut else LIMIT_S)
        assert child.pid is None and gone(process)
        if isinstance(caught.value, Refused):
            assert caught.value.reason == MISSING
        else:
            with pytest.raises(WorkerLost, match="did not start: .*"):
                child.start(3.0 if kind is TimedOut else LIMIT_S)


def test_a_child_that_rests_stands_still_unless_it_is_asked() -> None:
    child = Child(f"{PROGRAMS}:willing", rests=True)
    child.start(LIMIT_S)
    pid = process_of(child)
    clock = (~pid << 3) | 2  # of the process's CPU time
    assert state(pid) == "T"
    before = time.clock_gettime(clock)
    time.sleep(0.2)
    assert time.clock_gettime(clock) == before
    child.ask({"do": "spin"}, LIMIT_S)
    assert state(pid) == "T" and time.clock_gettime(clock) > before
    with pytest.raises(Refused):
        child.ask({"do": "say_no"}, LIMIT_S)
    assert state(pid) == "T"
    grandchild = child.ask({"do": "spawn"}, LIMIT_S)["process"]
    deadline = time.monotonic() + LIMIT_S
    while state(grandchild) != "T" and time.monotonic() < deadline:  # a new process may be at its first instructions
        time.sleep(0.01)
    assert state(grandchild) == "T", "the group is stopped as one"
    child.close()
    assert gone(pid) and gone(grandchild)


def test_signals_to_everybody_are_left_to_the_parent(child: Child) -> None:
    process = child.ask(COUNT, LIMIT_S)["process"]
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process, signal_number)
    assert child.ask(COUNT, LIMIT_S) == {"count": 2, "process": process}


def test_environment_path_and_limits_are_those_asked_for(tmp_path: Path) -> None:
    (tmp_path / "own_program.py").write_text(
        "import resource\nfrom haotuner.isolate.program import Program\n"
        "def serve(settings):\n"
        "    which = (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_DATA)\n"
        "    sizes = [resource.getrlimit(limit)[0] for limit in which]\n"
        "    return Program(verbs={}, greeting={'sizes': sizes})\n"
    )
    child = Child("own_program:serve", path=[str(tmp_path), *sys.path], limits=Limits(file_bytes=1 << 20, memory_share=0.5))
    child.launch()
    core, file, data = child.greeting(LIMIT_S)["sizes"]
    child.close()
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    assert (core, file) == (0, 1 << 20)
    assert data == (physical // 2 if hard == resource.RLIM_INFINITY else min(physical // 2, hard))
    configured = Child(f"{PROGRAMS}:willing", environment={**os.environ, "HAOTUNER_TEST": "yes"})
    assert configured.ask({"do": "environment", "name": "HAOTUNER_TEST"}, LIMIT_S) == {"value": "yes"}
    configured.close()


PARENT = """
import sys
from haotuner.isolate.child import Child
from tests.isolate import isolate_programs
child = Child("tests.isolate.isolate_programs:willing", rests=sys.argv[1] == "rests")
child.start()
print(child.pid, child.ask({"do": "spawn"}, 60)["process"], flush=True)
if sys.argv[1] == "busy":
    child.ask({"do": "sleep", "seconds": 600}, 600)
sys.stdin.read()
"""
COMMAND = """
import sys
from haotuner.isolate import group as command
script = '''
import os, subprocess, sys
started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {started.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
started.wait()
'''
command.run([sys.executable, "-c", script, sys.argv[1]], 600)
"""


@pytest.mark.parametrize("how", ["idle", "busy", "rests"])
def test_kill_9_of_the_parent_leaves_nobody(how: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None and parent.stdin is not None
    with parent.stdout, parent.stdin:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(state(pid) not in ("", "Z") for pid in pids)
        parent.kill()
        parent.wait()
    assert all(gone(pid) for pid in pids)


def test_a_command_ends_with_its_words_and_its_status() -> None:
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(int(sys.argv[1]))"
    completed = group.run([sys.executable, "-c", script, "7"], LIMIT_S)
    assert (completed.code, completed.out, completed.errors) == (7, "out\n", "err\n")
    assert group.run([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), 9)"], LIMIT_S).code == -9
    assert group.run(["cat"], LIMIT_S).out == "", "it has nothing to read"
    assert group.run(["env"], LIMIT_S, {"A": "1"}).out == "A=1\n"
    with pytest.raises(FileNotFoundError):
        group.run(["/no/such/command"], LIMIT_S)


@pytest.mark.parametrize("ends", ["limit", "parent"])
def test_what_a_command_started_ends_with_it(ends: str, tmp_path: Path) -> None:
    note = tmp_path / "pids"
    if ends == "limit":
        script = COMMAND.replace(", 600)", ", 3)")
        ran = subprocess.run(
            [sys.executable, "-c", script, str(note)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert "did not end within 3 s" in ran.stderr
    else:
        parent = subprocess.Popen([sys.executable, "-c", COMMAND, str(note)], cwd=ROOT)
        _until(note.exists)
        assert all(state(int(word)) not in ("", "Z") for word in note.read_text().split())
        parent.kill()
        parent.wait()
    assert all(gone(int(word)) for word in note.read_text().split())


def _until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)
