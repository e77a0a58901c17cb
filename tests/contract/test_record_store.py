"""What every record store promises, run over all of them."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from haotuner.errors import RecordsUnusable
from haotuner.records import MemoryStore, RecordStore, SqliteStore, open_store
from haotuner.records.merging import merge
from haotuner.spec.record import Failed, Record
from tests.contract.postgres_server import NEEDS, Databases, databases
from tests.contract.record_examples import record
from tests.contract.record_strategies import records

Opener = Callable[[], RecordStore]


@pytest.fixture(scope="module")
def server() -> Iterator[Databases]:
    with databases() as opened:
        yield opened


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=NEEDS)])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    opened: list[RecordStore] = []

    def fresh() -> RecordStore:
        store: RecordStore
        if request.param == "postgres":
            store = open_store(request.getfixturevalue("server").fresh())
        else:
            store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / f"{len(opened)}.db")
        opened.append(store)
        return store

    yield fresh
    for store in opened:
        store.close()


@pytest.fixture
def store(opener: Opener) -> RecordStore:
    return opener()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(batch=st.lists(records, max_size=6))
def test_records_come_back_equal_and_in_order_of_arrival(opener, batch):
    store = opener()
    new = store.append(batch)
    first_of_each: dict[str, Record] = {}
    for r in batch:
        first_of_each.setdefault(r.id, r)
    assert new == len(first_of_each)
    assert list(store.records()) == list(first_of_each.values())
    assert store.check() == ()


def test_the_same_measurement_delivered_twice_is_stored_once(store):
    assert store.append([record(1), record(2)]) == 2
    assert store.append([record(2), record(3), record(3)]) == 1
    assert [r.trial.shape["m"] for r in store.records()] == [1, 2, 3]


def test_of_two_records_with_one_id_the_first_stays_whatever_was_noted_beside_it(store):
    first, second = record(1), dataclasses.replace(record(1), seed=7, facts={"spills": 3.0})
    assert store.append([first, second]) == 1
    assert store.append([second]) == 0
    assert list(store.records()) == [first]


def test_every_filter_narrows(store):
    rows = [
        record(1),
        record(2, op="other"),
        record(3, session="t"),
        record(4, fingerprint="g"),
        record(5, device_id="h200"),
    ]
    store.append(rows)
    assert list(store.records(op="other")) == [rows[1]]
    assert list(store.records(session="t")) == [rows[2]]
    assert list(store.records(fingerprint="g")) == [rows[3]]
    assert list(store.records(device_id="h200")) == [rows[4]]
    assert list(store.records(op="other", session="t")) == []


def test_measured_holds_the_latest_record_of_each_trial_failures_included(store):
    first, second = record(1, us=10.0), record(1, us=12.0)
    failed = record(2, outcome=Failed(stage="run", reason="crash", detail="signal 11"))
    store.append([first, second, failed, record(3, fingerprint="g"), record(4, session="t")])
    assert store.measured("f", session="s") == {first.trial.key(): second, failed.trial.key(): failed}
    assert len(store.measured("f")) == 3


def test_order_and_resumption_go_by_arrival_whatever_clocks_say(store, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 5e9)
    ahead = store.start("f")
    monkeypatch.setattr(time, "time", lambda: 1e9)
    behind = store.start("f")
    monkeypatch.undo()
    assert ahead.started > behind.started
    assert store.sessions() == (ahead, behind) and store.start("f", resume=True) == behind
    early, late = (dataclasses.replace(record(1, us=us, session="s"), when=when) for us, when in ((9.0, 5e9), (8.0, 1e9)))
    store.append([early])
    store.append([late])
    assert list(store.records()) == [early, late]
    assert store.measured(early.fingerprint, session="s") == {early.trial.key(): late}


def test_iteration_shows_what_was_stored_when_it_began(store):
    store.append([record(m) for m in range(1, 1200)])
    seen = store.records()
    next(seen)
    store.append([record(5000)])
    assert sum(1 for _ in seen) == 1198


def test_resume_continues_the_latest_session_of_the_fingerprint_only(store):
    assert store.sessions() == ()
    first = store.start("f", what="dense")
    other = store.start("g")
    second = store.start("f", resume=False)
    assert store.start("f", resume=True) == second
    assert store.start("g", resume=True) == other
    third = store.start("new", resume=True)
    assert store.sessions() == (first, other, second, third)
    assert len({s.id for s in store.sessions()}) == 4


def test_a_batch_with_one_bad_record_stores_nothing(store):
    bad = dataclasses.replace(record(2), device_id="\ud800")  # half a character: no file can hold it
    with pytest.raises(ValueError):
        store.append([record(1), bad])
    assert list(store.records()) == []


def test_recorded_trials_are_not_granted_and_claims_keep_their_order(store):
    store.append([record(1)])
    keys = [record(m).trial.key() for m in (3, 1, 2, 3)]
    assert store.claim("s", keys) == (keys[0], keys[2])
    assert store.claim("t", keys) == (keys[0], keys[1], keys[2])
    store.release("s", keys)


def test_a_trial_that_was_recorded_of_other_code_may_be_measured(store):
    store.append([record(1)])
    key = record(1).trial.key()
    assert store.claim("s", [key], fingerprint="f") == ()
    assert store.claim("s", [key], fingerprint="g") == (key,)


def test_many_threads_may_append_and_read_at_once(store):
    errors: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for m in range(start, start + 30):
                store.append([record(m)])
                list(store.records(session="s"))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(1 + 30 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(r.trial.shape["m"] for r in store.records()) == list(range(1, 121))


def test_a_closed_store_says_so_and_may_be_closed_again(store):
    store.append([record(1)])
    store.sync()
    store.close()
    store.close()
    with pytest.raises(RecordsUnusable, match="closed"):
        store.append([record(2)])
    with pytest.raises(RecordsUnusable, match="closed"):
        list(store.records())


def test_sessions_of_another_store_keep_their_ids_and_come_once(store: RecordStore) -> None:
    own = store.start("f", what="own")
    other = MemoryStore()
    first, second = other.start("f", what="first \0 of others"), other.start("g", what="second")
    assert store.adopt([first, second, first]) == 2 and store.adopt(other.sessions()) == 0
    assert store.sessions() == (own, first, second)
    assert store.start("f", resume=True) == first, "the last session of a fingerprint goes on"


def test_a_merge_brings_sessions_and_records_once(opener: Opener) -> None:
    left, right = opener(), opener()
    left.append([record(1), record(2)])
    session = right.start("f")
    right.append([record(2), record(3)])
    merged = merge(right, left, "right")
    assert (merged.sessions, merged.records, merged.new) == (1, 2, 1)
    assert list(left.records()) == [record(1), record(2), record(3)] and session in left.sessions()
    again = merge(right, left, "right")
    assert (again.sessions, again.records, again.new) == (0, 2, 0)
    assert list(right.records()) == [record(2), record(3)] and left.check() == ()
