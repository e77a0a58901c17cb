"""A database whose network is cut: silence is noticed, and what was stored before counts once."""

from __future__ import annotations

import threading
import time

import pytest

from haotuner.errors import RecordsUnreachable
from haotuner.records import open_store
from haotuner.records.patient import PatientStore
from tests.contract.postgres_server import NEEDS, databases
from tests.contract.record_examples import record
from tests.fleet.namespace import namespace

pytestmark = [NEEDS, pytest.mark.slow]
SHORT_S = 4.0  # of a cut that no timeout notices
NOTICED_S = 40.0  # ten for what was sent, and as much for a connection in its place


def test_a_network_that_is_cut_is_waited_for_or_ends_a_call() -> None:
    with namespace(2) as cable, databases() as server:
        server.stop()
        with (server.data / "pg_hba.conf").open("a", encoding="utf-8") as rules:
            rules.write(f"host all all {cable.outside}/32 trust\n")
        server.options = f"-c listen_addresses={cable.inside}"
        cable.run(server.begin)
        name = server.fresh().partition("@/")[2].partition("?")[0]
        store = open_store(f"postgresql://postgres@{cable.inside}:5432/{name}")
        patient = PatientStore(store)
        assert patient.append([record(1)]) == 1
        cable.cut()
        healing = threading.Timer(SHORT_S, cable.heal)
        healing.start()
        assert patient.append([record(2)]) == 1
        healing.join()
        cable.cut()
        began = time.monotonic()
        with pytest.raises(RecordsUnreachable, match="check the server, and the host"):
            store.append([record(3)])
        assert time.monotonic() - began < NOTICED_S
        cable.heal()
        patient.append([record(3)])
        assert sorted(r.trial.shape["m"] for r in store.records()) == [1, 2, 3] and store.check() == ()
        patient.close()
