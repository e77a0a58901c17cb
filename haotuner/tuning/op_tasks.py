"""All ops of a request, tuned one after the other in even shares of time; those of whole models: ``model_tasks.py``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from haotuner.cost.model import CostModel
from haotuner.measure.measurer import Measurer
from haotuner.search.task import Effort, Selections
from haotuner.search.task_scheduler import Turn
from haotuner.spec.cold import state_of
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record
from haotuner.tuning.request import Request
from haotuner.tuning.schedule_search import policy_of
from haotuner.tuning.strategies import Task, Tuned
from haotuner.tuning.strategies import tune as tune_op

if TYPE_CHECKING:
    from haotuner.partition.tasks import ModelTask

SIGNAL = "signal"  # why a run stopped that was told to
ZERO_MEASURE = "zero-measure"  # why a run stopped that was told to measure nothing

Watch = Callable[[str, str, Record | None], bool]  # op, phase, record -> go on?


@dataclass(frozen=True, slots=True)
class Whole:
    """Result of a request. ``models``: as its pack holds them; ``stopped``: why it ended, empty where its ops say so.

    ``reused``: measurements of generated groups that an earlier run had made.
    """

    tuned: Sequence[Tuned]
    models: Sequence[ModelTask] = ()
    turns: Sequence[Turn] = ()
    stopped: str = ""
    reused: int = 0


def tune_one(
    request: Request,
    lab: Measurer,
    threads: tuple[int, ...],
    model: Callable[[str], CostModel | None],
    watch: Watch,
    op: Op,
    seconds: float,
    among: tuple[MicroKernel, ...] = (),
    selections: dict[str, Selections] | None = None,
    effort: Effort | None = None,
) -> Tuned:
    """Result of one op in so many seconds. ``model``: what a family's search starts from, by the family's name.

    ``selections``: what earlier searches of the same request selected, by op. ``effort``: None for the usual one.
    """
    families = lab.backend.searched(op, lab.device)
    others = {family.name: model(family.name) for family in families[1:]}
    task = Task(
        op=op,
        traffic=request.traffic(op),
        threads=threads,
        cache=state_of(op, request.weights),
        budget_s=seconds,
        whole_s=0.0 if request.zero_measure else request.seconds / len(request.ops),
        seed=request.seed,
        one_order=request.batch_invariant,
        search=policy_of(request, op, lab.backend, lab.device),
        template=request.template,
        effort=effort or Effort(),
        among=among,
        others={name: known for name, known in others.items() if known is not None},
        selections=None if selections is None else selections.setdefault(op.name, Selections()),
    )
    tuned = tune_op(task, lab, families, _named(watch, op), model(families[0].name))
    return replace(tuned, stopped=ZERO_MEASURE) if request.zero_measure else tuned


def tune_every(
    request: Request,
    lab: Measurer,
    threads: tuple[int, ...],
    model: Callable[[str], CostModel | None],
    watch: Watch,
    selections: dict[str, Selections] | None = None,
) -> list[Tuned]:
    """Result of each op, in the request's order, in even shares of the budget; ``selections`` as of ``tune_one``.

    Once the whole budget is over, nothing more is measured: what is left is planned from records and predictions.
    """
    budget, begin = 0.0 if request.zero_measure else request.seconds, time.monotonic()
    tuned: list[Tuned] = []
    for index, op in enumerate(request.ops):
        left = budget - (time.monotonic() - begin)  # time an op saves is the next one's
        # Told to stop, an op that was not begun is planned with the kernels that the pack has anyway.
        among = tuned[-1].kernels if tuned and stopped_of(tuned) == SIGNAL else ()
        seconds = max(0.0, left) / (len(request.ops) - index)
        effort = None if seconds > 0 or request.zero_measure else Effort(least_kernels=0)
        tuned.append(tune_one(request, lab, threads, model, watch, op, seconds, among, selections, effort))
    return tuned


def stopped_of(tuned: Sequence[Tuned]) -> str:
    """Reason that a run ended: the first of the reasons of its ops that says most."""
    reasons = {t.stopped for t in tuned}
    return next((r for r in (SIGNAL, ZERO_MEASURE, "budget", "converged") if r in reasons), "exhausted")


def _named(watch: Watch, op: Op) -> Callable[[str, Record | None], bool]:
    return lambda phase, record: watch(op.name, phase, record)
