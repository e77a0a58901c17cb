"""Tuning session, from a request to a pack: tune every op, build one library, verify it, publish it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from haotuner.backends.backend import CACHE_WORD, DEVICE_CODE, DEVICE_WORD, OBJECTS_WORD, Backend
from haotuner.backends.index import backend_for, own_device
from haotuner.errors import UnknownDevice, UsageError
from haotuner.host.processor import usable_cores
from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.measure.engine import DeviceEngine
from haotuner.measure.measurer import Measurer
from haotuner.measure.predictions_only import PredictionsOnly
from haotuner.records import open_store
from haotuner.records.patient import PatientStore
from haotuner.search.policies.names import TEMPLATE
from haotuner.spec.device import Device
from haotuner.spec.op import Op
from haotuner.spec.record import Record
from haotuner.spec.traffic import arrivals_of
from haotuner.tuning.initial_model import NOTHING, Starts
from haotuner.tuning.op_tasks import Watch, Whole, tune_every
from haotuner.tuning.publisher import OBJECTS, Publisher
from haotuner.tuning.request import Request, ops_asked
from haotuner.tuning.run import Report, Run
from haotuner.tuning.schedule_search import check_search, read_template

__all__ = ["Report", "builders_for", "prepared", "produce", "tune"]

FEW_BUILDERS, MOST_BUILDERS = 2, 14  # a process holds some 0.5 GB
SHORT_S = 10.0  # a run of less has one process that compiles


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


def produce(request: Request, watch: Watch = lambda *_: True, engine: DeviceEngine | None = None) -> Report:
    """Carry out a request. A pack is published only after it was verified in a process of its own.

    Of whole models the first pack comes early, and better ones in its place; the budget holds for all of it.
    ``engine``: of the device in a fleet; None: this host.
    """
    with prepared(request, watch, engine) as run:
        lab = run.lab
        if request.models and isinstance(lab, DeviceMeasurer):
            from haotuner.tuning.model_tasks import tune_models

            return run.finish(tune_models(request, lab, run.threads, run.starts.model, run.watch, run.publisher))
        whole = Whole(tune_every(request, lab, run.threads, run.starts.model, run.watch), request.models)
        if any(model.open_forms for model in request.models):
            from haotuner.tuning.form_decision import decided

            whole = replace(whole, models=decided(request.models, whole.tuned, run.device, run.threads[0]))
        return run.finish(whole)


@contextmanager
def prepared(request: Request, watch: Watch, engine: DeviceEngine | None = None) -> Iterator[Run]:
    """A run of a request, all of whose processes are ready; they end with it. Errors as of ``tune``."""
    begin = time.monotonic()
    request.check()
    device = (
        own_device(request.device, measure=not request.zero_measure, cache_dir=request.cache)
        if engine is None
        else engine.device
    )
    backend = backend_for(device, request.device)
    request.check_models(device)
    request.check_memory(device)
    check_search(request, backend, device)
    backend.check(device, request.device, measures=not request.zero_measure and engine is None)
    threads = backend.threads(request.threads, device)
    starts = Starts(request.model, device, seed=request.seed)
    start = starts.of(backend.searched(request.ops[0], device)[0].name) if request.ops else NOTHING
    with _laboratory(request, backend, device, engine) as lab:
        heeded = _heeding(watch, lab)
        publisher = Publisher(request, device, lab, start, heeded, begin, races=engine is None or _is_here(device, request))
        yield Run(
            request=request,
            device=device,
            threads=threads,
            lab=lab,
            publisher=publisher,
            starts=starts,
            watch=heeded,
            begin=begin,
        )


def _is_here(device: Device, request: Request) -> bool:
    """True if this host has the device of a fleet under the same name."""
    try:
        return own_device(request.device, measure=False, cache_dir=request.cache).id == device.id
    except UnknownDevice:
        return False


def _heeding(watch: Watch, lab: Measurer) -> Watch:
    """The watch, which also ends a run that can measure nothing any more, as a signal would; the reason is said once."""
    notified: list[str] = []

    def heeded(op: str, phase: str, record: Record | None) -> bool:
        lost = lab.lost if isinstance(lab, DeviceMeasurer) else ""
        if lost and not notified:
            notified.append(lost)
            watch("", f"stopping, and writing a pack from what is measured: {lost}", None)
        return watch(op, phase, record) and not lost

    return heeded


@contextmanager
def _laboratory(request: Request, backend: Backend, device: Device, engine: DeviceEngine | None) -> Iterator[Measurer]:
    """Measurer that compiles, too, closed at the end; with --zero-measure it only compiles and there are no records."""
    environment = {**request.environment, DEVICE_WORD: request.device}
    if request.cache is not None:
        environment[CACHE_WORD] = str(request.cache / DEVICE_CODE)
        environment[OBJECTS_WORD] = str(request.cache / OBJECTS)
    if request.zero_measure:
        with closing(PredictionsOnly(backend, device, environment=environment)) as nothing:
            yield nothing
        return
    with closing(PatientStore(open_store(request.records))) as store:
        what = f"{' '.join(op.name for op in request.ops)} {request.shapes}"
        lab = DeviceMeasurer(
            device, store, environment=environment, resume=request.resume, seed=request.seed, what=what,
            builders=builders_for(request.budget_s, device, usable_cores()), engine=engine,
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
