"""Task scheduler: one budget shared by tasks in turns; the turn that promises most comes next.

Task scheduler: the task whose next turn promises most for the whole gets it (Ansor, OSDI 2020, section 6).

Source: Zheng et al., "Ansor: Generating High-Performance Tensor Programs for Deep Learning", the gradient of section 6.2:

    df/dt_i = df/dg_i * (alpha * (g_i(t_i) - g_i(t_i - dt)) / dt
                         + (1 - alpha) * min(-g_i(t_i) / t_i, beta * C_i / max_k V_k - g_i(t_i)))

``g_i``: the time of task i after ``t_i`` turns; the backward window dt; the guess that all of it vanishes in as many turns
again; and ``C_i / max V_k``: its time at the best speed of the tasks like it (the same kind, about as many operations).

One budget shared by tasks in turns. A task is an op, or the groups of a model: whoever gives a turn knows which.

A turn begins with all that is recorded. So it needs nothing of the one before but its records, and a run that was killed
goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from haotuner.search.task import Tuned, now
from haotuner.search.task_objectives import Objective

ALPHA, BETA, WINDOW = 0.2, 2.0, 3  # as Ansor ships them
ALIKE = 1.618  # tasks whose operations lie in one power of it are alike
GRADIENT, ROUND_ROBIN = "gradient", "round-robin"
STRATEGIES = (GRADIENT, ROUND_ROBIN)
GAIN = 0.003  # less is noise, and no improvement to early stopping


@dataclass(frozen=True, slots=True)
class Shared:
    """A task of the budget. ``calls``: how often a request of each model calls it; ``flops``: of one call, the mean.

    ``name``: of the op; of a model's groups their words.
    """

    kind: str
    flops: float
    calls: tuple[float, ...]
    name: str = ""

    @property
    def alike(self) -> tuple[str, int]:
        """Tasks of one of these learn from each other's speed."""
        return self.kind, math.floor(math.log(max(self.flops, 1.0), ALIKE))


@dataclass(slots=True)
class Scheduler:
    """Told what each turn brought; says whose turn is next. Deterministic.

    ``early_stopping``: a task is left alone after so many turns without a better time; 0: never.
    """

    tasks: Sequence[Shared]
    objective: Objective = field(default_factory=Objective)
    strategy: str = GRADIENT
    early_stopping: int = 0
    alpha: float = ALPHA
    beta: float = BETA
    window: int = WINDOW
    times: list[list[float]] = field(init=False)  # us of a call after each turn, the best so far
    done: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.times = [[] for _ in self.tasks]

    def tell(self, task: int, us: float, *, finished: bool = False) -> None:
        """A turn of a task ended with this time of a call; ``finished``: it has nothing more to try."""
        self.times[task].append(min([us, *self.times[task][-1:]]))
        if finished:
            self.done.add(task)

    def next(self, among: Collection[int] | None = None) -> int | None:
        """The task of the next turn; None when none promises anything. First each gets one, the largest first.

        ``among``: the tasks that a turn can be given to, None for all.
        """
        every = [index for index in range(len(self.tasks)) if index not in self.done and (among is None or index in among)]
        fresh = [index for index in every if not self.times[index]]
        if fresh:
            return max(fresh, key=lambda index: (self._work(index), -index))
        open_ = [index for index in every if not self._stale(index)]
        if self.strategy == ROUND_ROBIN:
            return min(open_, key=lambda index: (len(self.times[index]), index), default=None)
        promises = {position: self.promise(position) for position in open_}
        best = max(open_, key=lambda index: (promises[index], -index), default=None)
        return best if best is not None and promises[best] > 0 else None

    def latencies(self) -> list[float]:
        """Microseconds of each model by the best times so far; infinite while a task of it has none."""
        models = len(self.tasks[0].calls) if self.tasks else 0
        now = [times[-1] if times else math.inf for times in self.times]
        return [sum(t.calls[m] * us for t, us in zip(self.tasks, now, strict=True) if t.calls[m]) for m in range(models)]

    def promise(self, index: int) -> float:
        """Expected decrease of the objective by the next turn of a task: -df/dt_i; never negative."""
        slopes = self.objective.slopes(self.latencies())
        slope = sum(s * calls for s, calls in zip(slopes, self.tasks[index].calls, strict=True))
        times = self.times[index]
        now, turns = times[-1], len(times)
        if not math.isfinite(now):
            return 0.0
        back = min(self.window, turns - 1)
        gained = (times[-1 - back] - now) / back if back and math.isfinite(times[-1 - back]) else 0.0
        hoped = min(-now / turns, self.beta * self._reachable(index) - now)
        return max(0.0, slope * (self.alpha * gained - (1 - self.alpha) * hoped))

    def _reachable(self, index: int) -> float:
        """Microseconds of a call at the best speed of the tasks like it, itself among them."""
        task = self.tasks[index]
        speeds = [
            other.flops / times[-1]
            for other, times in zip(self.tasks, self.times, strict=True)
            if other.alike == task.alike and times and times[-1] > 0
        ]
        return task.flops / max(speeds) if speeds and max(speeds) > 0 else 0.0

    def _stale(self, index: int) -> bool:
        times, turns = self.times[index], self.early_stopping
        return bool(turns) and len(times) > turns and times[-1] > times[-1 - turns] * (1 - GAIN)

    def _work(self, index: int) -> float:
        return sum(self.tasks[index].calls) * self.tasks[index].flops


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


class GivesTurns(Protocol):
    """A scheduler, or a device's part of one."""

    @property
    def tasks(self) -> Sequence[Shared]:
        """Tasks that turns are given to, by their number."""
        ...

    @property
    def done(self) -> Collection[int]:
        """Tasks that have nothing more to try."""
        ...

    def next(self) -> int | None:
        """The task of the next turn; None when none promises anything."""
        ...

    def tell(self, task: int, us: float, *, finished: bool = False) -> None:
        """A turn of a task ended with this time of a call."""
        ...

    def latencies(self) -> list[float]:
        """Microseconds of each model by the best times so far."""
        ...


def shared(
    scheduler: GivesTurns,
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


def _products(scheduler: GivesTurns) -> str:
    """Expected times of the products of each model, in words; else empty."""
    latencies = scheduler.latencies()
    known = latencies and all(math.isfinite(latency) for latency in latencies)
    return f"products {' + '.join(f'{latency / 1e3:.2f}' for latency in latencies)} ms expected" if known else ""
