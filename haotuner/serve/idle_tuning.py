"""Tuning while a server is idle: for the traffic that was captured, within a share of the cores.

The new pack and the one that is served answer the captured requests in turns. Only a faster one takes the place of the old
one, and is handed over. `haotuner tune` runs as a command of its own, so that a server needs nothing of the tuner.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from haotuner.errors import HaotunerError, UsageError
from haotuner.isolate.throttle import run_throttled
from haotuner.pack.manifest import read_manifest
from haotuner.pack.write import publish
from haotuner.partition.dim_ranges import UNSAID
from haotuner.serve.observing import Observing
from haotuner.serve.repository import LOG, Repository
from haotuner.serve.traffic import Traffic

LEAST_REQUESTS = 100  # that came since the last tuning: fewer are no traffic
IDLE_S = 5.0  # without a request before it begins
RACED = 8  # requests of each model, the most frequent
RACE_S = 2.0  # of calls of each pack in each of its turns
TURNS = 3
FASTER = 0.97  # of the old pack's time, at most: less is chance
LISTED = 8  # different sizes of a dimension that are tuned one by one; more are a range

Command = Callable[[Sequence[str], Path], "int | None"]


@dataclass(slots=True)
class IdleTuner:
    """A thread that tunes one pack after the other. ``files``: of the models, by name. UsageError where some lack."""

    repository: Repository
    observing: Observing
    traffic: Traffic
    files: Mapping[str, Path]
    share: float
    budget: str = "5m"
    rounds: int = field(init=False, default=0)
    _stopping: threading.Event = field(init=False, default_factory=threading.Event)
    _seen: dict[Path, int] = field(init=False, default_factory=dict)
    _thread: threading.Thread | None = field(init=False, default=None)

    def start(self) -> None:
        """Begin to wait for traffic and idleness."""
        for path in self.repository.packs:
            absent = [name for name in self.repository.models_of(path) if name not in self.files]
            if absent:
                raise UsageError(
                    f"--tune-idle: {path} holds the model {absent[0]}, whose file is not known; name it with --file "
                    f"{absent[0]}.onnx"
                )
        self._thread = threading.Thread(target=self._loop, name="haotuner-idle-tuning", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End at once; a tuning that runs is given up."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        idle_since = time.monotonic()
        while not self._stopping.wait(0.2):
            now = time.monotonic()
            if self.repository.busy:
                idle_since = now
            if now - idle_since < IDLE_S:
                continue
            for path in list(self.repository.packs):
                count = self._requests(path)
                if count - self._seen.get(path, 0) >= LEAST_REQUESTS:
                    self._seen[path] = count
                    self._round(path)

    def _requests(self, path: Path) -> int:
        return sum(sum(self.traffic.counts(name).values()) for name in self.repository.models_of(path))

    def _round(self, path: Path) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="haotuner-idle-") as folder:
                self.tune(path, Path(folder), self._throttled)
        except Exception as error:  # whatever it is, the next traffic is tuned for
            LOG.error("not tuned", extra={"facts": {"pack": str(path), "why": str(error)[:500]}})
        self.rounds += 1

    def _throttled(self, command: Sequence[str], log: Path) -> int | None:
        return run_throttled(command, self.share, lambda: self.repository.busy, self._stopping.is_set, log)

    def tune(self, path: Path, folder: Path, run: Command) -> float | None:
        """Tune for what was captured, race, and hand over where it pays: time of the new pack over the old one's.

        None where no new pack came about, or where another took its place meanwhile. ``run`` carries out a command.
        """
        pack = self.repository.packs[path]
        every = self.repository.models_of(path)
        names = [name for name in every if self.traffic.counts(name)]
        new, log = folder / "pack", folder / "log"
        words = ["-m", "haotuner", "tune", *(str(self.files[name]) for name in every)]
        for name in every:
            words += ["--shapes", shapes_of(self.traffic, name, pack.manifest.tuning)]
        words += ["--threads", str(pack.threads), "--budget", self.budget, "--out", str(new), "--peers", "none", "-q"]
        words += ["--batch-invariant"] if pack.manifest.batch_invariant else []
        LOG.info("tuning while idle", extra={"facts": {"pack": str(path), "models": names}})
        code = run([sys.executable, *words], log)
        if code is None:
            return None
        if code not in (0, 3) or not new.is_dir():
            raise HaotunerError(f"tuning ended with exit code {code}: {log.read_text(errors='replace').strip()[-400:]}")
        ratio = self._raced(path, new, names, folder, run)
        facts = {"pack": str(path), "time_ratio": None if ratio is None else round(ratio, 4)}
        if ratio is None or ratio > FASTER:
            LOG.info("the served pack stays", extra={"facts": facts})
            return ratio
        if self.repository.packs[path] is not pack or read_manifest(path) != pack.manifest:
            LOG.info("another pack came meanwhile", extra={"facts": facts})
            return None
        files = [item for item in sorted(new.rglob("*")) if item.is_file()]
        publish(path, {item.relative_to(new).as_posix(): item.read_bytes() for item in files}, _check)
        LOG.info("a faster pack was tuned", extra={"facts": facts})
        self.observing.hand_over(self.repository, path)
        return ratio

    def _raced(self, old: Path, new: Path, names: Sequence[str], folder: Path, run: Command) -> float | None:
        """Time of the new pack over that of the old one at the captured requests, by how often they came."""
        requests = {name: list(self.traffic.counts(name).items())[:RACED] for name in names}
        plan = {"threads": [self.repository.packs[old].threads],
                "requests": {name: [dict(sizes) for sizes, _ in rows] for name, rows in requests.items()}}  # fmt: skip
        (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        shutil.copytree(old, folder / "old")  # what lies there may be replaced meanwhile
        least: dict[str, dict[str, list[float]]] = {"old": {}, "pack": {}}
        for turn in range(2 * TURNS):
            who = ("old", "pack")[turn % 2]
            module = [sys.executable, "-m", "haotuner.verify.model_times"]
            code = run([*module, str(folder / who), str(RACE_S * len(names)), str(folder / "plan.json")], folder / "times")
            if code != 0:
                return None
            document = json.loads((folder / "times").read_text(encoding="utf-8").splitlines()[-1])
            for name, rows in next(iter(document.values())).items():
                times = [min(row, default=float("inf")) for row in rows]
                before = least[who].get(name, [float("inf")] * len(times))
                least[who][name] = [min(pair) for pair in zip(before, times, strict=True)]
        totals = {
            who: sum(count * us for name in names for (_, count), us in zip(requests[name], least[who][name], strict=True))
            for who in least
        }
        finite = totals["old"] > 0 and totals["pack"] < float("inf") and totals["old"] < float("inf")
        return totals["pack"] / totals["old"] if finite else None


def _check(aside: Path) -> None:
    read_manifest(aside)


def shapes_of(traffic: Traffic, model: str, tuning: Mapping[str, object]) -> str:
    """``--shapes`` of the captured requests: few sizes one by one, more as a range; of no request what was tuned before."""
    counts = traffic.counts(model)
    if not counts:
        ranges: Mapping[str, Sequence[int]] = dict(tuning.get("model_ranges", {})).get(model, {})  # type: ignore[call-overload]
        return ";".join(f"{name}={first}..{last}" for name, (first, last) in ranges.items()) or UNSAID
    sizes: dict[str, set[int]] = {}
    for request in counts:
        for name, size in request:
            sizes.setdefault(name, set()).add(max(1, size))
    return ";".join(f"{name}={_text(sorted(values))}" for name, values in sizes.items()) or UNSAID


def _text(values: Sequence[int]) -> str:
    return ",".join(map(str, values)) if len(values) <= LISTED else f"{values[0]}..{values[-1]}"
