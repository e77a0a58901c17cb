"""Promises of an engine, whichever it is: this host's processes or a fleet's programs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haotuner.backends.backend import Timer
from haotuner.backends.cpu.backend import CpuBackend
from haotuner.backends.cpu.group_jobs import GroupJob
from haotuner.backends.fingerprint import Policy
from haotuner.hw_profiles.find import find_device
from haotuner.isolate.answers import Refused
from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.measure.engine import DeviceEngine, LocalEngine
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.records import MemoryStore
from haotuner.records.codec import trial_of
from haotuner.spec.device import Device
from haotuner.spec.record import Failed, Record, Timed
from haotuner.spec.shape import Shape
from tests.backends.native_jobs import ENVIRONMENT

QUICK = Policy(sample_us=5, limit_us=50, least=3, most=4, cold_factor=1)
NAME = "cpu:avx2"
PAUSE_S = 0.3  # that a timing takes at least, so that the next trial comes meanwhile
pytestmark = pytest.mark.isa("avx2", "fma")


class Here(LocalEngine):
    """This host's processes, with the device that they time."""

    def __init__(self) -> None:
        self.device: Device = find_device(NAME, measure=False)


class InTurns:
    """Timer that threads may call side by side, as a node's is; all else is of the timer behind it."""

    def __init__(self, timer: Timer) -> None:
        self._timer, self._lock = timer, threading.Lock()
        self.running = self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._timer, name)

    def verify(self, *arguments: Any) -> Any:
        with self._turn():
            return self._timer.verify(*arguments)

    def time(self, *arguments: Any) -> Any:
        with self._turn():
            time.sleep(PAUSE_S)
            return self._timer.time(*arguments)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Alone at the timer; those that wait for it count as running."""
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            with self._lock:
                yield
        finally:
            self.running -= 1


class Ahead(Here):
    """This host's processes, with a timer that takes the next trial while one is under way."""

    trials_ahead = 1

    def timer(self, *arguments: Any, **named: Any) -> Any:
        self.last = InTurns(super().timer(*arguments, **named))
        return self.last


@pytest.fixture(scope="module", params=["local", "ahead", pytest.param("fleet", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Iterator[DeviceEngine]:
    if request.param != "fleet":
        yield Here() if request.param == "local" else Ahead()
        return
    pytest.importorskip("ray")
    pytest.importorskip("grpc")
    from haotuner.backends.index import backend_for
    from haotuner.fleet.connection import Connection
    from haotuner.fleet.engine import RayEngine
    from tests.fleet.local_fleet import local_fleet

    with local_fleet(NAME) as fleet, Connection(fleet.address) as client:
        yield RayEngine(client, NAME, backend_for)


def kernel(rows: int, unroll: int = 1) -> str:
    lanes = find_device(NAME, measure=False).wave_width
    return CpuDense().kernel(rows, lanes, lanes, unroll, lanes).name


def test_a_builder_leaves_its_file_here_and_refuses_what_does_not_compile(engine: DeviceEngine, tmp_path: Path) -> None:
    backend = CpuBackend()
    builders = engine.builders(backend, ENVIRONMENT, 2)
    assert 1 <= len(builders) <= 2
    out = tmp_path / "kernels.so"
    try:
        builders[0].start()
        code = builders[0].ask(backend.code_request([kernel(1)], engine.device), 300.0)["code"]
        assert set(code) == {kernel(1)} and code[kernel(1)]
        assert builders[0].ask(backend.build_request([kernel(1)], engine.device, str(out)), 300.0)["out"] == str(out)
        assert out.read_bytes()[:4] == b"\x7fELF"
        with pytest.raises(Refused) as refused:
            builders[0].ask(backend.build_request([kernel(2, unroll=0)], engine.device, str(out)), 300.0)
        assert (refused.value.stage, refused.value.reason) == ("build", "compile_error")
    finally:
        for builder in builders:
            builder.close()


def test_a_measurer_over_it_has_a_record_of_each_trial_and_keeps_its_pace(engine: DeviceEngine) -> None:
    store = MemoryStore()
    trials = [
        trial_of(op="dense_n100_k33", kernel=name, shape=Shape.of(m=12 * rows), weights="hot")
        for name in (kernel(1), kernel(2, unroll=0), kernel(3))
        for rows in (1, 2)
    ]
    lab = DeviceMeasurer(engine.device, store, environment=ENVIRONMENT, policy=QUICK, builders=2, engine=engine)
    try:
        lab.start()
        records = lab.measure(trials)
        lab.renew()
        more = lab.measure([trial_of(op="dense_n100_k33", kernel=kernel(1), shape=Shape.of(m=60), weights="hot")])
    finally:
        lab.close()
    assert not lab.lost and len(records) == len(trials), [record.outcome for record in records]
    timed = [record for record in [*records, *more] if isinstance(record.outcome, Timed)]
    failed = [record.outcome for record in records if isinstance(record.outcome, Failed)]
    assert {(item.stage, item.reason) for item in failed} == {("build", "compile_error")}, failed
    assert len(timed) == 5
    assert len({record.facts["quiet_compute_us"] for record in timed}) == 1, "one look at the machine serves all"
    assert len(list(store.records())) == 7


def test_a_trial_that_began_ahead_has_its_record_and_none_is_begun_after_the_end() -> None:
    store, engine = MemoryStore(), Ahead()
    trials = [
        trial_of(op="dense_n100_k33", kernel=kernel(1), shape=Shape.of(m=rows), weights="hot")
        for rows in (12, 24, 24, 36, 48)
    ]
    moments: list[Record | None] = []

    def goes_on(record: Record | None) -> bool:
        moments.append(record)
        return sum(item is not None for item in moments) < 2

    lab = DeviceMeasurer(engine.device, store, environment=ENVIRONMENT, policy=QUICK, builders=1, engine=engine)
    try:
        lab.start()
        lab.prepare([kernel(1)])
        first = lab.measure(trials, goes_on)
        rest = lab.measure(trials)
    finally:
        lab.close()
    assert [record.trial for record in first] == trials[: len(first)] and 2 <= len(first) <= 4
    assert [record.trial for record in rest] == trials and not lab.lost
    assert len(list(store.records())) == 4, "a trial that stands twice is measured once"
    assert engine.last.most == 2, "the next trial waits at the timer while one is timed"


def test_groups_are_timed_and_those_that_do_not_compile_have_no_time(engine: DeviceEngine) -> None:
    arguments = "(const int64_t* s, void* const* t, const int64_t* lo, const int64_t* hi)"
    body = "float* x = t[0]; for (int64_t i = lo[0]; i < hi[0]; i++) x[i] = 2 * x[i];"
    source = f"#include <stdint.h>\nvoid ht_group_0{arguments} {{ {body} }}\nvoid ht_nothing{arguments} {{}}\n"
    task = {"group": 0, "loops": [0], "request": 0, "tensors": [["float32", [1000]]]}
    job = GroupJob(source=source, programs=b"", values=[[[1000]]], tasks=[task], limit_s=60.0)
    (line,) = engine.time_groups(job)
    group, request, us = json.loads(line)
    assert (group, request) == (0, 0) and us > 0
    assert engine.time_groups(replace(job, source="no C")) == []
