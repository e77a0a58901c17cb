"""All ops of a request, tuned: one after the other in even shares of time, or tasks of models by what each promises."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from haotuner.cost.model import CostModel
from haotuner.measure.laboratory import Laboratory
from haotuner.request import Request
from haotuner.search.task_objectives import Objective
from haotuner.search.task_scheduler import Scheduler
from haotuner.search.turns import Turn, shared
from haotuner.tuning import Task, Tuned
from haotuner.tuning import tune as tune_op
from haotuner.words.cold import state_of
from haotuner.words.op import Op
from haotuner.words.record import Record

SIGNAL = "signal"  # why a run stopped that was told to
ZERO_MEASURE = "zero-measure"  # why a run stopped that was told to measure nothing

Watch = Callable[[str, str, Record | None], bool]  # op, phase, record -> go on?


def tune_every(
    request: Request, lab: Laboratory, threads: tuple[int, ...], model: Callable[[str], CostModel | None], watch: Watch
) -> tuple[list[Tuned], list[Turn]]:
    """What came of each op, in the request's order; of models also whose turn it was, turn by turn.

    ``model``: what a family's search starts from, by the family's name.
    """
    ops, backend = request.ops, lab.backend

    def one(place: int, seconds: float, before: Sequence[Tuned]) -> Tuned:
        op = ops[place]
        task = Task(
            op=op,
            traffic=request.traffic(op),
            threads=threads,
            cache=state_of(op, request.weights),
            budget_s=seconds,
            seed=request.seed,
            one_order=request.batch_invariant,
            search=request.search,
            # Told to stop, an op that was not begun is planned with the kernels that the pack has anyway.
            among=before[-1].kernels if before and stopped_of(before) == SIGNAL else (),
        )
        families = backend.searched(op, lab.device)
        found = tune_op(task, lab, families, _named(watch, op), model(families[0].name))
        return replace(found, stopped=ZERO_MEASURE) if request.zero_measure else found

    if request.models and not request.zero_measure:
        from haotuner.orchestrate.tasks import shared_tasks

        scheduler = Scheduler(
            shared_tasks(request.models, ops), Objective.parse(request.objective), request.strategy, request.early_stopping
        )
        return shared(scheduler, lab.device, request.seconds, one, lambda words: watch("", words, None), threads[0])
    budget, begin = 0.0 if request.zero_measure else request.seconds, time.monotonic()
    tuned: list[Tuned] = []
    for place in range(len(ops)):
        left = budget - (time.monotonic() - begin)
        tuned.append(one(place, max(0.0, left) / (len(ops) - place), tuned))  # time an op saves is the next one's
    return tuned, []


def stopped_of(tuned: Sequence[Tuned]) -> str:
    """Why a run ended: the first of the reasons of its ops that says most."""
    reasons = {t.stopped for t in tuned}
    return next((r for r in (SIGNAL, ZERO_MEASURE, "budget", "converged") if r in reasons), "exhausted")


def _named(watch: Watch, op: Op) -> Callable[[str, Record | None], bool]:
    return lambda phase, record: watch(op.name, phase, record)
