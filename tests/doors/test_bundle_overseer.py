"""The bundle's overseer against workers that do as they are told: crash, hang, end early, or answer."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haotuner.bundle.overseer import Answer, Overseer
from haotuner.bundle.trials import CHECK, Task
from haotuner.errors import WorkerLost

WORKERS = "tests.doors.bundle_scripted_worker"


@pytest.fixture
def overseer(tmp_path: Path) -> Overseer:
    return Overseer(root=tmp_path, arch="sm_90a", patience_s=3, program=f"{WORKERS}:scripted")


def answers(overseer: Overseer, *kernels: str) -> list[Answer]:
    return list(overseer.run([Task(stage=CHECK, kernel=kernel) for kernel in kernels], time.monotonic() + 100))


def reason(answer: Answer) -> Any:
    return answer.fields.get("failed", {}).get("reason")


def test_every_task_is_answered_once_in_order(overseer):
    asked = ["a__well1", "a__well2", "b__crash1", "a__well3", "b__fault1", "b__well1"]
    found = answers(overseer, *asked)
    assert [answer.task.kernel for answer in found] == asked
    assert [reason(answer) for answer in found] == [None, None, "crash", None, "crash", None]
    assert "exited with status 11" in found[2].fields["failed"]["detail"]


def test_a_hang_is_ended_and_its_kernel_is_not_asked_again(overseer):
    found = answers(overseer, "a__hang1", "a__well1", "a__hang1", "a__well2")
    assert sorted((answer.task.kernel, reason(answer)) for answer in found if reason(answer)) == [
        ("a__hang1", "error"),
        ("a__hang1", "timeout"),
    ]
    assert sum(reason(answer) is None for answer in found) == 2
    assert any("left out: the kernel hung" in answer.fields.get("failed", {}).get("detail", "") for answer in found)


def test_a_kernel_that_brought_two_workers_down_is_left_out(overseer):
    found = answers(overseer, "a__well1", *["a__crash1"] * 4, "a__well2")
    reasons = sorted(str(reason(answer)) for answer in found if answer.task.kernel == "a__crash1")
    assert reasons == ["crash", "crash", "error", "error"]


def test_a_family_of_which_nothing_comes_through_is_left_out_and_others_go_on(overseer):
    found = answers(overseer, "bad__crash1", "bad__fault2", "bad__crash3", "bad__well4", "good__well1", "bad__well5")
    left_out = {answer.task.kernel for answer in found if answer.fields.get("left_out")}
    assert left_out == {"bad__well4", "bad__well5"}
    assert [reason(answer) for answer in found if answer.task.kernel == "good__well1"] == [None]


def test_a_family_of_which_something_came_through_is_asked_on(overseer):
    found = answers(overseer, "a__well1", "a__crash2", "a__crash3", "a__crash4", "a__well5")
    assert [reason(answer) for answer in found] == [None, "crash", "crash", "crash", None]


def test_workers_that_never_begin_end_the_run_with_their_words(overseer):
    with pytest.raises(WorkerLost, match="ended before their first task.*no device"):
        answers(replace(overseer, program=f"{WORKERS}:never"), "never__begins")


def test_a_worker_that_is_not_ready_at_the_deadline_leaves_its_task_open(overseer):
    slow = replace(overseer, program=f"{WORKERS}:slow")
    assert list(slow.run([Task(stage=CHECK, kernel="a__well1")], time.monotonic() + 1)) == []
    assert not _workers(slow)


def test_nothing_is_started_after_the_deadline(overseer):
    assert list(overseer.run([Task(stage=CHECK, kernel="a__well1")], time.monotonic())) == []


def test_the_task_under_way_at_the_deadline_has_no_answer(overseer):
    found = list(overseer.run([Task(stage=CHECK, kernel="a__hang1")], time.monotonic() + 1.5))
    assert found == []
    assert not _workers(overseer)


def test_no_worker_is_left_when_the_answers_are_no_longer_wanted(overseer):
    found = overseer.run([Task(stage=CHECK, kernel=f"a__well{i}") for i in range(2)], time.monotonic() + 100)
    assert reason(next(found)) is None
    assert len(_workers(overseer)) == 1
    found.close()
    assert not _workers(overseer)


def _workers(overseer: Overseer) -> list[int]:
    """Living processes of this overseer: what a worker is told names its folder, which no other test has."""
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _is_worker(path, overseer)]


def _is_worker(path: Path, overseer: Overseer) -> bool:
    try:
        line = path.read_bytes()
        return WORKERS.encode() in line and str(overseer.root).encode() in line
    except OSError:
        return False
