"""The lab: trials in, records out. Looks in the store first, builds what is missing, verifies, times, stores at once."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from haotuner.compile.cpu import RUNTIME_SOURCES, SERVING, TIMING_SOURCES
from haotuner.compile.toolchain import Toolchain
from haotuner.isolate.answers import Unanswered
from haotuner.isolate.child import Child
from haotuner.measure.child import BUILDING, TIMING, measuring_process
from haotuner.measure.crowding import Patience
from haotuner.measure.drift import Pace, undisturbed
from haotuner.measure.policy import Policy, fingerprint
from haotuner.measure.setting import Setting
from haotuner.microkernels.cpu_dense import tail_columns
from haotuner.records import RecordStore, Session
from haotuner.words.composition import SPLITS
from haotuner.words.device import Device
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op
from haotuner.words.record import Failed, Outcome, Record, Timed, Trial

BATCH = 12  # kernels a library: linking once costs as much as compiling half a kernel
BUILD_LIMIT_S = 120.0
LOOK_AGAIN_S = 0.05
TIME_LIMIT_S = 20.0  # a trial lasts milliseconds; a kernel that needs seconds more than its arithmetic asks for hangs
SLOWEST_GFLOPS = 5.0  # one row at a time, four lanes, from memory
TRIAL_CALLS = 5  # of a call too long for more than the least samples: a bare one, one to size the batch, three samples
GoesOn = Callable[[Record | None], bool]
Facts = Mapping[str, float | str]


class Lab:
    """Measures on one device. Close it: it owns processes and a scratch folder."""

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
    ) -> None:
        self.device, self.store, self.policy, self.seed = device, store, policy or Policy(), seed
        self._toolchain = Toolchain.find()
        package = Path(__file__).resolve().parent.parent
        timed = [package / "microkernels" / "cpu_dense.py", package / "compile" / "cpu.py", TIMING_SOURCES / "timing.c"]
        timed += [TIMING_SOURCES / "watch.h", *(package / "hw_profiles" / "native" / name for name in ("fma.h", "read.h"))]
        timed += [package / "measure" / name for name in ("crowding.py", "drift.py", "bench_table.py", "setting.py")]
        timed += [RUNTIME_SOURCES / name for name in SERVING]
        self.fingerprint = fingerprint(device, self.policy, self._toolchain.words(), timed)
        self.session: Session = store.start(self.fingerprint, resume=resume, what=what)
        self._known: dict[str, Record] = store.measured(self.fingerprint, session=self.session.id) if resume else {}
        self.reused = len(self._known)
        self._scratch = Path(tempfile.mkdtemp(prefix="haotuner-lab-"))
        self._builders = [measuring_process(BUILDING, environment) for _ in range(builders)]
        self._timer = measuring_process(TIMING, environment)
        self._places: dict[str, tuple[str, int]] = {}  # kernel name -> library, index in it
        self._broken: dict[str, Failed] = {}
        self._verified: dict[tuple[str, int], float] = {}
        self._patience: defaultdict[int, Patience] = defaultdict(Patience)  # by threads: four on two cores always share them
        self.failures: dict[str, int] = {}
        paces = (Pace.kept(record.facts) for record in self._known.values())
        self._quiet: Pace | None = next((pace for pace in paces if pace), None)  # a resumed session keeps its pace

    def start(self) -> None:
        """Start all processes side by side: importing the compiler takes seconds and is no part of a budget."""
        workers = [*self._builders, self._timer]
        with ThreadPoolExecutor(len(workers)) as pool:
            for started in [pool.submit(worker.start) for worker in workers]:
                started.result()

    def close(self) -> None:
        """Stop the processes and remove the scratch folder."""
        for worker in (*self._builders, self._timer):
            worker.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def anew(self, what: str = "") -> None:
        """Begin another session, in which every trial is measured once more; what was built and verified stays."""
        self.session, self._known = self.store.start(self.fingerprint, resume=False, what=what), {}
        self.renew()

    def renew(self) -> None:
        """Time in a new process from here on: where code and data lie changes cold times by up to a quarter."""
        self._timer.close()  # its next job starts it

    def known(self, trial: Trial) -> Record | None:
        """The record of a trial that this session already has."""
        return self._known.get(trial.key())

    def prepare(self, names: Sequence[str]) -> None:
        """Build kernels ahead, all builders at work at once; what fails is known when its trials come."""
        self._build(names)

    def gather(self, names: Sequence[str]) -> None:
        """Build kernels into one library, so that any composition of them can be timed without another build."""
        sound = sorted({name for name in names if name not in self._broken})
        if len({self._places.get(name, (name, 0))[0] for name in sound}) > 1:
            self._build_batch(self._builders[0], sound)  # if it fails, the kernels stay where they were

    def compile_object(self, kernels: Sequence[MicroKernel], mcpu: str, out: Path) -> None:
        """One object file of kernels, made by a builder; RuntimeError with the compiler's words."""
        job = {"do": "object", "kernels": [kernel.name for kernel in kernels], "mcpu": mcpu, "out": str(out)}
        try:
            self._builders[0].ask(job, BUILD_LIMIT_S)
        except Unanswered as error:
            raise RuntimeError(f"could not compile the kept micro-kernels: {error}") from error

    def measure(self, trials: Iterable[Trial], goes_on: GoesOn = lambda _: True) -> list[Record]:
        """Records of the trials, in order.

        ``goes_on`` is asked before each new measurement (None) and told each record; when it says no the list ends
        early. What the store already holds costs nothing and is always delivered.
        """
        wanted = list(trials)
        found: list[Record] = []
        unbuilt = sorted({name for t in wanted if self.known(t) is None for name, _ in parts_of(t.kernel)})
        if unbuilt and goes_on(None):
            self._build(unbuilt)
        for trial in wanted:
            record = self.known(trial)
            if record is None:
                if not goes_on(None):
                    break
                record = self._elsewhere(trial) or self._record(trial, self._outcome(trial))
            found.append(record)
            goes_on(record)
        return found

    def _elsewhere(self, trial: Trial) -> Record | None:
        """The record of another tuner that resumed the same session, waited for while it measures; None: it is ours."""
        key, until = trial.key(), time.monotonic() + TIME_LIMIT_S
        while not self.store.claim(self.session.id, [key]):
            record = self.store.measured(self.fingerprint, session=self.session.id).get(key)
            if record is not None:
                self._known[key] = record
                return record
            if time.monotonic() > until:  # its owner lives but does not deliver
                return None
            time.sleep(LOOK_AGAIN_S)
        return None

    def _record(self, trial: Trial, found: Failed | tuple[Timed, Facts]) -> Record:
        outcome: Outcome = found if isinstance(found, Failed) else found[0]
        record = Record(
            trial=trial,
            outcome=outcome,
            device_id=self.device.id,
            fingerprint=self.fingerprint,
            session=self.session.id,
            when=time.time(),
            seed=self.seed,
            facts={} if isinstance(found, Failed) else found[1],
        )
        self.store.append([record])
        self._known[trial.key()] = record
        if isinstance(outcome, Failed):
            self.failures[outcome.reason] = self.failures.get(outcome.reason, 0) + 1
        return record

    def _build(self, names: Sequence[str]) -> None:
        missing = [name for name in names if name not in self._places and name not in self._broken]
        size = max(1, min(BATCH, -(-len(missing) // len(self._builders))))  # no builder idles while another has a few
        batches = [missing[i : i + size] for i in range(0, len(missing), size)]
        with ThreadPoolExecutor(len(self._builders)) as pool:
            lanes = [batches[i :: len(self._builders)] for i in range(len(self._builders))]
            for done in [pool.submit(self._build_lane, w, lane) for w, lane in zip(self._builders, lanes, strict=True)]:
                done.result()

    def _build_lane(self, worker: Child, batches: Sequence[Sequence[str]]) -> None:
        for batch in batches:
            failed = self._build_batch(worker, batch)
            if failed is None:
                continue
            for name in batch:  # find the culprit; the others are innocent
                alone = failed if len(batch) == 1 else self._build_batch(worker, [name])
                if alone is not None:
                    self._broken[name] = alone

    def _build_batch(self, worker: Child, names: Sequence[str]) -> Failed | None:
        tag = hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]
        out = str(self._scratch / f"{tag}.so")
        try:
            worker.ask({"do": "build", "kernels": list(names), "mcpu": self.device.arch, "out": out}, BUILD_LIMIT_S)
        except Unanswered as error:
            return error.failed("build")
        self._places.update({name: (out, index) for index, name in enumerate(names)})
        return None

    def _outcome(self, trial: Trial) -> Failed | tuple[Timed, Facts]:
        """What came of a trial; with a time what is known of the machine meanwhile."""
        parts = parts_of(trial.kernel)
        for name, _ in parts:
            if name in self._broken:
                return self._broken[name]
        setting = Setting.of(Op.parse(trial.op), [MicroKernel.parse(name) for name, _ in parts], self.device)
        libraries = {self._places[name][0] for name, _ in parts}
        if len(libraries) > 1:  # a composition of kernels built apart: build them together
            failed = self._build_batch(self._builders[0], sorted(dict(parts)))
            if failed is not None:
                return failed
        verify_error = 0.0
        for name, _ in parts:
            checked = self._verify(name, setting)
            if isinstance(checked, Failed):
                return checked
            verify_error = max(verify_error, checked)
        single = "*" not in trial.kernel
        regions = [
            [self._places[name][1], trial.shape["m"] // MicroKernel.parse(name)["mr"] if single else tiles]
            for name, tiles in parts
        ]
        job = {
            **self._base(setting, self._places[parts[0][0]][0], trial.shape["m"]),
            "do": "time",
            "parts": regions,
            "threads": trial.threads,
            "split": SPLITS.index(trial.split) if trial.threads > 1 else 0,
            "cold_bytes": self.policy.cold_bytes(self.device) if trial.weights == "cold" else 0,
        }
        try:
            quiet = self._pace(job)
            limit_s = TIME_LIMIT_S + TRIAL_CALLS * Op.parse(trial.op).flops(trial.shape) / 1e9 / SLOWEST_GFLOPS
            time_once = partial(self._timer.ask, job, limit_s)
            answer, crowded = (
                (time_once(), 1.0) if trial.threads == 1 else self._patience[trial.threads].least_crowded(time_once)
            )
            samples, drift = undisturbed(trial, self.device, answer, quiet, crowded)
            # Times the drift, a sample is what the clock said.
            seen = {"drift": drift, "crowding": crowded} if trial.threads > 1 else {"drift": drift}
            return Timed(samples_us=samples, max_error=verify_error), {**seen, **quiet.facts()}
        except Unanswered as error:
            return error.failed("time")

    def _pace(self, job: Mapping[str, object]) -> Pace:
        """How fast the machine was before the first trial, for all processes that time."""
        if self._quiet is None:
            look = {"do": "watch", "library": job["library"], "cold_bytes": self.policy.cold_bytes(self.device)}
            self._quiet = Pace.quiet(self._timer.ask(look, TIME_LIMIT_S))
        return self._quiet

    def _verify(self, name: str, setting: Setting) -> float | Failed:
        if (name, setting.k) not in self._verified:
            kernel = MicroKernel.parse(name)
            library, index = self._places[name]
            tile = {**{key: kernel[key] for key in ("mr", "nr", "pw")}, "nt": tail_columns(kernel)}
            job = {**self._base(setting, library, kernel["mr"]), **tile, "do": "verify", "kernel": index, "seed": self.seed}
            try:
                self._verified[name, setting.k] = float(self._timer.ask(job, TIME_LIMIT_S)["max_error"])
            except Unanswered as error:
                self._broken[name] = error.failed("verify")
                return self._broken[name]
        return self._verified[name, setting.k]

    def _base(self, setting: Setting, library: str, m: int) -> dict[str, object]:
        return {
            "library": library,
            "m": m,
            **setting.words(m),
            "threads": 1,
            "split": 0,
            "sample_ns": self.policy.sample_us * 1000,
            "limit_ns": self.policy.limit_us * 1000,
            "least": self.policy.least,
            "most": self.policy.most,
            "cold_bytes": 0,
        }


def parts_of(kernel: str) -> list[tuple[str, int]]:
    """Regions of a trial's kernel text: ``NAME`` alone (tiles follow from m: 0) or ``NAME*tiles+NAME*tiles``."""
    parts = []
    for part in kernel.split("+"):
        name, _, tiles = part.partition("*")
        parts.append((name, int(tiles or 0)))
    return parts
