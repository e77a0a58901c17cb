"""Publishing of tuned plans as a pack, which a process of its own verifies before it replaces the last one."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from haotuner import __version__
from haotuner.backends.backend import DEVICE_CODE, Backend, GroupSources
from haotuner.backends.object_cache import not_private
from haotuner.errors import EnvironmentMissing, PackInvalid
from haotuner.host.files import scratch_folder
from haotuner.host.processor import missing_flags
from haotuner.isolate import group
from haotuner.isolate.answers import TimedOut
from haotuner.isolate.group import how_it_ended
from haotuner.measure.measurer import Measurer
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.manifest import ModelContent, read_manifest
from haotuner.pack.write import write_pack
from haotuner.records.address import without_password
from haotuner.spec.device import Device
from haotuner.tuning.initial_model import Start
from haotuner.tuning.op_tasks import SIGNAL, Watch
from haotuner.tuning.plan_facts import choice_of, model_contents, model_facts, plan_facts, ranges_of, row_of
from haotuner.tuning.request import Request
from haotuner.tuning.strategies import Tuned
from haotuner.verify.pack_race import (
    SLOWER,
    SLOWER_THAN_PREDICTED,
    KeepPublishedPack,
    PredictedIsFaster,
    check_not_slower,
    check_predicted_not_faster,
    form_times,
)

if TYPE_CHECKING:
    from haotuner.partition.tasks import ModelTask

VERIFY_LIMIT_S = 300.0  # for each op: references in float64 of some forty shapes, of an op of 100 million weights too
HURRIED_FLOPS = 1e7  # of one check of a run that was told to stop: a second for all; a tile of each kernel in any case
MODEL_FLOPS = 1e7  # of one check of an op of a whole model, which may have a hundred: the model is checked as a whole, too
SAID_MOST = 600  # letters of what a compiler says
# Of what the first pack of a run took to build, where objects are kept: MiniLM's, 70 and 7 s on a crowded machine.
BUILT_AGAIN, BUILT_S = 0.2, 4.0
RACE_S = 10.0  # at least, of the race with the pack in its place: so many seconds of calls, and the start of a process
CHECKING_SHOWN_S = 2.0  # between two messages of the checks' progress
OBJECTS = "objects"  # folder of the compiled runtime, in the cache


class Publisher:
    """Writes packs of one request, any number of times. ``begin``: when the run began, by ``time.monotonic``.

    ``seconds``: what the next one is expected to take by the last one, 0 before the first; ``when``: the end of that one.
    ``predicted``: the plans of predictions that timed ones are raced against; None where nothing is timed.
    """

    def __init__(
        self,
        request: Request,
        device: Device,
        lab: Measurer,
        start: Start,
        watch: Watch,
        begin: float,
        *,
        races: bool = True,
    ) -> None:
        """``races``: this host has the device, so that times of whole requests here are the device's."""
        self._races = races
        self._request, self._device, self._lab, self.start, self._watch = request, device, lab, start, watch
        self._begin = self.when = begin
        self.seconds = 0.0
        self.reason_kept = ""  # why the pack that lay in its place stays, where it answers faster than the last one, or may
        self.predicted: Callable[[], Plans] | None = None
        self._warned_of_cache = False
        self._last: tuple[list[Tuned], list[ModelTask], Mapping[str, Any]] | None = None

    def publish(
        self,
        tuned: Sequence[Tuned],
        models: Sequence[ModelTask],
        *,
        unverified: bool,
        stopped: str,
        what: str = "the pack",
    ) -> Mapping[str, Any]:
        """Build, verify and publish; what the manifest says. EnvironmentMissing or PackInvalid where nothing was published.

        What was published last is not published again. Where a pack of the same models lies already, and answers faster, or
        could not be raced, it stays: what its manifest says is returned, and ``reason_kept`` says why. Plans of which
        something was measured are raced against the predicted ones, too, whole; the faster are published.
        """
        tuned = served(tuned, models)
        if self._last is not None and _same(self._last[0], tuned) and _same(self._last[1], models):
            return self._last[2]
        begin, request, lab = time.monotonic(), self._request, self._lab
        lacking, hurried = _cannot_run(lab.backend, self._device), stopped == SIGNAL
        document = self._document(tuned, models, lacking, unverified=unverified, stopped=stopped)
        self._watch("", f"building {what}", None)
        self.reason_kept = ""
        races = self._races and bool(models) and not (lacking or request.zero_measure or models[0].on_device)
        predicted = self.predicted() if self.predicted is not None and races and not (unverified or hurried) else None
        if predicted is not None:
            predicted = Plans(served(predicted.tuned, predicted.models), predicted.models)
        in_place = predicted is not None and self._last is not None and predicted.equal(*self._last[:2])
        try:
            with _building(request), self._better_stays(), scratch_folder() as scratch:
                library = self._library(scratch / "pack.so", tuned, models, document)
                built = time.monotonic()
                self._watch("", "checking what it computes", None)

                def check(aside: Path) -> None:
                    _check_of(lacking, request, models, self._watch, hurried=hurried)(aside)
                    if predicted is not None and not in_place:
                        self._check_predicted(aside, predicted, scratch)
                    if races:
                        slower = SLOWER_THAN_PREDICTED if in_place else SLOWER
                        if verdict := check_not_slower(request.out, aside, request.environment, slower):
                            self._watch("", verdict, None)

                timed = None
                if races and not hurried:
                    self._watch("", "timing requests", None)
                    timed = write_pack(scratch / "timed", library, document, _read, model_contents(models))
                contents = self._with_times(tuned, models, timed)
                write_pack(request.out, library, document, check, contents)
        except PredictedIsFaster as why:
            assert predicted is not None
            self._watch("", f"published instead of the timed plans: {why}", None)
            try:
                document = dict(self.publish(predicted.tuned, predicted.models, unverified=True, stopped=stopped, what=what))
            except PackInvalid as error:  # it answers, but not rightly
                self._watch("", f"the predicted plan is no pack: {error}", None)
                self.predicted = None
                return self.publish(tuned, models, unverified=unverified, stopped=stopped, what=what)
            self.reason_kept = self.reason_kept or str(why)
            return document
        if self.reason_kept:
            document = read_manifest(request.out).whole_document
        self.when = time.monotonic()
        self.seconds = next_seconds(
            built - begin, self.when - built, cached=request.cache is not None, first=bool(models) and self._last is None
        )
        self._last = list(tuned), list(models), document
        return document

    @contextmanager
    def _better_stays(self) -> Iterator[None]:
        try:
            yield
        except PredictedIsFaster as why:
            if self._last is None:  # else what this run published was held against it, too, and stays
                raise
            self._keep(why)
        except KeepPublishedPack as why:
            self._keep(why)

    def _keep(self, why: KeepPublishedPack) -> None:
        self.reason_kept = str(why)
        self._watch("", f"not published: {why}", None)

    def _library(self, path: Path, tuned: Sequence[Tuned], models: Sequence[ModelTask], document: dict[str, Any]) -> Path:
        """The library of these plans; facts of its code go into the document."""
        document |= self._lab.backend.write_library(
            [choice_of(t) for t in tuned],
            self._device,
            path,
            self._lab.compile_object,
            _groups_of(models, self._request.cache),
            self._objects(),
        )
        return path

    def _with_times(
        self, tuned: Sequence[Tuned], models: Sequence[ModelTask], timed: Path | None
    ) -> dict[str, ModelContent]:
        """Models with the times that their requests will take: those of the pack ``timed``, else predicted."""
        if not models:
            return {}
        from haotuner.tuning.expected_times import contents_with_times

        threads = self._lab.backend.threads(self._request.threads, self._device)
        return contents_with_times(models, tuned, self._device, threads, timed, self._request.environment)

    def _check_predicted(self, aside: Path, predicted: Plans, scratch: Path) -> None:
        """PredictedIsFaster where a pack of the predicted plans, built for this race alone, answers faster."""
        self._watch("", "racing the predicted plan", None)
        try:
            pack = self.pack_for_race(predicted, scratch / "predicted")
        except (OSError, RuntimeError, PackInvalid) as error:  # kernels that nobody ever ran
            self._watch("", f"the predicted plan is no pack: {error}", None)
            return
        check_predicted_not_faster(pack, aside, self._request.environment)

    def pack_for_race(self, plans: Plans, path: Path) -> Path:
        """A pack that nobody serves; errors as of its build."""
        document = self._document(plans.tuned, plans.models, "", unverified=True, stopped="budget")
        library = self._library(path.with_suffix(".so"), plans.tuned, plans.models, document)
        write_pack(path, library, document, _read, model_contents(plans.models))
        return path

    def form_times(self, tuned: Sequence[Tuned], model: ModelTask) -> list[dict[str, float]] | None:
        """Microseconds of a model by request in each of its forms, raced in packs of their own; None where that fails."""
        if not self._races or _cannot_run(self._lab.backend, self._device):
            return None
        self._watch("", f"racing {model.form_count} forms of {model.written.name}", None)
        variants = [model.in_form(number) for number in range(model.form_count)]
        try:
            with scratch_folder() as scratch:
                packs = [
                    self.pack_for_race(Plans(served(tuned, [variant]), [variant]), scratch / f"form{number}")
                    for number, variant in enumerate(variants)
                ]
                by_model = form_times(packs, self._request.environment)
        except (OSError, RuntimeError, PackInvalid) as error:
            self._watch("", f"forms of {model.written.name} were not raced: {error}", None)
            return None
        if by_model is None:
            self._watch("", f"forms of {model.written.name} were not raced: one of them failed", None)
            return None
        times = [{sizes: us for (_, sizes), us in row.items()} for row in by_model]
        for sizes in times[0]:
            us = ", ".join(f"{row[sizes]:,.1f}" for row in times)
            self._watch("", f"{model.written.name} at {sizes}: {us} us, the model's own form first", None)
        return times

    def holds(self, models: Sequence[ModelTask]) -> bool:
        """True if a pack of these models' weights lies in its place already, from this run or an earlier one."""
        try:
            stored_models = read_manifest(self._request.out).models
        except PackInvalid:
            return False
        hashes = {
            name: hashlib.sha256(model_.weights).hexdigest()
            for model in models
            for name, model_ in model.executables.items()
        }
        return all(name in stored_models and stored_models[name].weights_sha256 == digest for name, digest in hashes.items())

    def _objects(self) -> Path | None:
        """The folder of compiled sources; None where there is none, or where others may write, which is said once."""
        if self._request.cache is None:
            return None
        folder = self._request.cache / OBJECTS
        why = not_private(folder)
        if why and not self._warned_of_cache:
            self._warned_of_cache = True
            self._watch("", f"compiling without the cache: {why}", None)
        return None if why else folder

    def _document(
        self, tuned: Sequence[Tuned], models: Sequence[ModelTask], lacking: str, *, unverified: bool, stopped: str
    ) -> dict[str, Any]:
        request, device, lab = self._request, self._device, self._lab
        dtype = DTYPES[request.ops[0].dtype if request.ops else "fp32"]
        threads = lab.backend.threads(request.threads, device)
        plans = {model.written.name: model_facts(model, tuned, device, threads) for model in models}
        return {
            "haotuner": __version__,
            "device": {"id": device.id, "arch": device.arch, "kind": device.kind, "name": device.name, **device.numbers()},
            "toolchain": lab.backend.toolchain(),
            "tuning": {
                "shapes": request.shapes,
                "weights": request.weights,
                "seed": request.seed,
                "effort": asdict(tuned[0].task.effort) if tuned else {},
                "seconds": round(time.monotonic() - self._begin, 3),
                "stopped": stopped,
                "session": lab.session.id,
                "fingerprint": lab.fingerprint,
                "started_from": self.start.document,
                **({"models": plans} if models else {}),
                **({"model_ranges": ranges_of(models)} if models else {}),
            },
            # True: nothing was measured on the device, plans and times are predictions.
            "unverified": unverified,
            "verification": {"numbers": not lacking, "why": _unchecked(lacking, hurried=stopped == SIGNAL)},
            "contract": {
                "dtype": dtype.numpy,
                "alignment": dtype.size,
                "aliasing": "out must not overlap x",
                "inner_stride": 1,
            },
            # Every kernel sums k in order with one accumulator an element, so the promise holds; verification checks it.
            "batch_invariant": request.batch_invariant,
            "ops": [_op_document(t, lab) for t in tuned],
        }


@dataclass(frozen=True, slots=True)
class Plans:
    """Plans of a request: of its ops, and of its models' groups."""

    tuned: Sequence[Tuned]
    models: Sequence[ModelTask]

    def equal(self, tuned: Sequence[Tuned], models: Sequence[ModelTask]) -> bool:
        """True if these plans are the same objects."""
        return _same(self.tuned, tuned) and _same(self.models, models)


def served(tuned: Sequence[Tuned], models: Sequence[ModelTask]) -> Sequence[Tuned]:
    """Results of the ops that models call; all of them where there are no models, or where each is called."""
    if not models or not tuned:
        return tuned
    called = set().union(*(model.called for model in models))
    result = [item for item in tuned if item.task.op.name in called]
    return tuned if len(result) == len(tuned) else result


def next_seconds(building: float, checking: float, *, cached: bool, first: bool) -> float:
    """Expected seconds of the next pack by what the last one took.

    ``cached``: what was compiled is kept, and so are the kernels that tasks time meanwhile. ``first``: none was raced.
    """
    again = min(building, max(BUILT_AGAIN * building, BUILT_S)) if cached and first else building
    return again + checking + (max(RACE_S, checking) if first else 0.0)  # slow checks are of a machine that is busy


def _same(item: Sequence[object], other: Sequence[object]) -> bool:
    return len(item) == len(other) and all(a is b for a, b in zip(item, other, strict=True))


@contextmanager
def _building(request: Request) -> Iterator[None]:
    """Guard of a build: errors of the disk or the compiler, with a word that nothing measured is lost."""
    store = without_password(request.records)
    selected = "nothing was measured" if request.zero_measure else f"the measurements are safe in {store}"
    try:
        yield
    except (OSError, RuntimeError) as error:
        text = str(getattr(error, "strerror", None) or error)
        again = "" if request.zero_measure else " with --resume"
        raise EnvironmentMissing(
            f"the pack {request.out} could not be built: {text[-SAID_MOST:]}; {selected}. If the disk is full, free space "
            f"in {tempfile.gettempdir()} or point TMPDIR elsewhere; then run the same command{again}"
        ) from error


def _groups_of(models: Sequence[ModelTask], cache: Path | None) -> GroupSources | None:
    """Code of the models' groups; None without any models."""
    if not models:
        return None
    from haotuner.partition.executable import device_source_of, source_of

    parts = [part for model in models for part in model.parts]
    return GroupSources(
        c=source_of([*parts, *(model.written for model in models if model.written not in parts)]),
        programs=list(
            dict.fromkeys(
                kernel
                for part in parts
                for function in part.functions
                if function.program
                for kernel in function.program.kernels
            )
        ),
        device=device_source_of(parts),
        launches=[function for part in parts for function in part.functions],
        cache=None if cache is None else cache / DEVICE_CODE,
    )


def _check_of(
    lacking: str, request: Request, models: Sequence[ModelTask], watch: Watch, *, hurried: bool
) -> Callable[[Path], None]:
    """Check that a new pack must pass: numbers where this host can run it, files and schema elsewhere."""
    if lacking:
        return _read
    most = HURRIED_FLOPS if hurried else MODEL_FLOPS if models else None
    options = () if most is None else ("--most-flops", str(most))

    def check(aside: Path) -> None:
        abandoned = Event()
        with scratch_folder() as scratch, ThreadPoolExecutor(2) as pool:  # each a process of its own, mostly of one thread
            counters = [scratch / f"{index}.count" for index in range(len(models))]
            try:
                parts = [pool.submit(_verify, aside, request.environment, options, abandoned)]
                if models:
                    from haotuner.verify.model_check import check_apart

                    parts += [
                        pool.submit(
                            check_apart,
                            aside,
                            model.file,
                            model.shapes,
                            request.environment,
                            abandoned,
                            counter,
                            model.subgraph,
                        )
                        for model, counter in zip(models, counters, strict=True)
                    ]
                shown = ""
                while len(finished := wait(parts, CHECKING_SHOWN_S, FIRST_EXCEPTION).done) < len(parts):
                    for part in finished:
                        part.result()
                    before, shown = shown, _checked(len(finished), len(parts), counters)
                    if shown != before:
                        watch("", shown, None)
                for part in parts:
                    part.result()
            except BaseException:  # one has failed, or the user does not wait: the others are of no use
                abandoned.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    return check


def _checked(checks_done: int, checks: int, counters: Sequence[Path]) -> str:
    """Progress of the checks of a new pack in words; ``counters``: of its models."""
    text = f"checking what it computes: {checks_done} of {checks} checks done"
    if not counters:
        return text
    from haotuner.verify.model_check import shapes_checked

    shapes, shape_count = shapes_checked(counters)
    return f"{text}, {shapes} of {shape_count} shapes of models" if shape_count else text


def _read(aside: Path) -> None:
    read_manifest(aside)


def _cannot_run(backend: Backend, device: Device) -> str:
    """Reason that this host cannot run the device's code; empty if it can."""
    flags = missing_flags(device.arch)
    return backend.missing_requirement(device) if flags is None else " ".join(flags)


def _op_document(tuned: Tuned, lab: Measurer) -> dict[str, Any]:
    plans = {str(table.threads): plan_facts(table) for table in tuned.tables}
    return lab.backend.packed(choice_of(tuned), lab.device).entry({**row_of(tuned, lab), "plans": plans})


def _unchecked(lacking: str, *, hurried: bool) -> str:
    """Reason that results were not checked before the pack was published; empty if all were."""
    if lacking:
        return f"the host that built the pack lacks {lacking}"
    return f"the run was told to stop: calls of more than {HURRIED_FLOPS:g} FLOP were not checked" if hurried else ""


def _verify(pack: Path, environment: Mapping[str, str], options: Sequence[str] = (), abandoned: Event | None = None) -> None:
    """In a process of its own: a kernel that crashes must not take the tuner along."""
    ops = read_manifest(pack).ops
    limit, groups = VERIFY_LIMIT_S * max(1, len(ops)), any(op.group for op in ops)
    try:
        answer = group.run(
            [
                sys.executable,
                "-m",
                "haotuner.verify.pack_groups" if groups else "haotuner.pack",
                "verify",
                str(pack),
                *options,
            ],
            limit,
            # One thread is enough for small references, and does not wait for cores that others use.
            {**environment, "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1", **({"OPENBLAS_NUM_THREADS": "1"} if options else {})},
            abandoned=abandoned,
        )
    except TimedOut as error:
        raise PackInvalid(
            f"the new pack was not verified within {limit:.0f} s and was not published; its measurements are kept: run the "
            "same command with --resume on a quieter machine"
        ) from error
    if answer.code != 0:
        raise PackInvalid(
            "the new pack did not pass verification and was not published: "
            f"{answer.errors.strip()[-1500:] or how_it_ended(answer.code)}"
        )
