"""The budget of whole models: turns end when it does, and groups are timed once, whoever asks again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cpu.group_jobs import timed_here
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.partition import profiled_costs as measured_module
from haotuner.partition.cost_estimate import groups_us
from haotuner.partition.costs import kernel_of
from haotuner.partition.greedy_fusion import Greedy, Loops
from haotuner.partition.group_times import KERNEL, GroupRecords, NamedGroup
from haotuner.partition.ilp_partition import IlpPartitioner
from haotuner.partition.profiled_costs import BOUND, ProfiledPrices
from haotuner.partition.tasks import ModelTask, model_task, reassembled
from haotuner.records import MemoryStore, RecordStore
from haotuner.search import task_scheduler as turns_module
from haotuner.search.task_scheduler import (
    LEAST_TURN_S,
    SHORTEST_TURN_S,
    USUAL_OVER_S,
    Scheduler,
    Shared,
    TurnResult,
    enough_s,
    shared,
)
from haotuner.spec.record import Timed
from haotuner.tuning.group_tasks import GroupTasks
from haotuner.tuning.publisher import next_seconds
from tests.search.fake_lab import CORE

B, T = dimension("batch"), dimension("seq")
ENOUGH_S = 600.0  # for all that a plan wants, on a machine that is busy, too
REQUESTS = [{"batch": 2, "seq": 9}, {"batch": 3, "seq": 40}]


class Clock:
    """Time that only turns spend."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(turns_module, "now", lambda: self.now)


def turn_result(timings: int, stopped: str) -> TurnResult:
    return TurnResult(100.0 / timings, timings, stopped)


@pytest.mark.parametrize(("count", "budget_s", "over"), [(3, 60.0, 2.0), (33, 60.0, 3.0), (33, 400.0, 4.0), (2, 5.0, 1.0)])
def test_turns_end_when_the_budget_does_however_much_each_overruns(monkeypatch, count, budget_s, over):
    clock, order = Clock(monkeypatch), list[int]()

    def one_turn(task: int, seconds: float) -> Any:
        order.append(task)
        clock.now += seconds + over
        return turn_result(order.count(task), "budget")

    tasks = [Shared("dense", 1e6, (1.0,)) for _ in range(count)]
    results, turns, stopped = shared(Scheduler(tasks), budget_s, one_turn, lambda _: True)
    assert not stopped and clock.now <= 1.1 * budget_s, "at most what the last turn took too long"
    assert len(turns) == len(order) and results.keys() == set(order)
    if budget_s >= count * (over + 1):
        assert len(results) == count, "every task had a turn"
        assert clock.now >= 0.6 * budget_s, "and the rest was not left"


def test_a_budget_too_short_for_all_tasks_is_for_the_largest(monkeypatch):
    clock, calls = Clock(monkeypatch), list[tuple[int, float]]()

    def one_turn(task: int, seconds: float) -> Any:
        calls.append((task, seconds))
        clock.now += seconds + USUAL_OVER_S
        return turn_result(1, "budget")

    tasks = [Shared("dense", 1e6 + index, (1.0,)) for index in range(33)]
    shared(Scheduler(tasks), 35.0, one_turn, lambda _: True)
    assert [task for task, _ in calls[:3]] == [32, 31, 30] and len(calls) == 12
    assert all(seconds == pytest.approx(SHORTEST_TURN_S - USUAL_OVER_S) for _, seconds in calls[:11])


def test_after_each_turn_is_said_how_far_it_is_and_what_a_request_takes(monkeypatch):
    clock, messages = Clock(monkeypatch), list[str]()

    def one_turn(task: int, seconds: float) -> Any:
        clock.now += seconds
        return turn_result(1, "converged")

    tasks = [Shared("dense", 1e6, (1.0,)) for _ in range(2)]

    def told(words: str) -> bool:
        messages.append(words)
        return True

    shared(Scheduler(tasks), 60.0, one_turn, told, expected=lambda results: f"{10 - len(results)} ms")
    assert messages == ["1 of 2 tasks begun, 1 done, 9 ms", "2 of 2 tasks begun, 2 done, 8 ms"]
    messages.clear()
    shared(Scheduler(tasks), 60.0, one_turn, told)
    assert messages == ["1 of 2 tasks begun, 1 done", "2 of 2 tasks begun, 2 done, products 0.20 ms expected"]


def test_packs_between_turns_are_not_charged_to_the_budget(monkeypatch):
    clock, left, turns = Clock(monkeypatch), list[float](), list[float]()

    def one_turn(task: int, seconds: float) -> Any:
        turns.append(seconds)
        clock.now += seconds
        return turn_result(1, "budget")

    def between(results: Any, seconds: float) -> None:
        left.append(seconds)
        clock.now += 500.0

    tasks = [Shared("dense", 1e6, (1.0,)) for _ in range(4)]
    results, _, _ = shared(Scheduler(tasks), 60.0, one_turn, lambda _: True, between=between)
    assert sorted(results) == [0, 1, 2, 3] and sum(turns) > 40.0
    assert left == sorted(left, reverse=True) and left[0] < 60.0


def test_a_budget_that_is_enough_gives_each_task_a_turn():
    assert enough_s(20) > 20 * LEAST_TURN_S


def test_the_next_pack_is_expected_to_compile_little_and_to_be_raced():
    assert next_seconds(70.0, 25.0, cached=True, first=True) == pytest.approx(14.0 + 25.0 + 25.0)
    assert next_seconds(7.0, 35.0, cached=True, first=False) == pytest.approx(42.0)
    assert next_seconds(7.0, 5.0, cached=True, first=True) == pytest.approx(4.0 + 5.0 + 10.0)
    assert next_seconds(7.0, 35.0, cached=False, first=False) == pytest.approx(42.0)


def test_whoever_is_told_to_stop_begins_no_other_turn(monkeypatch):
    clock, seen = Clock(monkeypatch), list[int]()

    def one_turn(task: int, seconds: float) -> Any:
        clock.now += 1.0
        return turn_result(1, "signal" if task == 1 else "budget")

    tasks = [Shared("dense", 4e6 - index, (1.0,)) for index in range(4)]
    results, turns, stopped = shared(
        Scheduler(tasks), 100.0, one_turn, lambda _: True, between=lambda results, _: seen.append(len(results))
    )
    assert stopped and sorted(results) == [0, 1] and len(turns) == 2
    assert seen == [1], "what lies between turns is done after whole ones"


def two_layers() -> Graph:
    """The same softmax twice, around layers of the same width."""
    g = GraphBuilder()
    x = g.input("x", (B, T, 16))
    weight = g.constant(np.full((16, 16), 0.1, np.float32))
    for _ in range(2):
        x = decompositions.softmax(g, g.add("contract", x, weight, labels="btk,kn->btn"))
    return g.finish(x)


class Counting(ProfiledPrices):
    """Counts what is really timed."""

    timed = 0

    def _time(self, groups: Any) -> None:
        Counting.timed += len(groups)
        super()._time(groups)


@pytest.mark.long
def test_equal_groups_are_timed_once_and_never_again_in_a_resumed_run(monkeypatch, tmp_path):
    store, graph = MemoryStore(), two_layers()
    model = model_task("net", graph, "batch=1..4;seq=1..64", tmp_path / "net.onnx")

    def run(resume: bool) -> tuple[GroupRecords, Any]:
        Counting.timed = 0
        records = GroupRecords(store, CORE, resume=resume)
        model.price(0, Counting(model.prices.requests, ENOUGH_S, records))
        (task,) = reassembled([model], 0)
        return records, task

    records, task = run(resume=False)
    report, stored_records = task.report, list(store.records())
    assert records.reused == 0 and report.measured > Counting.timed > 0, "two layers, one measurement"
    assert {record.trial.kernel for record in stored_records} == {KERNEL}
    keys = [record.trial.key() for record in stored_records]
    assert len(keys) == len(set(keys))
    records, again = run(resume=True)
    assert (records.reused, Counting.timed, again.report.measured) == (len(stored_records), 0, report.measured)
    assert len(list(store.records())) == len(stored_records)
    assert [type(step) for step in again.steps] == [type(step) for step in task.steps]
    run(resume=False)
    assert Counting.timed > 0, "another session measures for itself"


def groups_of(models: Sequence[ModelTask], store: RecordStore, *, resume: bool = False, goes_on: bool = True) -> GroupTasks:
    request: Any = SimpleNamespace(times_groups=True, resume=resume, models=models)
    lab: Any = SimpleNamespace(store=store, device=CORE, time_groups=timed_here)
    return GroupTasks(request, lab, lambda *_: goes_on, "net")


def two_models(folder: Path) -> list[ModelTask]:
    first = model_task("net", two_layers(), "batch=1..4;seq=1..64", folder / "net.onnx")
    second = model_task("other", two_layers(), "batch=1..4;seq=1..64", folder / "other.onnx", len(first.written.functions))
    return [first, second]


def test_the_groups_of_each_model_are_a_task_beside_the_ops(tmp_path):
    models = two_models(tmp_path)
    tasks = groups_of(models, MemoryStore()).tasks
    assert [(task.name, task.calls) for task in tasks] == [("groups of net", (1.0, 0.0)), ("groups of other", (0.0, 1.0))]
    us = float(np.mean(groups_us(models[0])))
    assert tasks[0].flops == pytest.approx(us * models[0].prices.rates.flops), "operations of products that take as long"


def test_a_turn_times_groups_of_one_model_until_all_that_its_plan_wants_have_times(tmp_path):
    store = MemoryStore()
    groups = groups_of(two_models(tmp_path), store)
    result = groups.run_turn(0, ENOUGH_S)
    first, other = groups.models
    assert (result.stopped, result.timings, result.tuned) == ("exhausted", first.report.measured, None)
    assert result.timings > 0 and result.us == pytest.approx(float(np.mean(groups_us(first))))
    assert other.report.measured == 0 and first.prices.are_times and not other.prices.are_times
    written = [name for model in groups.models for name in model.written.functions]
    assert len(written) == len(set(written)), "groups of the model behind it are numbered anew"


def test_a_turn_without_time_measures_nothing_and_a_later_one_goes_on(tmp_path):
    groups = groups_of(two_models(tmp_path), MemoryStore())
    none = groups.run_turn(0, 0.0)
    assert (none.stopped, none.timings) == ("budget", 0)
    assert groups.run_turn(0, ENOUGH_S).stopped == "exhausted" and groups.models[0].report.measured > 0


def test_a_resumed_run_begins_with_the_times_of_the_one_before(tmp_path):
    store = MemoryStore()
    timed = groups_of(two_models(tmp_path), store).run_turn(0, ENOUGH_S)
    count = len(list(store.records()))
    again = groups_of(two_models(tmp_path), store, resume=True)
    assert timed.timings > 0 and again.reused > 0 and len(list(store.records())) == count
    # Where all times are known at once, a plan may ask for others of them than while they became known.
    for model in again.models:  # equal groups of another model have times, too
        groups = [step.graph for step in model.steps if isinstance(step, Loops)]
        assert model.report.measured > 0 and model.prices.are_times
        assert groups and all(model.prices.knows(kernel_of(graph)) for graph in groups)


def test_a_turn_that_is_told_to_stop_says_so(tmp_path):
    assert groups_of(two_models(tmp_path), MemoryStore(), goes_on=False).run_turn(0, ENOUGH_S).stopped == "signal"


def test_the_groups_that_take_most_of_a_request_get_most_of_the_later_turns(monkeypatch):
    clock = Clock(monkeypatch)
    spent = [0.0, 0.0]

    def run_turn(index: int, seconds: float) -> TurnResult:
        clock.now += seconds
        spent[index] += seconds
        return TurnResult((10.0, 900.0)[index] / (1 + 0.01 * spent[index]), 1, "budget")

    tasks = [Shared("dense", 1e6, (1.0,), "dense_n8_k8"), Shared("groups", 1e6, (1.0,), "groups of net")]
    _, turns, _ = shared(Scheduler(tasks), 300.0, run_turn, lambda _: True)
    assert spent[1] > 0.6 * sum(spent)
    assert {turn.task for turn in turns} == {"dense_n8_k8", "groups of net"}


def test_a_groups_name_is_its_meaning():
    def scaled(name: str, by: float, wide: Any = T) -> NamedGroup:
        g = GraphBuilder()
        return NamedGroup(g.finish(g.map("mul", g.input(name, (B, wide)), by)))

    assert scaled("x", 2.0).name == scaled("y", 2.0).name != scaled("x", 3.0).name
    assert scaled("x", 2.0, 7).dims == ["batch"]
    assert scaled("x", 2.0, 7).trial(REQUESTS[0]).shape.as_dict() == {"batch": 2}


def test_times_by_the_text_of_a_groups_c_count_on_under_its_name():
    g = GraphBuilder()
    group = NamedGroup(g.finish(g.map("exp", g.input("x", (B, T)))))
    store = MemoryStore()
    GroupRecords(store, CORE).keep([(group.trial(request, group.text_name), 7.0) for request in REQUESTS])
    records = GroupRecords(store, CORE, resume=True)
    assert records.known(group.trial(REQUESTS[0])) is None
    records.rename(group, [*REQUESTS, *REQUESTS])
    assert [records.known(group.trial(request)) for request in REQUESTS] == [Timed(samples_us=(7.0,))] * len(REQUESTS)
    records.rename(group, REQUESTS)
    assert len(list(store.records())) == 2 * len(REQUESTS), "each is stored once"


def test_without_time_left_a_kernel_counts_with_what_is_expected_of_it(monkeypatch):
    monkeypatch.setattr(measured_module.ProfiledPrices, "_time", lambda *_: pytest.fail("there is no time"))
    prices = ProfiledPrices(REQUESTS, 0.0)
    plan = IlpPartitioner(two_layers(), prices)
    assert plan.steps and plan.report.measured == 0 and not prices.by_bounds
    settled = plan.windows[0].candidates[0]
    assert settled.us == pytest.approx(np.mean(settled.usual_us))
    assert plan.report.bound_us == pytest.approx(BOUND * plan.report.chosen_us)


def test_a_recurrent_layer_is_priced_by_what_it_computes_and_never_timed_on_made_up_lengths():
    g, wide = GraphBuilder(), 64
    x = g.input("x", (T, B, wide))
    r, b, p = (g.constant(np.ones(shape, np.float32)) for shape in ((wide, wide), (wide,), (3 * wide,)))
    state = g.add("broadcast", g.constant(0, "fp32"), shape=(B, wide))
    lengths = g.input("lengths", (B,), "int64")
    activations = (("tanh", 0.0, 0.0),)
    graph = g.finish(g.add("recurrent", x, r, b, p, state, state, lengths, kind="rnn", hidden=wide, activations=activations))
    (own,) = (step.graph for step in Greedy(graph).steps if isinstance(step, Loops) and step.output in graph.outputs)
    small, large = Counting(REQUESTS, 60.0).each_us(own)
    assert large > 5 * small, "six and a half times as many tokens"
    Counting.timed = 0
    Counting(REQUESTS, 60.0).measure([own])
    assert Counting.timed == 0, "and none of it has a time"
