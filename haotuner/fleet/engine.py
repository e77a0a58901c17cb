"""Engine of a fleet: builds go to any node that compiles, timings to the one measurer of the device."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from haotuner.backends.backend import Backend, Facts, LibrarySlot
from haotuner.backends.cpu.group_jobs import BUILD_LIMIT_S, GroupJob
from haotuner.backends.fingerprint import Policy
from haotuner.errors import WorkerLost
from haotuner.fleet.connection import Connection
from haotuner.fleet.node_programs import BuilderProgram, Built, Libraries, MeasurerProgram, Missing, NodeFacts, Setup, digest
from haotuner.fleet.offer import BUILD, SHARE, resource
from haotuner.fleet.versions import check_toolchain
from haotuner.isolate.answers import ChildNotResponding, Crashed, Refused, TimedOut
from haotuner.isolate.child import Child
from haotuner.measure.engine import Builder, EngineLost
from haotuner.ops.groups import definitions
from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Timed, Trial

START_LIMIT_S = 120.0  # a program of Ray starts in 3 s, the compiler in 5; in a crowd ten times that
CALL_LIMIT_S = 120.0  # a timing ends within 20 s and a verification, too, in the node's own processes: beyond, it hangs
TRIES = 3  # of a call whose program died or hung; Ray itself repeats it on the way
MOST_BUILDERS = 14  # as of a local run
OBJECT = "object"  # the request for a pack's code, which is linked here: it is compiled here, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Programs that nodes run: those that measure, or others that answer the same calls (a replay of recorded times)."""

    measurer: type[MeasurerProgram] = MeasurerProgram
    builder: type[BuilderProgram] = BuilderProgram


MEASURING = Programs()


class RayEngine:
    """``Engine`` of one device of a fleet. ``name``: as ``--device`` has it; ``device``: its profile, from the node."""

    trials_ahead = 1  # a call over Ray, a claim and a record take 15 ms, a short trial 100

    def __init__(
        self,
        connection: Connection,
        name: str,
        backend_of: Callable[[Device], Backend],
        *,
        limit_s: float = CALL_LIMIT_S,
        programs: Programs = MEASURING,
    ) -> None:
        """UnknownDevice where no node offers the device, EnvironmentMissing for a node of other versions.

        ``limit_s``: of a call, after which its program is taken for hanging.
        """
        self._connection, self.name, self._limit_s = connection, name, limit_s
        self._node = connection.require(name)
        self._programs, self._start = programs, _measurer(programs, self._node.devices[name])
        facts = Caller(connection, name, self._start, limit_s).call("facts", limit_s=START_LIMIT_S)
        assert isinstance(facts, NodeFacts) and facts.device is not None
        self.device = facts.device
        self._own = backend_of(self.device).toolchain()
        check_toolchain(self._node.address, facts.toolchain, self._own)

    def builders(self, backend: Backend, environment: Mapping[str, str], count: int) -> Sequence[Builder]:
        """Builders on nodes that only build, else on the device's own: there they never run beside its timings."""
        nodes = [node for node in self._connection.nodes() if node.alive and node.builds]
        apart = [node for node in nodes if not node.devices]
        most = sum(node.builds for node in apart) if apart else min(count, self._node.builds)
        packing = backend.builder(environment)
        start = _builder(self._programs, backend.name, self.name, "" if apart else self._node.id)
        return [
            RayBuilder(Caller(self._connection, "", start, START_LIMIT_S), packing, self._own)
            for _ in range(max(1, min(most, MOST_BUILDERS)))
        ]

    def timer(
        self, backend: Backend, device: Device, policy: Policy, environment: Mapping[str, str], *, seed: int
    ) -> RayTimer:
        """The device's measurer."""
        setup = Setup(run=uuid.uuid4().hex[:12], policy=policy, seed=seed, groups=definitions())
        return RayTimer(Caller(self._connection, self.name, self._start, self._limit_s), setup)

    def time_groups(self, job: GroupJob) -> list[str]:
        """A process on the device's node, in turns with timings there."""
        caller = Caller(self._connection, self.name, self._start, self._limit_s)
        lines: list[str] = caller.call("time_groups", job, limit_s=BUILD_LIMIT_S + job.limit_s + self._limit_s)
        return lines


class Caller:
    """Calls of one program that Ray runs, which is started anew where it died or hangs. Threads may call side by side."""

    def __init__(self, connection: Connection, name: str, start: Callable[[], Any], limit_s: float) -> None:
        self._connection, self._name, self._start, self._limit_s = connection, name, start, limit_s
        self._handle: Any = None
        self._lock = threading.Lock()

    def call(self, method: str, *arguments: Any, limit_s: float = 0.0) -> Any:
        """Answer of a method. EngineLost where nobody is left to answer, WorkerLost where the program cannot answer."""
        limit_s, why = limit_s or self._limit_s, ""
        for _ in range(TRIES):
            handle = None
            try:
                handle = self._started()
                return self._connection.answer(getattr(handle, method).remote(*arguments), limit_s, self._name)
            except TimeoutError as error:
                why = str(error)
                self._end(handle)
            except RayTaskError as error:
                cause = getattr(error, "cause", None)
                raise cause if isinstance(cause, Exception) else WorkerLost(f"{self._name}: {error}") from error
            except RayActorError as error:
                why = " ".join(str(error).split())[:300]
                self._forget(handle)
            except EngineLost:
                raise
            except Exception as error:  # Ray's client names no class for a head that is gone
                raise self._connection.gone(error) from error
        raise EngineLost(f"{self._name}: the program on its node did not answer {TRIES} times: {why}")

    def end(self) -> None:
        """Kill the program; the next call starts another."""
        self._end(self._handle)

    def _started(self) -> Any:
        with self._lock:
            self._handle = self._handle or self._start()
            return self._handle

    def _end(self, handle: Any) -> None:
        if self._forget(handle):
            with suppress(Exception):  # it is gone already, or the head is
                ray.kill(handle)

    def _forget(self, handle: Any) -> bool:
        """Have the next call start a program. False where another thread did so for this handle."""
        with self._lock:
            if handle is None or handle is not self._handle:
                return False
            self._handle = None
            return True


class RayTimer:
    """``Timer`` on the device's node."""

    def __init__(self, caller: Caller, setup: Setup) -> None:
        self._caller, self._setup = caller, setup
        self._verified: dict[tuple[str, str], float | Failed] = {}
        self._hashes: dict[str, str] = {}  # by the library's path on this host

    def start(self) -> None:
        """Have the process on the node ready."""
        self._caller.call("ready", self._setup, limit_s=START_LIMIT_S)

    def close(self) -> None:
        """End the process on the node; its program stays for others."""
        with suppress(EngineLost, WorkerLost):
            self._caller.call("leave", self._setup.run)

    def renew(self) -> None:
        """Use a new process from here on."""
        self._setup = replace(self._setup, generation=self._setup.generation + 1)

    def resume(self, facts: Facts) -> None:
        """Go on at the pace of an earlier session."""
        if not self._setup.pace and facts:
            self._setup = replace(self._setup, pace=dict(facts))

    def verify(self, op: Op, kernel: MicroKernel, slot: LibrarySlot) -> float | Failed:
        """See ``Timer``."""
        key = op.name, kernel.name
        if key not in self._verified:
            self._verified[key] = self._with_libraries("verify", (op, kernel), {kernel.name: slot})
        return self._verified[key]

    def time(
        self, trial: Trial, op: Op, composition: Composition, slots: Mapping[str, LibrarySlot], max_error: float
    ) -> Failed | tuple[Timed, Facts]:
        """See ``Timer``."""
        used = {part.kernel: slots[part.kernel] for part in composition.parts}
        answer: Failed | tuple[Timed, Facts] = self._with_libraries("time", (trial, op, composition), used, max_error)
        if not isinstance(answer, Failed):
            self.resume(answer[1])  # a program that takes its turn over, on any node, goes on at this pace
        return answer

    def _with_libraries(self, method: str, words: tuple[Any, ...], slots: Mapping[str, LibrarySlot], *more: Any) -> Any:
        """Answer of the node, which is sent the libraries that it lacks."""
        paths = {self._hash(slot.library): slot.library for slot in slots.values()}
        named = {name: LibrarySlot(library=self._hash(slot.library), index=slot.index) for name, slot in slots.items()}
        libraries = Libraries(slots=named)
        answer = self._caller.call(method, self._setup, *words, libraries, *more)
        for _ in range(TRIES):
            if not isinstance(answer, Missing):
                return answer
            libraries = Libraries(slots=named, data={name: Path(path).read_bytes() for name, path in paths.items()})
            answer = self._caller.call(method, self._setup, *words, libraries, *more)
        raise EngineLost(f"the node of {words[0]} lost its libraries {TRIES} times")

    def _hash(self, path: str) -> str:
        if path not in self._hashes:
            self._hashes[path] = digest(Path(path).read_bytes())
        return self._hashes[path]


class RayBuilder:
    """``Builder`` on a node; code of packs is compiled by ``packing``, a process of this host."""

    def __init__(self, caller: Caller, packing: Child, toolchain: Mapping[str, str]) -> None:
        self._caller = caller
        self._packing, self._own, self._checked = packing, toolchain, False

    def start(self) -> None:
        """Have the process ready. EnvironmentMissing for a node of other versions."""
        if not self._checked:
            facts = self._caller.call("facts")
            check_toolchain(facts.node, facts.toolchain, self._own)
            self._checked = True
        self._caller.call("ready")

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """See ``Builder``."""
        if request.get("do") == OBJECT:
            return self._packing.ask(request, limit_s)
        built: Built = self._caller.call("ask", dict(request), limit_s, limit_s=limit_s + START_LIMIT_S)
        if built.refused is not None:
            raise Refused(*built.refused[:3], fatal=built.refused[3])
        if built.lost is not None:
            raise _lost(built.lost)
        if "out" in request:
            Path(request["out"]).write_bytes(built.data)
        return {**built.answer, **({"out": request["out"]} if "out" in request else {})}

    def close(self) -> None:
        """End the process, and its program on the node."""
        self._packing.close()
        self._caller.end()


def _lost(failed: Failed) -> ChildNotResponding:
    return TimedOut(failed.detail) if failed.reason == TimedOut.reason else Crashed(failed.detail)


def _measurer(programs: Programs, device_id: str) -> Callable[[], Any]:
    """Starts the measurer of a device, or finds the one that another tuner started: it is one a device."""

    def start() -> Any:
        return ray.remote(programs.measurer).options(
            name=f"measurer {device_id}", get_if_exists=True, num_cpus=0, resources={resource(device_id): 1},
            max_restarts=-1, max_task_retries=TRIES,
        ).remote(device_id)  # fmt: skip

    return start


def _builder(programs: Programs, backend: str, name: str, node: str) -> Callable[[], Any]:
    """Starts a builder: on this node while it lives, where one is named, else on any that builds."""

    def start() -> Any:
        strategy = NodeAffinitySchedulingStrategy(node, soft=True) if node else "SPREAD"
        return ray.remote(programs.builder).options(
            num_cpus=0, resources={BUILD: SHARE}, max_restarts=-1, max_task_retries=TRIES, scheduling_strategy=strategy,
        ).remote(backend, definitions(), name if node else "")  # fmt: skip

    return start
