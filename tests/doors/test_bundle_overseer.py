"""The bundle's overseer against workers that do as they are told: crash, hang, end early, or answer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from haotuner.bundle.overseer import Answer, Overseer
from haotuner.bundle.trials import CHECK, Task
from haotuner.errors import WorkerLost

# What a task's kernel is called says what happens to the worker.
WORKER = """
import json, os, sys, time
tasks = json.load(open(sys.argv[1]))["tasks"]
if any(task["kernel"].startswith("never") for task in tasks):
    sys.exit("no device")
print(json.dumps({"ready": True}), flush=True)
for number, task in enumerate(tasks):
    print(json.dumps({"start": number}), flush=True)
    what = task["kernel"].partition("__")[2].rstrip("0123456789")
    if what == "crash":
        os._exit(11)
    if what == "hang":
        time.sleep(600)
    fault = {"failed": {"stage": "verify", "reason": "crash", "detail": "illegal address"}, "fault": True}
    answer = fault if what == "fault" else {"check": {"wrong": 0}}
    print(json.dumps({"end": number, **answer}), flush=True)
    if what == "fault":
        sys.exit(75)
"""


@pytest.fixture
def overseer(tmp_path):
    package = tmp_path / "haotuner" / "bundle"
    package.mkdir(parents=True)
    (tmp_path / "haotuner" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "worker.py").write_text(WORKER)
    return Overseer(root=tmp_path, arch="sm_90a", patience_s=3, python_path=str(tmp_path))


def answers(overseer: Overseer, *kernels: str) -> list[Answer]:
    return list(overseer.run([Task(stage=CHECK, kernel=kernel) for kernel in kernels], time.monotonic() + 100))


def reason(answer: Answer) -> Any:
    return answer.fields.get("failed", {}).get("reason")


def test_every_task_is_answered_once_in_order(overseer):
    asked = ["a__well1", "a__well2", "b__crash1", "a__well3", "b__fault1", "b__well1"]
    found = answers(overseer, *asked)
    assert [answer.task.kernel for answer in found] == asked
    assert [reason(answer) for answer in found] == [None, None, "crash", None, "crash", None]
    assert "exited 11" in found[2].fields["failed"]["detail"]


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
        answers(overseer, "never__begins")


def test_nothing_is_started_after_the_deadline(overseer):
    assert list(overseer.run([Task(stage=CHECK, kernel="a__well1")], time.monotonic())) == []


def test_the_task_under_way_at_the_deadline_has_no_answer(overseer):
    found = list(overseer.run([Task(stage=CHECK, kernel="a__hang1")], time.monotonic() + 1.5))
    assert found == []
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if _is_child(path, overseer.python_path)]


def _is_child(path: Path, folder: str) -> bool:
    try:
        return "haotuner.bundle.worker" in path.read_text() and folder in (path.parent / "environ").read_text()
    except OSError:
        return False
