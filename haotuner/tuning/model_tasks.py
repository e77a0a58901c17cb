"""Whole models, tuned in one budget: a first pack early, better ones in its place, the last when the budget ends.

A first pack holds first kernels, as predicted, and plain loops. Then tasks have turns (``search/task_scheduler.py``):
every op, and the generated groups of every model (``group_tasks.py``). Whoever kills the run finds the last pack that was
published, and all records: ``--resume`` goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from haotuner.cost.model import CostModel
from haotuner.errors import PackInvalid
from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.measure.predictions_only import PredictionsOnly
from haotuner.partition.cost_estimate import predicted_us
from haotuner.partition.tasks import ModelTask, shared_tasks
from haotuner.search.cost_extrapolation import traffic_us
from haotuner.search.task import Selections
from haotuner.search.task_scheduler import Results, Scheduler, TurnResult, shared
from haotuner.spec.device import Device
from haotuner.spec.record import Record
from haotuner.tuning.form_decision import decided
from haotuner.tuning.group_tasks import GroupTasks
from haotuner.tuning.op_tasks import SIGNAL, Watch, Whole, stopped_of, tune_every, tune_one
from haotuner.tuning.publisher import Plans, Publisher
from haotuner.tuning.request import Request
from haotuner.tuning.strategies import Tuned

EARLY_FROM_S = 60.0  # a budget of less ends so soon that its last pack is early enough
RACE_OF_FORMS_S = 6.0  # of the budget of a model that has other forms: they are raced before one is served
EVERY_S, PUBLISHING = 60.0, 12.0  # between two packs at least: so long, and so many times what publishing takes
Model = Callable[[str], CostModel | None]


def tune_models(
    request: Request, lab: DeviceMeasurer, threads: tuple[int, ...], model: Model, watch: Watch, publisher: Publisher
) -> Whole:
    """Result of the request's models. The budget is for measuring: reading, packs and checks are not charged to it."""
    guesses = _PredictedTimes(request, lab, threads, model, watch)
    if request.seconds >= EARLY_FROM_S and not publisher.holds(request.models):
        try:
            publisher.publish(guesses.every(), request.models, unverified=True, stopped="budget", what="a first pack")
            watch("", publisher.reason_kept or f"a first pack lies in {request.out}", None)
        except PackInvalid as error:  # kernels that nobody ever ran; tuning leaves out those that fail
            watch("", f"no first pack: {error}", None)
    publisher.predicted = lambda: Plans(guesses.every(), request.models)
    has_forms = any(model.open_forms for model in request.models)
    until = time.monotonic() + request.seconds - (RACE_OF_FORMS_S if has_forms else 0.0)
    name = _first(request)
    groups = GroupTasks(request, lab, watch, name)
    if not watch(name, "search", None):
        every = guesses.every()
        return Whole(every, decided(groups.models, every, lab.device, threads[0]), (), SIGNAL, groups.reused)
    ops = len(request.ops)

    def run_turn(index: int, seconds: float) -> TurnResult:
        if index >= ops:
            return groups.run_turn(index - ops, seconds)
        op = request.ops[index]
        tuned = tune_one(request, lab, threads, model, watch, op, seconds, selections=guesses.selections)
        return TurnResult(traffic_us(tuned, lab.device, threads[0]), tuned.timings, tuned.stopped, tuned)

    def between(results: Results, left: float) -> None:
        since = time.monotonic() - publisher.when
        due = since > max(EVERY_S, PUBLISHING * publisher.seconds)
        if due and publisher.seconds and left > 3 * publisher.seconds:
            tuned = guesses.filled(_tuned(results))
            publisher.publish(tuned, groups.models, unverified=False, stopped=stopped_of(tuned), what="a better pack")
            watch("", publisher.reason_kept or f"a better pack lies in {request.out}", None)

    tasks = [*shared_tasks(groups.models, request.ops), *groups.tasks]
    results, turns, stopped = shared(
        Scheduler(tasks, request.goal, request.strategy, request.early_stopping),
        until,
        run_turn,
        lambda words: watch("", words, None),
        between,
        lambda results: _expected(groups.models, guesses.known(_tuned(results)), lab.device, threads[0]),
    )
    filled = guesses.filled(_tuned(results))
    race = None if stopped or not request.times_groups else partial(publisher.form_times, filled)
    models = decided(groups.models, filled, lab.device, threads[0], race)
    return Whole(filled, models, turns, SIGNAL if stopped else "", groups.reused)


def _tuned(results: Results) -> dict[int, Tuned]:
    """By their number, the ops that had a turn."""
    return {index: result.tuned for index, result in results.items() if result.tuned is not None}


def _first(request: Request) -> str:
    """Name beside the phases that belong to no op: the first op, or the first model where none has an op."""
    return (request.ops[0] if request.ops else request.models[0].written).name


def _expected(models: Sequence[ModelTask], tuned: Sequence[Tuned], device: Device, threads: int) -> str:
    """Expected time of each model, in words, the mean over the requests it is planned for; empty where nobody knows."""
    if not tuned:
        return ""
    every = [[time_us["all"] for time_us in predicted_us(model, tuned, device, threads).values()] for model in models]
    if not all(every):
        return ""
    return "a request takes " + " + ".join(f"{sum(us) / len(us) / 1e3:.2f}" for us in every) + " ms as expected"


class _PredictedTimes:
    """Predicted results of tasks before they had a turn: kernels and plans from predictions, made once and when wanted."""

    def __init__(self, request: Request, lab: DeviceMeasurer, threads: tuple[int, ...], model: Model, watch: Watch) -> None:
        self._request = replace(request, zero_measure=True, resume=False, search="", template=None)
        self._lab, self._threads, self._model, self._watch = lab, threads, model, watch
        self._predicted: dict[int, Tuned] = {}
        self.selections: dict[str, Selections] = {}  # by op: turns need not select again

    def every(self) -> list[Tuned]:
        """Of all tasks."""
        return self.filled({})

    def known(self, tuned: Mapping[int, Tuned]) -> list[Tuned]:
        """As ``filled``; none where guesses would have to be made for it."""
        every = [tuned.get(index) or self._predicted.get(index) for index in range(len(self._request.ops))]
        return [item for item in every if item is not None] if None not in every else []

    def filled(self, tuned: Mapping[int, Tuned]) -> list[Tuned]:
        """Results that were found, and a guess for every task of which nothing was."""
        lacking = [index for index in range(len(self._request.ops)) if index not in tuned and index not in self._predicted]
        if lacking:
            request = replace(self._request, ops=tuple(self._request.ops[position] for position in lacking))
            environment = dict(self._request.environment)
            with closing(PredictionsOnly(self._lab.backend, self._lab.device, environment=environment)) as nothing:
                made = tune_every(request, nothing, self._threads, self._model, self._predicting, self.selections)
            self._predicted |= {
                position: replace(tuned_op, stopped="budget") for position, tuned_op in zip(lacking, made, strict=True)
            }
        return [tuned.get(index) or self._predicted[index] for index in range(len(self._request.ops))]

    def _predicting(self, op: str, phase: str, record: Record | None) -> bool:
        return self._watch(op, "predict", record)
