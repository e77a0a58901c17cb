"""Lanes: devices ask one scheduler for turns, each for its own tasks, and what one brings counts for all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from haotuner.search.scheduler_lanes import lanes
from haotuner.search.task import now
from haotuner.search.task_scheduler import Scheduler, Shared, TurnResult, shared


def tasks() -> list[Shared]:
    """Two ops on two devices."""
    return [
        Shared(f"dense {device}", flops, tuple(float(at == device) for at in (0, 1)), f"op{flops:.0f} on {device}")
        for device in (0, 1)
        for flops in (1e6, 4e6)
    ]


def test_a_lane_gets_its_own_tasks_by_its_own_numbers() -> None:
    scheduler = Scheduler(tasks())
    first, second = lanes(scheduler, [2, 2])
    assert (first.next(), second.next()) == (1, 1), "the largest first, on each device"
    second.tell(1, 8.0)
    second.tell(0, 3.0, finished=True)
    assert scheduler.times == [[], [], [3.0], [8.0]] and scheduler.done == {2}
    assert second.done == {0} and first.done == set() and second.next() == 1
    assert [task.name for task in second.tasks] == ["op1000000 on 1", "op4000000 on 1"]
    assert first.latencies()[1] == second.latencies()[1] == 11.0


def test_devices_take_turns_at_once_and_end_by_themselves() -> None:
    scheduler = Scheduler(tasks())

    def device(lane: object) -> int:
        results, turns, stopped = shared(
            lane,  # type: ignore[arg-type]
            now() + 60.0,
            lambda index, seconds: TurnResult(10.0 / (1 + index), 4, "converged"),
            lambda words: True,
        )
        assert not stopped and sorted(results) == [0, 1]
        return len(turns)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(device, lanes(scheduler, [2, 2]))) == [2, 2]
    assert scheduler.done == {0, 1, 2, 3}
