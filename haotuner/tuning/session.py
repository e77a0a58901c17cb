"""Tuning session, from a request to a pack: tune every op, build one library, verify it, publish it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haotuner.backends.backend import CACHE_WORD, DEVICE_CODE, DEVICE_WORD, OBJECTS_WORD, Backend
from haotuner.backends.index import backend_for, own_device
from haotuner.errors import UsageError
from haotuner.host.processor import usable_cores
from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.measure.measurer import Measurer
from haotuner.measure.predictions_only import PredictionsOnly
from haotuner.records import open_store
from haotuner.search.policies.names import TEMPLATE
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.traffic import arrivals_of
from haotuner.tuning.initial_model import NOTHING, Starts
from haotuner.tuning.op_tasks import SIGNAL, Watch, Whole, stopped_of, tune_every
from haotuner.tuning.plan_facts import row_of
from haotuner.tuning.publisher import OBJECTS, Publisher, served
from haotuner.tuning.request import Request, ops_asked
from haotuner.tuning.schedule_search import check_search, read_template
from haotuner.tuning.strategies import Tuned

if TYPE_CHECKING:
    from haotuner.partition.tasks import ModelTask

FEW_BUILDERS, MOST_BUILDERS = 2, 14  # a process holds some 0.5 GB
SHORT_S = 10.0  # a run of less has one process that compiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report that `haotuner tune` prints; ``document`` is its JSON form (README, *JSON*)."""

    pack: Path
    device: Device
    threads: tuple[int, ...]  # counts that the pack has plans for
    tuned: tuple[Tuned, ...]
    models: tuple[ModelTask, ...]  # as the pack holds them
    seconds: float
    stopped: str
    document: Mapping[str, Any]
    start: str = ""  # which model the search began with, in words

    @property
    def complete(self) -> bool:
        """True if every op has a measured plan, a model without ops was timed, and no signal cut the run short."""
        return self.stopped != SIGNAL and all(t.measured for t in self.tuned) and not self.document["unverified"]


def tune(
    op: str | Op | Sequence[str | Op] | None = None,
    shapes: str | Sequence[str] = "dynamic",
    *,
    device: str = "cpu",
    budget_s: float | None = None,
    out: str | Path = "pack",
    threads: int | Sequence[int] = (),
    db: str | None = None,
    seed: int = 0,
    resume: bool = False,
    weights: str = "cold",
    model: str | Path | None = None,
    zero_measure: bool = False,
    batch_invariant: bool = False,
    search: str = "",
    template: str | Path | None = None,
) -> Report:
    """Tune ops for a range of shapes, or for a trace, and write a pack; the Python form of `haotuner tune`.

    ``op``: None takes those that a trace names, else the default workload. ``shapes``: as the command line has it; several
    ranges where ops have different axes.
    ``threads``: a count or several, one plan for each; 0 is all cores, none means one thread and all cores.

    ``batch_invariant``: promise, checked before publishing, that results do not depend on how many rows come together.

    ``search``: the policy that explores the schedules of generated kernels: evolution, beam, template or random.
    ``template``: a TOML file of the knobs that it may turn, and of their values.

    ``model``: a file to start from, ``"none"`` for a start from cold, None for what ships.

    Raises UsageError, UnknownDevice, NothingLegal, EnvironmentMissing or RecordsUnusable, each with what to do.
    """
    text: object = shapes  # who calls may not check types
    if not isinstance(text, (str, list, tuple)) or not all(isinstance(text, str) for text in text):
        raise UsageError(
            f"shapes is a {type(text).__name__}: write a text such as 'm=1..4096', several, or name a trace file"
        )
    counts = (threads,) if isinstance(threads, int) else tuple(threads)
    arrivals = arrivals_of(*([shapes] if isinstance(shapes, str) else shapes))
    return produce(
        Request(
            ops=ops_asked([op] if isinstance(op, (str, Op)) else op, None, arrivals, device),
            arrivals=arrivals,
            device=device,
            threads=counts,
            budget_s=budget_s,
            out=Path(out),
            db=db,
            seed=seed,
            resume=resume,
            weights=weights,
            model=None if model is None else str(model),
            zero_measure=zero_measure,
            batch_invariant=batch_invariant,
            search=search or ("" if template is None else TEMPLATE),
            template=None if template is None else read_template(Path(template)),
            environment=dict(os.environ),
        )
    )


def produce(request: Request, watch: Watch = lambda *_: True) -> Report:
    """Carry out a request. A pack is published only after it was verified in a process of its own.

    Of whole models the first pack comes early, and better ones in its place; the budget holds for all of it.
    """
    begin = time.monotonic()
    request.check()
    device = own_device(request.device, measure=not request.zero_measure, cache_dir=request.cache)
    backend = backend_for(device, request.device)
    request.check_models(device)
    request.check_memory(device)
    check_search(request, backend, device)
    backend.check(device, request.device, measures=not request.zero_measure)
    threads = backend.threads(request.threads, device)
    starts = Starts(request.model, device, seed=request.seed)
    start = starts.of(backend.searched(request.ops[0], device)[0].name) if request.ops else NOTHING
    with _laboratory(request, backend, device) as lab:
        publisher = Publisher(request, device, lab, start, watch, begin)
        if request.models and isinstance(lab, DeviceMeasurer):
            from haotuner.tuning.model_tasks import tune_models

            whole = tune_models(request, lab, threads, starts.model, watch, publisher)
        else:
            whole = Whole(tune_every(request, lab, threads, starts.model, watch), request.models)
            if any(model.open_forms for model in request.models):
                from haotuner.tuning.form_decision import decided

                whole = replace(whole, models=decided(request.models, whole.tuned, device, threads[0]))
        tuned, stopped = served(whole.tuned, whole.models), whole.stopped or stopped_of(whole.tuned)
        unverified = request.zero_measure or (
            bool(request.models and tuned) and not any(tuned_op.measured for tuned_op in tuned)
        )
        document = publisher.publish(tuned, whole.models, unverified=unverified, stopped=stopped)
        ops, reused, failures = [row_of(t, lab) for t in tuned], lab.reused + whole.reused, lab.failures
    seconds = time.monotonic() - begin
    turns = [[turn.task, round(turn.seconds, 3), turn.us] for turn in whole.turns]
    report = {
        "pack": str(request.out),
        "device": device.id,
        "seconds": round(seconds, 3),
        "stopped": stopped,
        "reused": reused,
        "failures": failures,
        "started_from": start.document,
        "unverified": document["unverified"],
        "verification": document["verification"],
        "ops": ops,
        **({"turns": turns} if turns else {}),
        **({"kept": publisher.reason_kept} if publisher.reason_kept else {}),
    }
    return Report(
        pack=request.out,
        device=device,
        threads=tuple(threads),
        tuned=tuple(tuned),
        models=tuple(whole.models),
        seconds=seconds,
        stopped=stopped,
        document=report,
        start=starts.words,
    )


@contextmanager
def _laboratory(request: Request, backend: Backend, device: Device) -> Iterator[Measurer]:
    """Measurer that compiles, too, closed at the end; with --zero-measure it only compiles and there are no records."""
    environment = {**request.environment, DEVICE_WORD: request.device}
    if request.cache is not None:
        environment[CACHE_WORD] = str(request.cache / DEVICE_CODE)
        environment[OBJECTS_WORD] = str(request.cache / OBJECTS)
    if request.zero_measure:
        with closing(PredictionsOnly(backend, device, environment=environment)) as nothing:
            yield nothing
        return
    with closing(open_store(request.records)) as store:
        what = f"{' '.join(op.name for op in request.ops)} {request.shapes}"
        lab = DeviceMeasurer(
            device, store, environment=environment, resume=request.resume, seed=request.seed, what=what,
            builders=builders_for(request.budget_s, device, usable_cores()),
        )  # fmt: skip
        with closing(lab):
            lab.start()
            yield lab


def builders_for(budget_s: float | None, device: Device, cores: int) -> int:
    """Processes that compile: a second one starts for two seconds, which a short run never gets back.

    What compiles for another device than the CPU disturbs no measurement: all cores may but the tuner's and the timer's.
    """
    if budget_s is not None and budget_s < SHORT_S:
        return 1
    return FEW_BUILDERS if device.kind == "cpu" else max(FEW_BUILDERS, min(MOST_BUILDERS, cores - 2))
