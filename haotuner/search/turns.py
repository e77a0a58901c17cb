"""One budget shared by tasks in turns. A turn is a run of the task's own search, which begins with all that is recorded.

So a turn needs nothing of the one before but its records, and a run that was killed goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from haotuner.search.call_times import traffic_us
from haotuner.search.clock import now
from haotuner.search.task import Tuned
from haotuner.search.task_scheduler import Scheduler
from haotuner.words.device import Device

FIRST_SHARE = 0.5  # of the budget, for the first turns of all tasks
LEAST_TURN_S = 6.0  # less goes into what a search begins with
TURNS = 3.0  # later turns that the rest would give each task, if all got as many
LAST_SHARE = 0.3  # of a turn: what is left of the budget is then given to nobody

OneTurn = Callable[[int, float, Sequence[Tuned]], Tuned]  # task, its seconds, what others came to
Told = Callable[[str], bool]  # words for people; False: to stop


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the page: who had it, for how long, what a call of the task takes since."""

    task: int
    seconds: float
    us: float


def shared(
    scheduler: Scheduler, device: Device, budget_s: float, one_turn: OneTurn, told: Told, threads: int = 1
) -> tuple[list[Tuned], list[Turn]]:
    """Every task's result, in order, and the turns that led to it. A task always gets a plan."""
    begin, count = now(), len(scheduler.tasks)
    found: dict[int, Tuned] = {}
    turns: list[Turn] = []
    stopped = False
    while (place := scheduler.next()) is not None:
        first, left = place not in found, budget_s - (now() - begin)
        usual = max(LEAST_TURN_S, budget_s * (1 - FIRST_SHARE) / (TURNS * count))
        if first:
            behind = count - len(found)
            seconds = max(0.0, left - budget_s * (1 - FIRST_SHARE)) / behind
        elif stopped or left < LAST_SHARE * usual:
            break
        else:
            seconds = min(usual, left)
        started = now()
        result = one_turn(place, seconds, list(found.values()))
        if first or result.timings >= found[place].timings:  # a turn that was cut short may know less
            found[place] = result
        stopped = stopped or result.stopped == "signal"
        us = traffic_us(result, device, threads)
        scheduler.tell(place, us, finished=result.stopped in ("converged", "exhausted"))
        turns.append(Turn(place, now() - started, us))
        stopped = not told(_words(scheduler, len(found))) or stopped
    return [found[place] for place in range(count)], turns


def _words(scheduler: Scheduler, begun: int) -> str:
    """How far it is, for people."""
    latencies = scheduler.latencies()
    said = f"{begun} of {len(scheduler.tasks)} tasks begun, {len(scheduler.done)} done"
    if latencies and all(math.isfinite(one) for one in latencies):
        said += f", products {' + '.join(f'{one / 1e3:.2f}' for one in latencies)} ms expected"
    return said
