"""Several processes on one store: killed at any moment, racing to create it, sharing the work."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from haotuner.records import SqliteStore
from haotuner.records.sqlite import Owner
from tests.standin.patience import WALL_S

ROOT = Path(__file__).parents[2]

WRITER = """
import sys
from pathlib import Path
from haotuner.records import SqliteStore
from tests.contract.record_examples import record
path, tag = Path(sys.argv[1]), sys.argv[2]
store = SqliteStore(path)
session = store.start("f", resume=True)
print("session", session.id, flush=True)
for m in range(1, 1_000_000):
    one = record(m, session=session.id, op=tag)
    store.append([one])
    print(one.id, flush=True)
"""

CLAIMER = """
import sys, time
from pathlib import Path
from haotuner.records import SqliteStore
from tests.contract.record_examples import record
store = SqliteStore(Path(sys.argv[1]))
session = store.start("f", resume=True).id
wanted = {r.trial.key(): r for r in (record(m, session=session) for m in range(1, 121))}
keys = list(wanted)
for start in range(0, len(keys), 8):
    for key in store.claim(session, keys[start : start + 8]):
        time.sleep(0.001)
        store.append([wanted[key]])
        print(key, flush=True)
store.close()
"""


def python(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.long
def test_writers_killed_at_random_moments_lose_no_committed_record(tmp_path):
    """kill -9 while two processes write; what append had returned for is there, and the file is sound."""
    path, chance = tmp_path / "records.db", random.Random(20)
    announced: list[str] = []
    sessions = set()
    for round_ in range(10):
        writers = [python(WRITER, str(path), f"op{round_}_{i}") for i in range(2)]
        for writer in writers:
            assert writer.stdout is not None
            sessions.add(writer.stdout.readline())  # it has begun
        time.sleep(chance.uniform(0, 0.06))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            out, _ = writer.communicate()
            announced += out.splitlines()
        store = SqliteStore(path)
        assert store.check() == ()
        stored = {r.id for r in store.records()}
        assert stored.issuperset(announced)
        assert len(stored) <= len(announced) + 2 * (round_ + 1), "at most the record in flight was stored unannounced"
        store.close()
    assert len(sessions) == 1, "every run resumed the session of the first"
    assert len(announced) > 10
    assert [p.name for p in tmp_path.iterdir()] == ["records.db"]


def test_a_leftover_log_is_read_and_kept_until_a_writer_folds_it_in(tmp_path):
    path = tmp_path / "records.db"
    writer = python(WRITER, str(path), "op")
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(6)]
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert path.with_name("records.db-wal").stat().st_size > 0
    reader = SqliteStore(path, write=False)
    assert {r.id for r in reader.records()}.issuperset(line.strip() for line in lines[1:])
    reader.close()


def test_two_tuners_of_one_session_never_measure_the_same_trial(tmp_path):
    path = tmp_path / "records.db"
    SqliteStore(path).close()
    tuners = [python(CLAIMER, str(path)) for _ in range(3)]
    measured = [line for tuner in tuners for line in tuner.communicate(timeout=WALL_S)[0].splitlines()]
    assert [tuner.returncode for tuner in tuners] == [0, 0, 0]
    assert len(measured) == len(set(measured)) == 120
    store = SqliteStore(path)
    assert len(list(store.records())) == 120
    store.close()


def test_many_processes_may_create_one_store_at_once(tmp_path):
    path = tmp_path / "records.db"
    code = WRITER.replace("1_000_000", "6")
    for attempt in range(2):
        writers = [python(code, str(path), f"{attempt}.{i}") for i in range(4)]
        assert [len(w.communicate(timeout=WALL_S)[0].splitlines()) for w in writers] == [6] * 4
        store = SqliteStore(path)
        assert len(list(store.records())) == 20
        assert len(store.sessions()) == 1
        store.close()
        path.unlink()


def test_a_claim_ends_with_release_lease_process_or_store(tmp_path):
    path = tmp_path / "records.db"
    mine, other = SqliteStore(path), SqliteStore(path)
    keys = ["a", "b"]
    assert mine.claim("s", keys) == ("a", "b")
    assert mine.claim("s", keys) == ("a", "b"), "one's own claim is granted again"
    assert other.claim("s", keys) == ()
    mine.release("s", ["a"])
    assert other.claim("s", keys) == ("a",)
    assert mine.claim("s", ["c"], lease_s=0.0) == ("c",)
    assert other.claim("s", ["c"]) == ("c",)
    mine.close()
    assert other.claim("s", keys) == ("a", "b")
    other.close()


def test_the_claims_of_a_killed_process_are_free_at_once(tmp_path):
    path = tmp_path / "records.db"
    code = WRITER.replace("for m in", "print(store.claim('s', ['a']), flush=True); input()\nfor m in")
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path), "x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    assert holder.stdout.readline() == "('a',)\n"
    store = SqliteStore(path)
    assert store.claim("s", ["a"]) == ()
    holder.kill()
    holder.communicate()
    assert store.claim("s", ["a"]) == ("a",)
    store.close()


@pytest.mark.parametrize("change, lives", [({}, True), ({"born": "1"}, False), ({"pid": 2**22 + 1}, False)])
def test_an_owner_lives_while_its_process_does(change, lives):
    mine = Owner.mine()
    fields = {name: change.get(name, getattr(mine, name)) for name in ("host", "pid", "born", "token")}
    owner = Owner(**fields)
    assert Owner.parse(str(owner)) == owner
    assert owner.lives() is lives
    assert mine.pid == os.getpid()


def test_an_owner_on_another_host_is_presumed_alive():
    assert Owner(host="elsewhere:1", pid=2**22 + 1, born="1", token="t").lives()
