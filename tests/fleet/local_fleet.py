"""A fleet on this host for tests: a head that only builds, nodes that come and go, and the check of its records."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("grpc")

import ray
from ray.exceptions import RayActorError

from haotuner.backends.index import backend_for
from haotuner.fleet.connection import NAMESPACE, Connection
from haotuner.fleet.engine import Programs, RayEngine
from haotuner.fleet.node import Node, Ports, free_ports, started
from haotuner.fleet.offer import Offer
from haotuner.hw_profiles.find import find_device
from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.records import RecordStore, open_store
from haotuner.records.codec import trial_of
from haotuner.records.patient import PatientStore
from haotuner.spec.record import Trial
from haotuner.spec.shape import Shape
from tests.backends.native_jobs import ENVIRONMENT
from tests.fleet.replay_programs import ReplayBuilder, ReplayMeasurer

REPLAY = Programs(measurer=ReplayMeasurer, builder=ReplayBuilder)
AVX2, AVX512 = "cpu:avx2", "cpu:avx512"
HEAD_S = 1500.0  # that a head of another test file may still live: the longest of them takes nine minutes on a busy host
LIMIT_S = 40.0  # of a call: replayed ones take 20 ms, but a program may start first, in a crowd in 30 s


class LocalFleet:
    """Nodes of this host. ``begin`` starts the head; ``end`` kills all that is left. ``host``: the head's address."""

    def __init__(self, environment: dict[str, str] | None = None, host: str = "127.0.0.1") -> None:
        self._environment, self._host = {**os.environ, **(environment or {})}, host
        self._nodes: dict[str, tuple[ExitStack, Node]] = {}
        self.ports = Ports(gcs=0, client=0)

    @property
    def address(self) -> str:
        return f"ray://{self._host}:{self.ports.client}"

    def begin(self, *names: str) -> None:
        """A head, and a node for each device. One node with all devices and no other for the name ``head:DEVICES``."""
        gcs, client = free_ports(2)
        self.ports = Ports(gcs=gcs, client=client)
        self._start("head", Offer(devices={}, builds=1), self._host, head=self.ports)
        for name in names:
            self.join(name)

    def join(self, name: str, *, host: str = "", known_as: str = "") -> None:
        """A node that offers a device. ``host``: its own address; ``known_as``: its name for ``kill``, if not the device."""
        device = replace(find_device(name, measure=False), compute_units=1)
        offer, address = Offer(devices={name: device}, builds=1), f"{self._host}:{self.ports.gcs}"
        self._start(known_as or name, offer, host or self._host, address=address)

    def kill(self, name: str) -> None:
        """Kill all processes of a node, as a power cut would."""
        self._nodes.pop(name)[0].close()

    def rename(self, name: str, other: str) -> None:
        """Let ``kill`` know a node by another name."""
        self._nodes[other] = self._nodes.pop(name)

    def end(self) -> None:
        for name in sorted(self._nodes, key=lambda name: name == "head"):
            self.kill(name)

    def _start(self, name: str, offer: Offer, host: str, **where: Any) -> None:
        stack = ExitStack()
        node = stack.enter_context(started(offer, self._environment, host=host, wait_s=HEAD_S, **where))
        self._nodes[name] = stack, node


@contextlib.contextmanager
def local_fleet(*names: str, environment: dict[str, str] | None = None) -> Iterator[LocalFleet]:
    fleet = LocalFleet(environment)
    try:
        fleet.begin(*names)
        yield fleet
    finally:
        fleet.end()


def trials(name: str, count: int) -> list[Trial]:
    """Trials of a few kernels at many shapes."""
    lanes = find_device(name, measure=False).wave_width
    kernels = [CpuDense().kernel(rows, lanes, lanes, 1, lanes).name for rows in (1, 2, 3, 4)]
    pairs = [(kernel, rows) for rows in range(1, 1 + -(-count // 4)) for kernel in kernels]
    return [trial_of(op="dense_n100_k33", kernel=kernel, shape=Shape.of(m=12 * rows), weights="hot")
            for kernel, rows in pairs[:count]]  # fmt: skip


def engine_of(connection: Connection, name: str, limit_s: float = LIMIT_S) -> RayEngine:
    return RayEngine(connection, name, backend_for, limit_s=limit_s, programs=REPLAY)


@contextlib.contextmanager
def lab_of(engine: RayEngine, store: RecordStore, *, resume: bool = True) -> Iterator[DeviceMeasurer]:
    """A measurer that is ready, as a run of tuning has it."""
    lab = DeviceMeasurer(engine.device, store, environment=ENVIRONMENT, resume=resume, engine=engine)
    try:
        lab.start()
        yield lab
    finally:
        lab.close()


@contextlib.contextmanager
def patient(url: str) -> Iterator[PatientStore]:
    store = PatientStore(open_store(url))
    try:
        yield store
    finally:
        store.close()


def measurer_pid(engine: RayEngine) -> int:
    """Process of the device's measurer, on this host; one that was killed is waited for until it is back."""
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            actor = ray.get_actor(f"measurer {engine.device.id}", namespace=NAMESPACE)
            return int(ray.get(actor.process_id.remote(), timeout=60))
        except RayActorError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def check_store(url: str, expected: Sequence[Trial]) -> None:
    """AssertionError unless each trial has exactly one record, and the store is sound."""
    store = open_store(url, write=False)
    try:
        keys = Counter(record.trial.key() for record in store.records())
        assert store.check() == ()
    finally:
        store.close()
    assert keys == Counter({trial.key(): 1 for trial in expected})
