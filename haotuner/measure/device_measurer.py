"""Device measurer: trials in, records out. Looks in the store first, builds what is missing, verifies, times, stores.

What a device is, its backend knows (``haotuner/backends``); the lab knows the store, the batches and whom to blame.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from haotuner.backends.backend import OBJECTS_WORD, Backend, Facts, LibrarySlot, Timer
from haotuner.backends.cpu.group_jobs import GroupJob
from haotuner.backends.fingerprint import Policy, fingerprint_with
from haotuner.backends.index import backend_for
from haotuner.errors import RecordsUnreachable
from haotuner.host.files import scratch_folder
from haotuner.isolate.answers import ChildNotResponding
from haotuner.measure.engine import Builder, Engine, EngineLost, LocalEngine
from haotuner.measure.measurer import GoesOn
from haotuner.measure.rekeying import rekeyed
from haotuner.records import RecordStore, Session
from haotuner.spec.composition import WHOLE, Composition, Part
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Outcome, Record, Timed, Trial
from haotuner.spec.shape import Shape

BATCH = 12  # kernels a library: linking once costs as much as compiling half a kernel
FIRST_BATCH = 3  # of a builder, then twice as many: what is begun is finished, and a turn of a few seconds pays for it
BUILD_LIMIT_S = 120.0
KERNEL_LIMIT_S = 15.0  # and so much for each kernel of a pack: one of a whole model has a hundred, in one unit
LOOK_AGAIN_S = 0.05
GLANCE_S = 0.25  # how often whoever watches is asked while kernels are built
OWNER_LIMIT_S = 20.0  # another tuner that claimed a trial is waited for as long as a trial may take


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queue:
    """Threads that wait for an engine's timer, and the outcomes of trials that were begun ahead, by key."""

    pool: ThreadPoolExecutor
    under_way: dict[str, Future[Failed | tuple[Timed, Facts]]] = field(default_factory=dict)


class DeviceMeasurer:
    """Measures on one device. Close it: it owns processes and a scratch folder.

    ``lost``: why no trial is measured any more, in words: nobody builds or times, or the store is unreachable. Empty while
    all is well; what was measured before stands.
    """

    def __init__(
        self,
        device: Device,
        store: RecordStore,
        *,
        environment: Mapping[str, str],
        policy: Policy | None = None,
        resume: bool = False,
        what: str = "",
        seed: int = 0,
        builders: int = 2,
        engine: Engine | None = None,
    ) -> None:
        """``engine``: where builds and timings are carried out; None: in processes of this host."""
        self.device, self.store, self.seed, self.lost = device, store, seed, ""
        self.backend = backend = backend_for(device)
        self.policy = policy or Policy()
        self.fingerprint = backend.fingerprint(device, self.policy)
        self.session: Session = store.start(self.fingerprint, resume=resume, what=what)
        self._known: dict[str, Record] = {}
        self._resumes = resume
        self._reused = 0
        self._code: dict[str, str] = {}  # by kernel name; empty where nobody could say
        self._resources = ExitStack()
        self._scratch = self._resources.enter_context(scratch_folder())
        environment = {OBJECTS_WORD: str(self._scratch / "objects"), **environment}  # at least each library but the first
        environment["TMPDIR"] = str(self._scratch)  # a compiler that is killed leaves its files there
        self._engine = engine = engine or LocalEngine()
        self._builders = engine.builders(backend, environment, builders)
        self.builders = len(self._builders)
        self._timer = engine.timer(backend, device, self.policy, environment, seed=seed)
        self._slots: dict[str, LibrarySlot] = {}  # by kernel name
        self._broken: dict[str, Failed] = {}
        self.failures: dict[str, int] = {}

    def start(self) -> None:
        """Start all processes side by side: importing the compiler takes seconds and is no part of a budget.

        With ``resume`` the records that count are found now.
        """
        processes: list[Builder | Timer] = [*self._builders, self._timer]
        with ThreadPoolExecutor(len(processes)) as pool:
            for started in [pool.submit(process.start) for process in processes]:
                started.result()
        self._recall()

    @property
    def reused(self) -> int:
        """Records of an earlier run that count in this one."""
        self._recall()
        return self._reused

    def _recall(self) -> None:
        """Find the records of the resumed session whose code is today's, once."""
        if not self._resumes:
            return
        self._resumes = False
        stored = list(self.store.records(session=self.session.id))
        stored += rekeyed(self.store, self.session, self.fingerprint, self._learned) if not stored else []
        self._learn(sorted({part.kernel for record in stored for part in record.trial.composition.parts}))
        self._known = {r.trial.key(): r for r in stored if r.fingerprint == self._fingerprint(r.trial)}
        self._reused = len(self._known)
        for record in self._known.values():  # a resumed session keeps its pace
            self._timer.resume(record.facts)

    def _learn(self, names: Sequence[str]) -> None:
        """Have the hashes of kernels' code, from all builders at once."""
        lanes = [names[index :: len(self._builders)] for index in range(len(self._builders))]
        with ThreadPoolExecutor(len(self._builders)) as pool:
            for done in [pool.submit(self._learn_from, *lane) for lane in zip(self._builders, lanes, strict=True)]:
                done.result()

    def _learn_from(self, builder: Builder, names: Sequence[str]) -> None:
        missing = [name for name in names if name not in self._code]
        if not missing:
            return
        limit_s = BUILD_LIMIT_S + KERNEL_LIMIT_S * len(missing)
        try:
            self._code.update(builder.ask(self.backend.code_request(missing, self.device), limit_s)["code"])
        except ChildNotResponding:
            if len(missing) == 1:
                self._code[missing[0]] = ""
                return
            for part in (missing[: len(missing) // 2], missing[len(missing) // 2 :]):  # the others are innocent
                self._learn_from(builder, part)

    def codes_in_groups(self, names: Sequence[str]) -> Mapping[str, str]:
        """Hashes of the code of kernels as programs of models' groups, by name. RuntimeError where nobody can say."""
        request = self.backend.code_request(names, self.device, in_groups=True)
        try:
            return dict(self._builders[0].ask(request, BUILD_LIMIT_S + KERNEL_LIMIT_S * len(names))["code"])
        except ChildNotResponding as error:
            raise RuntimeError(f"the code of {', '.join(names)} cannot be generated: {error}") from error

    def _learned(self, names: Sequence[str]) -> Mapping[str, str]:
        self._learn(names)
        return {name: self._code[name] for name in names}

    def _fingerprint(self, trial: Trial) -> str:
        """Fingerprint of a trial's record; empty where the code of its kernels is not known."""
        code = [self._code.get(part.kernel, "") for part in trial.composition.parts]
        return fingerprint_with(self.fingerprint, code) if all(code) else ""

    def close(self) -> None:
        """Stop the processes and remove the scratch folder."""
        processes: list[Builder | Timer] = [*self._builders, self._timer]
        for process in processes:
            process.close()
        self._resources.close()

    def anew(self, what: str = "") -> None:
        """Begin another session, in which every trial is measured once more; what was built and verified stays."""
        self._resumes = False
        self.session, self._known = self.store.start(self.fingerprint, resume=False, what=what), {}
        self.renew()

    def renew(self) -> None:
        """Time in a new process from here on: where code and data lie changes cold times by up to a quarter."""
        self._timer.renew()

    def known(self, trial: Trial) -> Record | None:
        """The record of a trial that this session already has."""
        self._recall()
        return self._known.get(trial.key())

    def records(self) -> list[Record]:
        """Records that this session has so far; another thread may measure meanwhile."""
        return list(self._known.copy().values())

    def prepare(self, names: Sequence[str], goes_on: GoesOn = lambda _: True) -> None:
        """Build kernels ahead, all builders at work at once; what fails is known when its trials come.

        When ``goes_on`` says no, what is being built is finished and nothing more is begun.
        """
        with self._until_lost():
            self._build(names, goes_on)

    def gather(self, names: Sequence[str]) -> None:
        """Build kernels into one library, so that any composition of them can be timed without another build."""
        sound = sorted({name for name in names if name not in self._broken})
        apart = {self._slots[name].library if name in self._slots else name for name in sound}
        if len(apart) > 1 and not self.backend.libraries_mix:
            with self._until_lost():
                self._build_batch(self._builders[0], sound)  # if it fails, the kernels stay where they were

    def compile_object(self, kernels: Sequence[MicroKernel], arch: str, out: Path) -> None:
        """One object file of kernels, made by a builder; RuntimeError with the compiler's words."""
        compile_object(self.backend, self._builders[0], kernels, arch, out)

    def time_groups(self, job: GroupJob) -> list[str]:
        """Lines of a process that times generated groups on the device; none where nobody answers any more (``lost``)."""
        lines: list[str] = []
        with self._until_lost():
            lines += self._engine.time_groups(job)
        return lines

    def measure(self, trials: Iterable[Trial], goes_on: GoesOn = lambda _: True) -> list[Record]:
        """Records of the trials, in order.

        ``goes_on`` is asked before each new measurement (None) and told each record; when it says no the list ends
        early. What the store already holds costs nothing and is always delivered.
        """
        required = list(trials)
        result: list[Record] = []
        with self._until_lost():
            unbuilt = sorted({name for t in required if self.known(t) is None for name, _ in t.composition.parts})
            if unbuilt and not self.lost and goes_on(None):
                self._build(unbuilt, goes_on)
        with ThreadPoolExecutor(1 + self._engine.trials_ahead) as pool:
            queue = _Queue(pool=pool)
            for index, trial in enumerate(required):
                record = self.known(trial)
                if record is None:
                    if self.lost or (trial.key() not in queue.under_way and not goes_on(None)):
                        break
                    measured: list[Record] = []
                    with self._until_lost():
                        measured.append(self._measured(trial, required[index + 1 :], queue, goes_on))
                    if not measured:
                        break
                    record = measured[0]
                result.append(record)
                goes_on(record)
        return result

    def _measured(self, trial: Trial, later: Sequence[Trial], queue: _Queue, goes_on: GoesOn) -> Record:
        """The record of a trial. Of ``later`` trials as many begin meanwhile as the engine's timer takes ahead."""
        most = self._engine.trials_ahead
        if not most:
            return self._elsewhere(trial) or self._record(trial, self._outcome(trial))
        outcome = queue.under_way.pop(trial.key(), None)
        if outcome is None:
            if (record := self._elsewhere(trial)) is not None:
                return record
            outcome = queue.pool.submit(self._outcome, trial)
        for following in later[: most - len(queue.under_way)]:
            if following == trial or not self._is_ready(following) or not goes_on(None) or not self._claim(following):
                break
            queue.under_way[following.key()] = queue.pool.submit(self._outcome, following)
        return self._record(trial, outcome.result())

    def _is_ready(self, trial: Trial) -> bool:
        """True for a trial without a record whose kernels lie in one library, so that it is timed without another build."""
        names = {part.kernel for part in trial.composition.parts}
        libraries = {self._slots[name].library for name in names if name in self._slots}
        return self.known(trial) is None and not names & self._broken.keys() and len(libraries) == 1

    def _claim(self, trial: Trial) -> bool:
        """True if this tuner may measure a trial; False while another one does, or did."""
        return bool(self.store.claim(self.session.id, [trial.key()], fingerprint=self._fingerprint(trial)))

    @contextmanager
    def _until_lost(self) -> Iterator[None]:
        """Note why nothing more can be measured, where that turns out inside."""
        try:
            yield
        except (EngineLost, RecordsUnreachable) as error:
            self.lost = self.lost or str(error)

    def _elsewhere(self, trial: Trial) -> Record | None:
        """The record of another tuner that resumed the same session, waited for while it measures; None: it is ours."""
        key, until = trial.key(), time.monotonic() + OWNER_LIMIT_S
        while not self._claim(trial):
            record = self.store.measured(self._fingerprint(trial), session=self.session.id).get(key)
            if record is not None:
                self._known[key] = record
                return record
            if time.monotonic() > until:  # its owner lives but does not deliver
                return None
            time.sleep(LOOK_AGAIN_S)
        return None

    def _record(self, trial: Trial, result: Failed | tuple[Timed, Facts]) -> Record:
        outcome: Outcome = result if isinstance(result, Failed) else result[0]
        record = Record(
            trial=trial,
            outcome=outcome,
            device_id=self.device.id,
            fingerprint=self._fingerprint(trial) or self.fingerprint,
            session=self.session.id,
            when=time.time(),
            seed=self.seed,
            facts={} if isinstance(result, Failed) else result[1],
        )
        self.store.append([record])
        self._known[trial.key()] = record
        if isinstance(outcome, Failed):
            self.failures[outcome.reason] = self.failures.get(outcome.reason, 0) + 1
        return record

    def _build(self, names: Sequence[str], goes_on: GoesOn) -> None:
        missing = [name for name in names if name not in self._slots and name not in self._broken]
        batches = _batches(missing, len(self._builders), 1 if self.backend.libraries_mix else BATCH)
        with ThreadPoolExecutor(len(self._builders)) as pool:
            lanes = [batches[i :: len(self._builders)] for i in range(len(self._builders))]
            stop = threading.Event()
            running = [pool.submit(self._build_lane, b, lane, stop) for b, lane in zip(self._builders, lanes, strict=True)]
            while wait(running, GLANCE_S).not_done:
                if not goes_on(None):
                    stop.set()
            for done in running:
                done.result()

    def _build_lane(self, builder: Builder, batches: Sequence[Sequence[str]], stop: threading.Event) -> None:
        for batch in batches:
            if stop.is_set():
                return
            failed = self._build_batch(builder, batch)
            if failed is None:
                continue
            for name in batch:  # find the culprit; the others are innocent
                alone = failed if len(batch) == 1 else self._build_batch(builder, [name])
                if alone is not None:
                    self._broken[name] = alone

    def _build_batch(self, builder: Builder, names: Sequence[str]) -> Failed | None:
        tag = hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]
        out = str(self._scratch / f"{tag}.so")
        self._learn_from(builder, names)
        try:
            builder.ask(self.backend.build_request(names, self.device, out), BUILD_LIMIT_S)
        except ChildNotResponding as error:
            return error.failed("build")
        self._slots.update({name: LibrarySlot(library=out, index=index) for index, name in enumerate(names)})
        return None

    def _outcome(self, trial: Trial) -> Failed | tuple[Timed, Facts]:
        """Outcome of a trial; with a time what is known of the machine meanwhile."""
        names = [part.kernel for part in trial.composition.parts]
        for name in names:
            if name in self._broken:
                return self._broken[name]
        if (
            not self.backend.libraries_mix and len({self._slots[name].library for name in names}) > 1
        ):  # a composition of kernels built apart
            failed = self._build_batch(self._builders[0], sorted(set(names)))
            if failed is not None:
                return failed
        op, worst = trial.known_op, 0.0
        for kernel in trial.composition.kernels:
            outcome = self._timer.verify(op, kernel, self._slots[kernel.name])
            if isinstance(outcome, Failed):
                self._broken[kernel.name] = outcome
                return outcome
            worst = max(worst, outcome)
        return self._timer.time(trial, op, self._composition(trial, op), self._slots, worst)

    def _composition(self, trial: Trial, op: Op) -> Composition:
        """Composition that a trial times; of a kernel over the whole covered axis with the tiles that this takes."""
        result = trial.composition
        if all(part.tiles != WHOLE for part in result.parts):
            return result
        families = {family.name: family for family in self.backend.families(op)}
        kernels = result.kernels
        tiles = [whole_tiles(families[kernel.family], kernel, op, trial.shape) for kernel in kernels]
        return Composition(tuple(Part(k.name, count) for k, count in zip(kernels, tiles, strict=True)), result.share)


def _batches(names: Sequence[str], builders: int, most: int) -> list[Sequence[str]]:
    """Names in libraries for builders in turns: few in their first ones, later ``most``; all are busy to the end.

    ``most`` is 1 where a kernel that is built alone is found again, in a cache of code, whatever was asked for beside it.
    """
    result: list[Sequence[str]] = []
    at, size = 0, FIRST_BATCH
    while at < len(names):
        step = max(1, min(size, most, -(-(len(names) - at) // builders)))
        result += [names[index : index + step] for index in range(at, min(at + builders * step, len(names)), step)]
        at, size = at + builders * step, 2 * size
    return result


def whole_tiles(family: Family, kernel: MicroKernel, op: Op, shape: Shape) -> int:
    """Tiles of a kernel along the covered axis of a shape; 1 of one whose tiles need not be exact."""
    tile, axis = family.tile(kernel), op.dynamic[0]
    return shape[axis] // tile.extent[axis] if tile.edge.get(axis) == "exact" else 1


def compile_object(backend: Backend, builder: Builder, kernels: Sequence[MicroKernel], arch: str, out: Path) -> None:
    """One object file of kernels for a pack; RuntimeError with the compiler's words."""
    try:
        builder.ask(backend.object_request(kernels, arch, str(out)), BUILD_LIMIT_S + KERNEL_LIMIT_S * len(kernels))
    except ChildNotResponding as error:
        raise RuntimeError(f"could not compile the kept micro-kernels: {error}") from error
