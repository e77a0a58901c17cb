"""Faults of a fleet: whatever is killed, tuning goes on or ends with what it has; nothing is measured twice or lost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("grpc")

from haotuner.errors import UnknownDevice
from haotuner.fleet import connection as connections
from haotuner.fleet.connection import Connection
from tests.contract.postgres_server import NEEDS, databases
from tests.fleet.local_fleet import (
    AVX2,
    LocalFleet,
    check_store,
    engine_of,
    lab_of,
    local_fleet,
    measurer_pid,
    patient,
    send,
    trials,
)
from tests.fleet.replay_programs import CLOCK_WORD

pytestmark = [pytest.mark.slow, pytest.mark.isa("avx2", "fma")]
HOUR_S = 3600.0


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    """Its nodes' clocks are five hours behind: nothing here may depend on them."""
    with local_fleet(AVX2, environment={CLOCK_WORD: f"{-5 * HOUR_S}"}) as running:
        yield running


@pytest.fixture
def connection(fleet: LocalFleet) -> Iterator[Connection]:
    with Connection(fleet.address) as client:
        yield client


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/records.db"


def test_a_measurer_that_is_killed_is_started_again(connection: Connection, url: str) -> None:
    engine, requested = engine_of(connection, AVX2), trials(AVX2, 60)
    killed: list[int] = []
    with patient(url) as store, lab_of(engine, store) as lab:

        def goes_on(record: object) -> bool:
            if record is not None and len(lab.records()) in (10, 30):
                killed.append(measurer_pid(engine))
                send(killed[-1], signal.SIGKILL)
            return True

        records = lab.measure(requested, goes_on)
    assert len(records) == len(requested) and not lab.lost and len(set(killed)) == 2
    check_store(url, requested)


def test_a_measurer_that_hangs_is_replaced(connection: Connection, url: str) -> None:
    engine, requested = engine_of(connection, AVX2), trials(AVX2, 20)
    stopped: list[int] = []
    with patient(url) as store, lab_of(engine, store) as lab:

        def goes_on(record: object) -> bool:
            if record is not None and len(lab.records()) == 10:
                stopped.append(measurer_pid(engine))
                send(stopped[-1], signal.SIGSTOP)
            return True

        records = lab.measure(requested, goes_on)
        assert len(records) == len(requested) and not lab.lost
        assert measurer_pid(engine) not in stopped
    send(stopped[0], signal.SIGKILL)
    check_store(url, requested)


def test_a_device_that_leaves_may_come_back(fleet: LocalFleet, connection: Connection, url: str) -> None:
    engine, requested = engine_of(connection, AVX2), trials(AVX2, 40)
    away = threading.Event()
    with patient(url) as store, lab_of(engine, store) as lab, ThreadPoolExecutor(1) as pool:

        def goes_on(record: object) -> bool:
            if record is not None and len(lab.records()) == 15:
                away.set()
            return True

        running = pool.submit(lab.measure, requested, goes_on)
        assert away.wait(60)
        fleet.kill(AVX2)
        time.sleep(2.0)
        fleet.join(AVX2)
        assert len(running.result(180)) == len(requested) and not lab.lost
    check_store(url, requested)


def until_ended(pid: int) -> None:
    until = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < until, f"process {pid} goes on"
        time.sleep(0.1)


def test_a_device_that_appears_takes_over_from_one_that_leaves(fleet: LocalFleet, connection: Connection, url: str) -> None:
    with pytest.raises(UnknownDevice, match=r"no node of .* offers it; offered: .*cpu:avx2.*`haotuner fleet join --device"):
        engine_of(connection, "cpu:sse")
    engine, requested = engine_of(connection, AVX2), trials(AVX2, 40)
    measurers: list[int] = []
    with patient(url) as store, lab_of(engine, store) as lab:

        def goes_on(record: object) -> bool:
            if record is not None and len(lab.records()) == 15:
                measurers.append(measurer_pid(engine))
                fleet.join(AVX2, known_as="another")
                fleet.kill(AVX2)
                fleet.rename("another", AVX2)
                until_ended(measurers[0])  # a measurer outlives its node for some seconds
            return True

        records = lab.measure(requested, goes_on)
        assert len(records) == len(requested) and not lab.lost
        assert measurer_pid(engine) not in measurers
    check_store(url, requested)


@NEEDS
def test_tuners_whose_clocks_disagree_share_one_job(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten hours apart, beside nodes that are wrong, too: what a tuner has claimed is not expired for the other one."""
    true, wrong = time.time, threading.local()
    monkeypatch.setattr(time, "time", lambda: true() + getattr(wrong, "seconds", 0.0))
    requested = trials(AVX2, 60)

    with databases() as server:
        shared = server.fresh()

        def tuner(hours: float) -> set[str]:
            wrong.seconds = hours * HOUR_S
            with patient(shared) as store, lab_of(engine_of(connection, AVX2), store) as lab:
                return {record.trial.key() for record in lab.measure(requested[:: -1 if hours < 0 else 1])}

        with patient(shared) as store, lab_of(engine_of(connection, AVX2), store), ThreadPoolExecutor(2) as pool:
            assert list(map(len, pool.map(tuner, (-5.0, 5.0)))) == [60, 60]
        check_store(shared, requested)


def test_two_heads_share_one_job(connection: Connection, url: str) -> None:
    """Two tuners that resumed the same session: each trial is measured by one of them."""
    requested = trials(AVX2, 60)

    def tuner(backwards: bool) -> int:
        engine = engine_of(connection, AVX2)
        with patient(url) as store, lab_of(engine, store) as lab:
            return len(lab.measure(requested[::-1] if backwards else requested))

    with patient(url) as store, lab_of(engine_of(connection, AVX2), store), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(tuner, (False, True))) == [60, 60]
    check_store(url, requested)


@NEEDS
def test_a_database_that_is_killed_is_waited_for(connection: Connection) -> None:
    engine, requested = engine_of(connection, AVX2), trials(AVX2, 40)
    with databases() as server:
        url, stopped = server.fresh(), threading.Event()
        with patient(url) as store, lab_of(engine, store) as lab, ThreadPoolExecutor(1) as pool:

            def goes_on(record: object) -> bool:
                if record is not None and len(lab.records()) == 15:
                    stopped.set()
                return True

            running = pool.submit(lab.measure, requested, goes_on)
            assert stopped.wait(60)
            server.stop()
            time.sleep(2.0)
            server.begin()
            assert len(running.result(120)) == len(requested) and not lab.lost
        check_store(url, requested)


def test_without_its_device_a_run_ends_with_what_it_has_and_is_resumed(
    fleet: LocalFleet, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "AWAY_S", 3.0)
    requested = trials(AVX2, 600)
    with Connection(fleet.address) as client, patient(url) as store:
        engine = engine_of(client, AVX2)
        with lab_of(engine, store) as lab:

            def goes_on(record: object) -> bool:
                if record is not None and len(lab.records()) == 15:
                    fleet.kill(AVX2)
                return True

            first = lab.measure(requested, goes_on)
            assert 15 <= len(first) < len(requested) and "no node offers cpu:avx2" in lab.lost
            assert lab.measure(requested) == first, "what was measured stands, and nothing more is tried"
    fleet.join(AVX2)
    with Connection(fleet.address) as client, patient(url) as store, lab_of(engine_of(client, AVX2), store) as lab:
        assert lab.reused == len(first) and len(lab.measure(requested)) == len(requested)
    check_store(url, requested)


def test_without_its_head_a_run_ends_with_what_it_has_and_is_resumed(fleet: LocalFleet, url: str) -> None:
    requested = trials(AVX2, 600)
    with Connection(fleet.address) as client, patient(url) as store, lab_of(engine_of(client, AVX2), store) as lab:

        def goes_on(record: object) -> bool:
            if record is not None and len(lab.records()) == 15:
                fleet.kill("head")
            return True

        first = lab.measure(requested, goes_on)
        assert 15 <= len(first) < len(requested) and "is gone" in lab.lost
    fleet.end()
    fleet.begin(AVX2)
    with Connection(fleet.address) as client, patient(url) as store, lab_of(engine_of(client, AVX2), store) as lab:
        assert lab.reused == len(first) and len(lab.measure(requested)) == len(requested)
    check_store(url, requested)
