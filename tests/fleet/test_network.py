"""A network that is cut and heals, between a node and its head, a tuner and the head, a tuner and the database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("grpc")

from haotuner.fleet import connection as connections
from haotuner.fleet.connection import Connection
from tests.fleet.local_fleet import AVX2, LIMIT_S, LocalFleet, check_store, engine_of, lab_of, patient, trials
from tests.fleet.namespace import Namespace, namespace

pytestmark = [pytest.mark.slow, pytest.mark.isa("avx2", "fma")]

SHORT_S = 4.0  # of a cut that no timeout notices
SOON = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


class Progress:
    """Events by the number of records that a run has."""

    def __init__(self, *counts: int) -> None:
        self.reached = {count: threading.Event() for count in counts}
        self._records = 0

    def goes_on(self, record: object) -> bool:
        self._records += record is not None
        for count, event in self.reached.items():
            if self._records >= count:
                event.set()
        return True

    def wait(self, count: int) -> None:
        assert self.reached[count].wait(LIMIT_S)


def cut_shortly(cable: Namespace, progress: Progress) -> None:
    """Cut a network after 15 records, heal it, and wait for 40."""
    progress.wait(15)
    cable.cut()
    time.sleep(SHORT_S)
    cable.heal()
    progress.wait(40)


@pytest.fixture
def cable() -> Iterator[Namespace]:
    with namespace() as created:
        yield created


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/records.db"


@contextmanager
def fleet_of(fleet: LocalFleet, begin: Callable[[], None]) -> Iterator[LocalFleet]:
    try:
        begin()
        yield fleet
    finally:
        fleet.end()


def test_a_node_whose_network_is_cut_is_waited_for_and_may_join_again(cable: Namespace, url: str) -> None:
    requested, progress = trials(AVX2, 80), Progress(15, 40)
    fleet = LocalFleet(SOON, cable.outside)

    def join() -> None:
        cable.run(lambda: fleet.join(AVX2, host=cable.inside))

    def begin() -> None:
        fleet.begin()
        join()

    with (
        fleet_of(fleet, begin),
        ThreadPoolExecutor(1) as pool,
        Connection(fleet.address) as client,
        patient(url) as store,
        lab_of(engine_of(client, AVX2), store) as lab,
    ):
        running = pool.submit(lab.measure, requested, progress.goes_on)
        cut_shortly(cable, progress)
        cable.cut()
        until = time.monotonic() + LIMIT_S
        while client.offered(AVX2) and time.monotonic() < until:
            time.sleep(0.5)
        assert not client.offered(AVX2), "the head takes the node for gone"
        cable.heal()
        fleet.kill(AVX2)  # Ray ends a node that was taken for gone; this is sooner
        join()
        assert len(running.result(180)) == len(requested) and not lab.lost
    check_store(url, requested)


def test_a_tuner_whose_network_is_cut_goes_on_or_ends_and_is_resumed(
    cable: Namespace, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "AWAY_S", 10.0)
    requested, progress = trials(AVX2, 600), Progress(15, 40)
    fleet = LocalFleet(host=cable.inside)
    with fleet_of(fleet, lambda: cable.run(lambda: fleet.begin(AVX2))), ThreadPoolExecutor(1) as pool:
        with Connection(fleet.address) as client, patient(url) as store, lab_of(engine_of(client, AVX2), store) as lab:
            running = pool.submit(lab.measure, requested, progress.goes_on)
            cut_shortly(cable, progress)
            assert not lab.lost
            cable.cut()
            first = running.result(120)
            assert 40 <= len(first) < len(requested) and "is gone" in lab.lost
        cable.heal()
        with Connection(fleet.address) as client, patient(url) as store, lab_of(engine_of(client, AVX2), store) as lab:
            assert lab.reused == len(first) and len(lab.measure(requested)) == len(requested)
    check_store(url, requested)
