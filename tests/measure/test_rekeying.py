"""Records of the last version that hashed sources count on: nothing of them is measured again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haotuner.backends.cpu.backend import CpuBackend
from haotuner.backends.fingerprint import Policy
from haotuner.errors import EnvironmentMissing
from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.measure.rekeying import rekeyed, rekeyed_whole, shipped_table
from haotuner.records import MemoryStore, Session
from haotuner.records.codec import decode
from haotuner.spec.device import Device
from haotuner.spec.record import Record
from tests.backends.native_jobs import ENVIRONMENT

STORED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden/measure/records_by_sources.json").read_text(encoding="utf-8")
)
RECORDS = [decode(data) for data in STORED["records"]]
OLD = STORED["session"]["fingerprint"]


def old_store() -> MemoryStore:
    """A store as that version wrote it."""
    store = MemoryStore()
    session = store.start(OLD, what=STORED["session"]["what"])
    store.append([replace(record, session=session.id) for record in RECORDS])
    return store


class Codes:
    """Kernels' code: as the table has it, a made-up one of kernels that are not in it."""

    def __init__(self, changed: str = "") -> None:
        self.known = {name: code for of in shipped_table().code.values() for name, code in of.items()}
        self.changed = changed

    def __call__(self, names: Sequence[str]) -> Mapping[str, str]:
        return {
            name: "changed" if self.changed and name.startswith(self.changed) else self.known.get(name, f"code of {name}")
            for name in names
        }


def of_today(store: MemoryStore, changed: str = "") -> tuple[Session, list[Record]]:
    today = shipped_table().sessions[OLD]
    session = store.start(today, resume=True)
    return session, rekeyed(store, session, today, Codes(changed))


def test_every_record_of_the_old_session_counts_under_todays_fingerprint() -> None:
    store = old_store()
    session, copies = of_today(store)
    assert [r.trial for r in copies] == [r.trial for r in RECORDS] and len(copies) == 6
    assert [r.outcome for r in copies] == [r.outcome for r in RECORDS], "failures, too"
    assert {r.session for r in copies} == {session.id} and OLD not in {r.fingerprint for r in copies}
    assert list(store.records(session=session.id)) == copies
    assert len(list(store.records(fingerprint=OLD))) == len(RECORDS), "what was written stays"


def test_a_kernel_of_other_code_has_another_fingerprint() -> None:
    _, copies = of_today(old_store())
    by_kernel = {record.trial.kernel: record.fingerprint for record in copies}
    assert len(set(by_kernel.values())) == len(by_kernel) == 4


def test_a_family_whose_code_has_changed_since_is_measured_again() -> None:
    assert of_today(old_store(), changed="cpu_dense_fp32__")[1] == []
    assert len(of_today(old_store(), changed="cpu_conv_")[1]) == len(RECORDS)


def test_of_another_device_or_toolchain_nothing_counts() -> None:
    store = old_store()
    session = store.start("of another host")
    assert rekeyed(store, session, session.fingerprint, Codes()) == []


def test_times_of_groups_keep_their_trials_and_get_the_sessions_fingerprint() -> None:
    store, today = old_store(), shipped_table().sessions[OLD]
    session = store.start(today)
    assert {record.fingerprint for record in rekeyed_whole(store, session, today)} == {today}


def test_on_the_host_that_measured_them_nothing_is_built_or_timed() -> None:
    device = Device(**STORED["device"])
    try:
        if CpuBackend().fingerprint(device, Policy()) != shipped_table().sessions[OLD]:
            pytest.skip("this host has another toolchain than the one that measured the records")
    except EnvironmentMissing as error:
        pytest.skip(str(error))
    lab = DeviceMeasurer(device, old_store(), environment=ENVIRONMENT, builders=1, resume=True)
    try:
        assert lab.reused == len(RECORDS)
        records = lab.measure([record.trial for record in RECORDS], lambda record: record is not None)
        assert [record.outcome for record in records] == [record.outcome for record in RECORDS]
        assert not lab._slots, "nothing was built"
    finally:
        lab.close()
