"""Whose turn it is: the gradient, its objectives, and that the whole gets better sooner than by turns all around."""

from __future__ import annotations

import math

import pytest

from haotuner.errors import UsageError
from haotuner.search.task_objectives import Objective
from haotuner.search.task_scheduler import Scheduler, Shared

TWO = [Shared("dense", 1e6, (1.0,)), Shared("conv2d", 1e6, (1.0,))]


def replayed(scheduler: Scheduler, curves: list[list[float]], turns: int) -> list[int]:
    """Turns of tasks whose times after each turn are known."""
    order: list[int] = []
    for _ in range(turns):
        task = scheduler.next()
        if task is None:
            break
        curve = curves[task]
        at = len(scheduler.times[task])
        scheduler.tell(task, curve[min(at, len(curve) - 1)], finished=at + 1 >= len(curve))
        order.append(task)
    return order


def test_every_task_has_a_first_turn_the_largest_first():
    tasks = [Shared("dense", 1e6, (1.0,)), Shared("dense", 1e6, (7.0,)), Shared("dense", 3e6, (1.0,))]
    assert replayed(Scheduler(tasks), [[9.0] * 5] * 3, 3) == [1, 2, 0]


def test_the_gradient_is_that_of_the_paper():
    scheduler = Scheduler([Shared("dense", 1000.0, (2.0,)), Shared("dense", 1000.0, (1.0,))])
    for us in (100.0, 90.0, 70.0):
        scheduler.tell(0, us)
    scheduler.tell(1, 20.0)
    backward = (100 - 70) / 2
    hoped = min(-70 / 3, 2 * 1000 / (1000 / 20) - 70)  # alike, and the other one is faster
    assert scheduler.promise(0) == pytest.approx(2 * (0.2 * backward - 0.8 * hoped))
    other = Scheduler([Shared("dense", 1000.0, (2.0,)), Shared("conv2d", 1000.0, (1.0,))])
    for us in (100.0, 90.0, 70.0):
        other.tell(0, us)
    other.tell(1, 20.0)
    assert other.promise(0) == pytest.approx(2 * (0.2 * backward + 0.8 * 70 / 3)), "another kind says nothing"


def test_what_still_improves_and_counts_gets_the_turns():
    flat, falling = [10.0] * 20, [100.0 / (turn + 1) for turn in range(20)]
    order = replayed(Scheduler(TWO), [flat, falling], 12)
    assert order.count(1) > order.count(0)
    often = Scheduler([Shared("dense", 1e6, (50.0,)), Shared("conv2d", 1e6, (1.0,))])
    assert replayed(often, [[10.0] * 20, [10.0] * 20], 12).count(0) > 6


def test_the_gradient_reaches_round_robins_end_in_fewer_turns():
    tasks = [Shared(f"k{index}", 1e6, (1.0,)) for index in range(6)]
    curves = [[1.0] * 10 for _ in range(5)] + [[100.0, 60, 40, 30, 25, 22, 21, 20, 20, 20]]
    ends = {}
    for strategy in ("gradient", "round-robin"):
        scheduler = Scheduler(tasks, strategy=strategy)
        ends[strategy] = next(n for n in range(1, 61) if replayed(scheduler, curves, 1) and scheduler.latencies()[0] <= 26)
    assert ends["gradient"] < ends["round-robin"]


def test_a_model_that_meets_its_target_is_not_fed():
    tasks = [Shared("dense", 1e6, (1.0, 0.0)), Shared("conv2d", 1e6, (0.0, 1.0))]
    scheduler = Scheduler(tasks, Objective.parse("latency=50us,50us"))
    assert replayed(scheduler, [[40.0] * 20, [90.0] * 20], 8)[2:] == [1] * 6
    met = Scheduler(tasks, Objective.parse("latency=1ms"))
    assert replayed(met, [[40.0] * 20, [90.0] * 20], 8) == [0, 1], "all targets met: nothing more to do"


def test_the_geometric_mean_counts_models_alike_however_long_they_take():
    tasks = [Shared("dense", 1e6, (1.0, 0.0)), Shared("conv2d", 1e6, (0.0, 1.0))]
    shares = {}
    for name in ("sum", "geomean"):
        order = replayed(Scheduler(tasks, Objective.parse(name)), [[1.0] * 99, [1000.0] * 99], 20)
        shares[name] = order.count(0)
    assert shares["sum"] == 1 and shares["geomean"] == 10
    assert Objective("geomean").value([1.0, 4.0], [4.0, 4.0]) == pytest.approx(-2.0)


def test_early_stopping_leaves_what_stands_still():
    scheduler = Scheduler(TWO, early_stopping=3)
    order = replayed(scheduler, [[10.0] * 99, [10.0] * 99], 99)
    assert len(order) == 8 and scheduler.next() is None


def test_a_task_that_never_got_a_time_is_left_alone():
    scheduler = Scheduler(TWO)
    assert replayed(scheduler, [[math.inf] * 9, [5.0] * 9], 5)[:2] == [0, 1]


@pytest.mark.parametrize(
    "text", ["", "mean", "sum=1ms", "latency", "latency=", "latency=5", "latency=-1ms", "latency=nanms"]
)
def test_wrong_objectives_say_what_to_write(text):
    with pytest.raises(UsageError, match="--objective"):
        Objective.parse(text)


def test_targets_are_one_or_one_a_model():
    with pytest.raises(UsageError, match="2 targets for 3 models"):
        Objective.parse("latency=1ms,2ms").check(3)
