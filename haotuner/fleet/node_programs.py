"""Programs that Ray runs on a node: a measurer, one a device, and builders. Both own child processes, as a local run does.

A call says all that it needs. So a program that Ray started again, here or on another node, answers as the one before.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from haotuner.backends.backend import CACHE_WORD, DEVICE_CODE, DEVICE_WORD, OBJECTS_WORD, Facts, LibrarySlot, Timer
from haotuner.backends.cpu.group_jobs import GroupJob, timed_here
from haotuner.backends.fingerprint import Policy
from haotuner.fleet.offer import OFFER_WORD, Offer
from haotuner.host.files import scratch_folder
from haotuner.isolate.answers import ChildNotResponding, Refused
from haotuner.isolate.child import Child
from haotuner.ops.groups import definitions
from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Timed, Trial

RUNS = 4  # tuners whose timing processes a measurer keeps: each holds some 0.5 GB
LIBRARIES = 200  # files that a measurer keeps, of some hundred kilobytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings of a tuner's timings. ``generation``: raised for a new process; ``pace``: facts of an earlier record."""

    run: str  # the tuner's own name
    policy: Policy
    seed: int
    generation: int = 0
    pace: Facts = field(default_factory=dict)
    groups: tuple[str, ...] = ()  # kinds that files brought to the tuner


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """Libraries of a call by the hash of their content, with the content of those that are sent; slots by kernel."""

    slots: Mapping[str, LibrarySlot]  # ``library`` is the hash
    data: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Missing:
    """Hashes of libraries that a measurer lacks: sent with them, the same call is answered."""

    hashes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts of a program's node."""

    node: str
    toolchain: Mapping[str, str]
    device: Device | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Answer of a builder: with the file that it made, or why there is none (stage, reason, detail, fatal)."""

    answer: Mapping[str, Any]
    data: bytes = b""
    refused: tuple[str, str, str, bool] | None = None
    lost: Failed | None = None  # the process timed out or died


def digest(data: bytes) -> str:
    """Hash of a library's content."""
    return hashlib.sha256(data).hexdigest()[:32]


class LibraryFolder:
    """Libraries that tuners sent to a node, by the hash of their content; the oldest ones go."""

    def __init__(self, folder: Path, most: int = LIBRARIES) -> None:
        self._folder, self._most = folder, most
        self._stored: dict[str, Path] = {}

    def slots(self, libraries: Libraries) -> dict[str, LibrarySlot] | Missing:
        """Slots with paths of this node by kernel, or the hashes of libraries that were never sent."""
        for name, data in libraries.data.items():
            if name not in self._stored:  # one that a process has mapped must not be written again
                self._stored[name] = self._folder / f"{digest(data)}.so"
                self._stored[name].write_bytes(data)
        missing = {slot.library for slot in libraries.slots.values()} - self._stored.keys()
        if missing:
            return Missing(tuple(sorted(missing)))
        for name in list(self._stored)[: -self._most]:
            if all(slot.library != name for slot in libraries.slots.values()):
                self._stored.pop(name).unlink(missing_ok=True)
        return {
            kernel: LibrarySlot(library=str(self._stored[slot.library]), index=slot.index)
            for kernel, slot in libraries.slots.items()
        }


class MeasurerProgram:
    """Verifies and times on one device of its node, for several tuners in turns."""

    def __init__(self, requested: str) -> None:
        with _without_torch():
            from haotuner.backends.index import backend_for

        offer = own_offer()
        name = offer.names[requested]
        if name in offer.cores:
            os.sched_setaffinity(0, offer.cores[name])  # and so do the processes that time
        self._device = offer.devices[name]
        self._backend = backend_for(self._device)
        self._resources = ExitStack()
        self._folder = self._resources.enter_context(scratch_folder())
        self._environment = environment_of(offer, name, self._folder)
        self._timers: dict[str, tuple[Setup, Timer]] = {}
        self._libraries = LibraryFolder(self._folder)

    def facts(self) -> NodeFacts:
        """Device and versions of the node."""
        return NodeFacts(node=os.uname().nodename, toolchain=self._backend.toolchain(), device=self._device)

    def ready(self, setup: Setup) -> None:
        """Have a process for a tuner. WorkerLost if it cannot be had."""
        self._timer(setup).start()

    def verify(self, setup: Setup, op: Op, kernel: MicroKernel, libraries: Libraries) -> float | Failed | Missing:
        """As of ``Timer``."""
        slots = self._libraries.slots(libraries)
        return slots if isinstance(slots, Missing) else self._timer(setup).verify(op, kernel, slots[kernel.name])

    def time(
        self, setup: Setup, trial: Trial, op: Op, composition: Composition, libraries: Libraries, max_error: float
    ) -> Failed | tuple[Timed, Facts] | Missing:
        """As of ``Timer``."""
        slots = self._libraries.slots(libraries)
        if isinstance(slots, Missing):
            return slots
        return self._timer(setup).time(trial, op, composition, slots, max_error)

    def time_groups(self, job: GroupJob) -> list[str]:
        """As of ``Engine``."""
        return timed_here(job)

    def leave(self, run: str) -> None:
        """End the process of a tuner."""
        if run in self._timers:
            self._timers.pop(run)[1].close()

    def process_id(self) -> int:
        """Id of this process on its node."""
        return os.getpid()

    def _timer(self, setup: Setup) -> Timer:
        before, timer = self._timers.pop(setup.run, (None, None))
        if timer is None:
            learn(setup.groups)
            while len(self._timers) >= RUNS:  # the oldest one's tuner may be gone
                self._timers.pop(next(iter(self._timers)))[1].close()
            timer = self._backend.timer(self._device, setup.policy, self._environment, seed=setup.seed)
            if setup.pace:
                timer.resume(setup.pace)
        elif before is not None and before.generation != setup.generation:
            timer.renew()
        self._timers[setup.run] = setup, timer
        return timer


class BuilderProgram:
    """Compiles on its node, for one tuner."""

    def __init__(self, backend: str, groups: tuple[str, ...], requested: str = "") -> None:
        """``requested``: a device of the node on whose cores it keeps, for it compiles while that one does not time."""
        with _without_torch():
            from haotuner.backends.index import backend_named

        learn(groups)
        offer = own_offer()
        if (name := offer.names.get(requested)) in offer.cores:
            os.sched_setaffinity(0, offer.cores[str(name)])
        self._backend = backend_named(backend)
        self._resources = ExitStack()
        self._folder = self._resources.enter_context(scratch_folder())
        environment = environment_of(offer, "", self._folder)
        self._child: Child = self._backend.builder(environment)

    def facts(self) -> NodeFacts:
        """Versions of the node. EnvironmentMissing where it cannot compile."""
        return NodeFacts(node=os.uname().nodename, toolchain=self._backend.toolchain())

    def ready(self) -> None:
        """Have the process. WorkerLost if it cannot be had."""
        self._child.start()

    def ask(self, request: Mapping[str, Any], limit_s: float) -> Built:
        """Answer of the process, with the file that the request names at ``out``."""
        own = dict(request)
        out = self._folder / "out.so" if "out" in own else None
        if out is not None:
            own["out"] = str(out)
        try:
            answer = self._child.ask(own, limit_s)
        except Refused as refused:
            return Built(answer={}, refused=(refused.stage, refused.reason, str(refused), not refused.alive))
        except ChildNotResponding as error:
            return Built(answer={}, lost=error.failed("build"))
        return Built(answer=answer, data=b"" if out is None else out.read_bytes())

    def process_id(self) -> int:
        """Id of this process on its node."""
        return os.getpid()


@contextmanager
def _without_torch() -> Iterator[None]:
    """Imports inside find no torch: tvm_ffi imports it where it is, which takes seconds and serves nobody here."""
    absent = "torch" not in sys.modules
    if absent:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules["torch"]


def own_offer() -> Offer:
    """Offer of the node of this process."""
    return Offer.of_text(os.environ[OFFER_WORD])


def environment_of(offer: Offer, requested: str, folder: Path) -> dict[str, str]:
    """Environment of child processes: files of a killed compiler stay in ``folder``, compiled code in the node's cache."""
    environment = {**os.environ, "TMPDIR": str(folder), OBJECTS_WORD: str(folder / "objects"), DEVICE_WORD: requested}
    if offer.cache:
        environment[CACHE_WORD] = str(Path(offer.cache) / DEVICE_CODE)
        environment[OBJECTS_WORD] = str(Path(offer.cache) / "objects")
    return environment


def learn(groups: tuple[str, ...]) -> None:
    """Know the kinds that files brought to the tuner."""
    if set(groups) - set(definitions()):
        from haotuner.graph.group import learned

        for definition in groups:
            learned(definition)
