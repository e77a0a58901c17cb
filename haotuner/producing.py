"""From a request to a pack: tune every op, build one library, verify it, publish it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haotuner import __version__
from haotuner.backends.backend import CACHE_WORD, DEVICE_WORD, OBJECTS_WORD, Backend, Choice
from haotuner.backends.index import backend_for, own_device
from haotuner.errors import EnvironmentMissing, PackInvalid
from haotuner.every_op import SIGNAL, Watch, stopped_of, tune_every
from haotuner.initial_model import Start, Starts
from haotuner.measure.lab import Lab
from haotuner.measure.laboratory import Laboratory
from haotuner.measure.predictions_only import PredictionsOnly
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.manifest import read_manifest
from haotuner.pack.write import write_pack
from haotuner.plan_facts import plan_facts
from haotuner.records import open_store
from haotuner.request import Request, ops_asked
from haotuner.runtime.host import missing_flags, usable_cores
from haotuner.scratch import scratch_folder
from haotuner.trace import arrivals_of
from haotuner.tuning import Tuned
from haotuner.words.device import Device
from haotuner.words.op import Op

if TYPE_CHECKING:
    from haotuner.orchestrate.tasks import AskedModel

VERIFY_LIMIT_S = 300.0  # for each op: references in float64 of some forty shapes, of an op of 100 million weights too
HURRIED_FLOPS = 1e7  # of one check of a run that was told to stop: a second for all; a tile of each kernel in any case
MODEL_FLOPS = 1e7  # of one check of an op of a whole model, which may have a hundred: the model is checked as a whole, too
SAID_MOST = 600  # letters of what a compiler says
FEW_BUILDERS, MOST_BUILDERS = 2, 14  # a process holds some 0.5 GB
SHORT_S = 10.0  # a run of less has one process that compiles
_OBJECTS = "objects"  # folder of the compiled runtime, in the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `haotuner tune` prints; ``document`` is its JSON form (README, *JSON*)."""

    pack: Path
    device: Device
    tuned: tuple[Tuned, ...]
    seconds: float
    stopped: str
    document: Mapping[str, Any]
    start: str = ""  # which model the search began with, in words

    @property
    def complete(self) -> bool:
        """Whether every op has a measured plan and no signal cut the run short."""
        return self.stopped != SIGNAL and all(t.measured for t in self.tuned)


def tune(
    op: str | Op | Sequence[str | Op] | None = None,
    shapes: str = "dynamic",
    *,
    device: str = "cpu",
    budget_s: float | None = None,
    out: str | Path = "pack",
    threads: Sequence[int] = (),
    db: str | None = None,
    seed: int = 0,
    resume: bool = False,
    weights: str = "cold",
    model: str | Path | None = None,
    zero_measure: bool = False,
    batch_invariant: bool = False,
    search: str = "",
) -> Report:
    """Tune ops for a range of shapes, or for a trace, and write a pack; the Python form of `haotuner tune`.

    ``op``: None takes those that a trace names, else the default workload. ``shapes``: as the command line has it.
    ``batch_invariant``: promise, checked before publishing, that results do not depend on how many rows come together.

    ``search``: the policy that explores the schedules of generated kernels: evolution, beam, template or random.

    ``model``: a file to start from, ``"none"`` for a start from cold, None for what ships.

    Raises UsageError, UnknownDevice, NothingLegal, EnvironmentMissing or RecordsUnusable, each with what to do.
    """
    arrivals = arrivals_of(shapes)
    return produce(
        Request(
            ops=ops_asked([op] if isinstance(op, (str, Op)) else op, None, arrivals),
            arrivals=arrivals,
            device=device,
            threads=tuple(threads),
            budget_s=budget_s,
            out=Path(out),
            db=db,
            seed=seed,
            resume=resume,
            weights=weights,
            model=None if model is None else str(model),
            zero_measure=zero_measure,
            batch_invariant=batch_invariant,
            search=search,
            environment=dict(os.environ),
        )
    )


def produce(request: Request, watch: Watch = lambda *_: True) -> Report:
    """Carry out a request. The pack is published only after it was verified in a process of its own."""
    begin = time.monotonic()
    request.check()
    device = own_device(request.device, measure=not request.zero_measure, cache_dir=request.cache)
    backend = backend_for(device, request.device)
    request.check_models(device)
    request.check_memory(device)
    backend.check(device, request.device, measures=not request.zero_measure)
    threads = backend.threads(request.threads, device)
    starts = Starts(request.model, device, seed=request.seed)
    start = starts.of(backend.searched(request.ops[0], device)[0].name)
    with _laboratory(request, backend, device) as lab:
        tuned, turns = tune_every(request, lab, threads, starts.model, watch)
        document = _document(request, device, tuned, lab, start, time.monotonic() - begin)
        watch("", "building the pack", None)
        with _building(request), scratch_folder() as scratch:
            library = scratch / "pack.so"
            groups, objects = _groups_of(request), None if request.cache is None else request.cache / _OBJECTS
            document |= backend.write_library(
                [_choice(t) for t in tuned], device, library, lab.compile_object, groups, objects
            )
            watch("", "checking what it computes", None)
            hurried = stopped_of(tuned) == SIGNAL
            write_pack(
                request.out,
                library,
                document,
                _check_of(_lacking(backend, device), request, hurried=hurried),
                {name: (one.schedule, one.weights) for model in request.models for name, one in model.held.items()},
            )
        ops, reused, failures = [_row(t, lab) for t in tuned], lab.reused, lab.failures
    seconds = time.monotonic() - begin
    stopped = stopped_of(tuned)
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
        **({"turns": [[request.ops[one.task].name, round(one.seconds, 3), one.us] for one in turns]} if turns else {}),
    }
    return Report(
        pack=request.out,
        device=device,
        tuned=tuple(tuned),
        seconds=seconds,
        stopped=stopped,
        document=report,
        start=starts.words,
    )


@contextmanager
def _laboratory(request: Request, backend: Backend, device: Device) -> Iterator[Laboratory]:
    """What measures and compiles, closed at the end; with --zero-measure it only compiles and there are no records."""
    environment = {**request.environment, DEVICE_WORD: request.device}
    if request.cache is not None:
        environment[CACHE_WORD] = str(request.cache / "device-code")
        environment[OBJECTS_WORD] = str(request.cache / _OBJECTS)
    if request.zero_measure:
        with closing(PredictionsOnly(backend, device, environment=environment)) as nothing:
            yield nothing
        return
    with closing(open_store(request.records)) as store:
        what = f"{' '.join(op.name for op in request.ops)} {request.shapes}"
        lab = Lab(
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


@contextmanager
def _building(request: Request) -> Iterator[None]:
    """What the disk or the compiler says while a pack is built, and that nothing measured is lost."""
    kept = "nothing was measured" if request.zero_measure else f"the measurements are safe in {request.records}"
    try:
        yield
    except (OSError, RuntimeError) as error:
        said = str(getattr(error, "strerror", None) or error)
        again = "" if request.zero_measure else " with --resume"
        raise EnvironmentMissing(
            f"the pack {request.out} could not be built: {said[-SAID_MOST:]}; {kept}. If the disk is full, free space in "
            f"{tempfile.gettempdir()} or point TMPDIR elsewhere; then run the same command{again}"
        ) from error


def _groups_of(request: Request) -> str:
    """C of the generated loops of the request's models; empty without any."""
    if not request.models:
        return ""
    from haotuner.orchestrate.written import source_of

    return source_of([part for one in request.models for part in one.parts])


def _check_of(lacking: str, request: Request, *, hurried: bool) -> Callable[[Path], None]:
    """What a new pack must pass: numbers where this host can run it, files and schema elsewhere."""
    if lacking:
        return _read
    most = HURRIED_FLOPS if hurried else MODEL_FLOPS if request.models else None
    options = () if most is None else ("--most-flops", str(most))

    def check(aside: Path) -> None:
        _verify(aside, request.environment, options)
        if request.models:
            from haotuner.whole_model import check_apart

            for one in request.models:
                check_apart(aside, one.file, one.shapes, request.environment)

    return check


def _read(aside: Path) -> None:
    read_manifest(aside)


def _lacking(backend: Backend, device: Device) -> str:
    """Why this host cannot run the device's code; empty if it can."""
    flags = missing_flags(device.arch)
    return backend.lacking(device) if flags is None else " ".join(flags)


def _choice(tuned: Tuned) -> Choice:
    shapes = tuned.task.traffic.shapes()
    ranges = {axis: [shape[axis] for shape in shapes] for axis in tuned.task.op.dynamic}
    return Choice(
        op=tuned.task.op,
        family=tuned.family,
        kernels=tuned.kernels,
        tables=tuned.tables,
        ranges={axis: (min(extents), max(extents)) for axis, extents in ranges.items()},
    )


def _document(
    request: Request, device: Device, tuned: Sequence[Tuned], lab: Laboratory, start: Start, seconds: float
) -> dict[str, Any]:
    lacking, dtype = _lacking(lab.backend, device), DTYPES[request.ops[0].dtype]
    return {
        "haotuner": __version__,
        "device": {"id": device.id, "arch": device.arch, "kind": device.kind, "name": device.name, **device.numbers()},
        "toolchain": lab.backend.toolchain(),
        "tuning": {
            "shapes": request.shapes,
            "weights": request.weights,
            "seed": request.seed,
            "effort": asdict(tuned[0].task.effort),
            "seconds": round(seconds, 3),
            "stopped": stopped_of(tuned),
            "session": lab.session.id,
            "fingerprint": lab.fingerprint,
            "started_from": start.document,
            **({"models": {one.written.name: _plan_of(one) for one in request.models}} if request.models else {}),
            **({"model_ranges": _ranges_of(request.models)} if request.models else {}),
        },
        # True: nothing was measured on the device, plans and times are predictions.
        "unverified": request.zero_measure,
        "verification": {"numbers": not lacking, "why": _unchecked(lacking, hurried=stopped_of(tuned) == SIGNAL)},
        "contract": {"dtype": dtype.numpy, "alignment": dtype.size, "aliasing": "out must not overlap x", "inner_stride": 1},
        # Every kernel sums k in order with one accumulator an element, so the promise holds; verification checks it.
        "batch_invariant": request.batch_invariant,
        "ops": [_op_document(t, lab) for t in tuned],
    }


def _plan_of(model: AskedModel) -> dict[str, Any]:
    """How a model's groups were chosen, for `haotuner explain`."""
    told = model.told
    return {
        "status": told.status,
        "measured": told.measured,
        "requests": len(model.prices.requests),
        "regions": [one for one in told.regions if one["chosen"]],
    }


def _ranges_of(models: Sequence[AskedModel]) -> dict[str, dict[str, list[int]]]:
    """Of each model and segment the first and last size that every dimension was tuned for."""
    return {
        part.name: {name: [one.spans[name].first, one.spans[name].last] for name in part.document["dims"]}
        for one in models
        for part in one.held.values()
    }


def _op_document(tuned: Tuned, lab: Laboratory) -> dict[str, Any]:
    plans = {str(table.threads): plan_facts(table) for table in tuned.tables}
    return lab.backend.packed(_choice(tuned), lab.device).entry({**_row(tuned, lab), "plans": plans})


def _unchecked(lacking: str, *, hurried: bool) -> str:
    """What of the results was not checked before the pack was published, and why."""
    if lacking:
        return f"the host that built the pack lacks {lacking}"
    return f"the run was told to stop: calls of more than {HURRIED_FLOPS:g} FLOP were not checked" if hurried else ""


def _row(tuned: Tuned, lab: Laboratory) -> dict[str, Any]:
    # A regret is a loss against times: without any there is none to tell.
    cover = 1 + tuned.regret if tuned.measured else None
    timed = [table for table in tuned.tables if table.measured] if cover else []
    return {
        "name": tuned.task.op.name,
        "kernels": [kernel.name for kernel in tuned.kernels],
        "candidates": len(tuned.funnel.kept),
        "funnel": tuned.funnel.line(),
        "refused": tuned.funnel.refused,
        "measured": tuned.measured,
        "timings": tuned.timings,
        "seconds": round(tuned.seconds, 3),
        "stopped": tuned.stopped,
        "regret_cover": None if cover is None else cover - 1,
        "regret_mean": cover * (1 + sum(t.regret_mean for t in timed) / len(timed)) - 1 if cover and timed else None,
        "regret_max": cover * (1 + max(t.regret_max for t in timed)) - 1 if cover and timed else None,
        "packed_ratio": lab.backend.packed_ratio(_choice(tuned), lab.device),
        "model": tuned.model,
    }


def _verify(pack: Path, environment: Mapping[str, str], options: Sequence[str] = ()) -> None:
    """In a process of its own: a kernel that crashes must not take the tuner along."""
    ops = read_manifest(pack).ops
    limit, groups = VERIFY_LIMIT_S * max(1, len(ops)), any(op.group for op in ops)
    try:
        answer = subprocess.run(
            [sys.executable, "-m", "haotuner.held_groups" if groups else "haotuner.pack", "verify", str(pack), *options],
            capture_output=True,
            text=True,
            errors="backslashreplace",  # the path may be any bytes
            timeout=limit,
            # One thread is enough for small references, and does not wait for cores that others use.
            env={**environment, "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1", **({"OPENBLAS_NUM_THREADS": "1"} if options else {})},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PackInvalid(
            f"the new pack was not verified within {limit:.0f} s and was not published; its measurements are kept: run the "
            "same command with --resume on a quieter machine"
        ) from error
    if answer.returncode != 0:
        raise PackInvalid(
            "the new pack did not pass verification and was not published: "
            f"{answer.stderr.strip()[-1500:] or f'status {answer.returncode}'}"
        )
