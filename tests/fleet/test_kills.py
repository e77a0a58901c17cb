"""Twenty kills at random moments: a run that is resumed until it is whole has each record once, as a quiet one."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("grpc")

from haotuner.errors import HaotunerError
from haotuner.fleet.connection import Connection
from haotuner.fleet.engine import RayEngine
from haotuner.records import open_store
from haotuner.spec.record import Record, Timed
from tests.contract.postgres_server import PROGRAMS, Databases, databases
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
from tests.fleet.replay_programs import true_us

pytestmark = [pytest.mark.slow, pytest.mark.isa("avx2", "fma"), pytest.mark.timeout(2400)]

KILLS = int(os.environ.get("HAOTUNER_TEST_KILLS", "20"))
TRIALS = 400
MOST_RUNS = 12  # a head that is killed ends a run; so many of twenty kills are none
# How often each fault is drawn: a head takes all nodes along, and they start anew.
FAULTS = {"measurer": 8, "node": 4, "hang": 3, "database": 4, "head": 1}


class Faults:
    """Kills at the moments that a seed draws, between two records."""

    def __init__(self, fleet: LocalFleet, server: Databases | None, seed: int) -> None:
        self._fleet, self._server, self._random = fleet, server, random.Random(seed)
        self._moments = sorted(self._random.sample(range(5, TRIALS - 5), KILLS))
        self.done: list[str] = []
        self._later: list[threading.Thread] = []
        self.seen = 0

    def during(self, engine: RayEngine) -> Callable[[Record | None], bool]:
        """Faults of a run over this engine."""
        return lambda record: self._after(record, lambda: measurer_pid(engine))

    def _after(self, record: Record | None, pid: Callable[[], int]) -> bool:
        """Asked before and after each trial; True: go on."""
        if record is None or not self._moments:
            return True
        self.seen += 1
        if self.seen < self._moments[0]:
            return True
        self._moments.pop(0)
        self.settle()  # a node or server that was killed is back before the next fault
        names = [name for name in FAULTS if name != "database" or self._server is not None]
        name = self._random.choices(names, [FAULTS[name] for name in names])[0]
        self.done.append(name)
        if name == "measurer":
            send(pid(), signal.SIGKILL)
        elif name == "hang":
            send(pid(), signal.SIGSTOP)
        elif name == "node":
            self._fleet.kill(AVX2)
            self._behind(lambda: self._fleet.join(AVX2))
        elif name == "head":
            self._fleet.kill("head")
        elif self._server is not None:
            self._server.stop()
            self._behind(self._server.begin)
        return True

    def settle(self) -> None:
        """What was killed is back."""
        for thread in self._later:
            thread.join(120)
        self._later.clear()

    def _behind(self, action: Callable[[], None]) -> None:
        self._later.append(threading.Thread(target=action))
        self._later[-1].start()


def test_kills_at_random_moments_lose_and_double_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("HAOTUNER_TEST_SEED", "0"))
    requested = trials(AVX2, TRIALS)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(databases()) if PROGRAMS is not None else None
        url = server.fresh() if server is not None else f"sqlite:///{tmp_path}/records.db"
        fleet = stack.enter_context(local_fleet(AVX2))
        faults, runs = Faults(fleet, server, seed), 0
        while runs < MOST_RUNS:
            runs += 1
            lost = ""
            try:
                with Connection(fleet.address) as client, patient(url) as store:
                    engine = engine_of(client, AVX2, limit_s=20.0)
                    with lab_of(engine, store) as lab:
                        records = lab.measure(requested, faults.during(engine))
                        lost = lab.lost
            except HaotunerError as error:  # a fault while a run starts ends it, as a command that fails
                lost = str(error)
            faults.settle()
            print(f"run {runs}: {lost or 'whole'}; faults so far: {', '.join(faults.done)}")
            if not lost and len(records) == TRIALS:
                break
            if faults.done[-1:] == ["head"]:
                fleet.end()
                fleet.begin(AVX2)
        assert len(faults.done) == KILLS
        check_store(url, requested)
        quiet = {trial.key(): true_us(trial) for trial in requested}
        with contextlib.closing(open_store(url, write=False)) as reading:
            for record in reading.records():
                assert isinstance(record.outcome, Timed) and record.outcome.median_us == quiet[record.trial.key()]
