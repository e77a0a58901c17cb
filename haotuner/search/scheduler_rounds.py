"""One budget shared by tasks in turns. A task is an op, or the groups of a model: whoever gives a turn knows which.

A turn begins with all that is recorded. So it needs nothing of the one before but its records, and a run that was killed
goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from haotuner.search.clock import now
from haotuner.search.task import Tuned
from haotuner.search.task_scheduler import Scheduler

FIRST_SHARE = 0.5  # of the budget, for the first turns of all tasks
LEAST_TURN_S = 6.0  # less goes into what a search begins with
SHORTEST_TURN_S = 3.0  # of a budget that does not give every task as much
TURNS = 3.0  # later turns that the rest would give each task, if all got as many
LAST_SHARE = 0.3  # of a turn: what is left of the budget is then given to nobody
USUAL_OVER_S = 1.5  # by which a turn takes longer than it was given, before one has shown it


@dataclass(frozen=True, slots=True)
class TurnResult:
    """Result of a turn: microseconds of a call since, the times that this rests on, and why the turn ended.

    ``tuned``: of an op its plans; None of a model's groups.
    """

    us: float
    timings: int
    stopped: str  # as of ``Tuned``
    tuned: Tuned | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """A past turn: its task's name, how long it took, and microseconds of a call of the task since."""

    task: str
    seconds: float
    us: float


Results = Mapping[int, TurnResult]  # by task
RunTurn = Callable[[int, float], TurnResult]  # task, its seconds
Told = Callable[[str], bool]  # words for people; False: to stop
Between = Callable[[Results, float], None]  # after each turn: what there is, and the seconds left
Expected = Callable[[Results], str]  # what requests take by what there is, in words


def shared(
    scheduler: Scheduler,
    until: float,
    run_turn: RunTurn,
    notify: Told,
    between: Between = lambda *_: None,
    expected: Expected | None = None,
) -> tuple[dict[int, TurnResult], list[Turn], bool]:
    """Results of the tasks that had a turn, the turns, and whether it was told to stop. It ends at ``until`` (``now``).

    A turn takes somewhat longer than it is given: it builds what it began to build, and plans. So each is given less by what
    those before it took too long, and none is begun for which not even that is left.
    """
    begin, count = now(), len(scheduler.tasks)
    budget_s = until - begin
    results: dict[int, TurnResult] = {}
    turns: list[Turn] = []
    over = [USUAL_OVER_S]
    stopped = False
    while (task_index := scheduler.next()) is not None:
        first, left, late = task_index not in results, until - now(), sum(over) / len(over)
        usual = max(LEAST_TURN_S, budget_s * (1 - FIRST_SHARE) / (TURNS * count))
        if stopped or left < late:
            break
        if first:
            behind = count - len(results)
            even = max(0.0, left - budget_s * (1 - FIRST_SHARE)) / behind
            # Many tasks need all of a short budget, the largest alone of one so short that none would learn anything.
            seconds = max(even, min(left, LEAST_TURN_S, max(left / behind, SHORTEST_TURN_S)))
        elif left < LAST_SHARE * usual:
            break
        else:
            seconds = min(usual, left)
        seconds, started = max(0.0, seconds - late), now()
        result = run_turn(task_index, seconds)
        taken = now() - started
        over = [*over[-7:], max(0.0, taken - seconds)]
        if first or result.timings >= results[task_index].timings:  # a turn that was cut short may know less
            results[task_index] = result
        stopped = stopped or result.stopped == "signal"
        scheduler.tell(task_index, result.us, finished=result.stopped in ("converged", "exhausted"))
        turns.append(Turn(scheduler.tasks[task_index].name, taken, result.us))
        text = f"{len(results)} of {count} tasks begun, {len(scheduler.done)} done"
        more = _products(scheduler) if expected is None else expected(results)
        stopped = not notify(f"{text}, {more}" if more else text) or stopped
        if not stopped:
            paused = now()
            between(results, until - paused)
            until += now() - paused  # what is no turn is not charged to the budget
    return results, turns, stopped


def enough_s(tasks: int) -> float:
    """A budget in which each of so many tasks has a first turn of a length that teaches something."""
    return tasks * (LEAST_TURN_S + USUAL_OVER_S)


def _products(scheduler: Scheduler) -> str:
    """Expected times of the products of each model, in words; else empty."""
    latencies = scheduler.latencies()
    known = latencies and all(math.isfinite(latency) for latency in latencies)
    return f"products {' + '.join(f'{latency / 1e3:.2f}' for latency in latencies)} ms expected" if known else ""
