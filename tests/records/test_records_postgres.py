"""The store in PostgreSQL: many writers, claims, older and newer tables, a server that is killed, no passwords printed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.cli.pages.document import document_of
from haotuner.cli.pages.sources import opened
from haotuner.cli.watch import page_of
from haotuner.errors import EnvironmentMissing, RecordsUnusable, UsageError
from haotuner.records import SqliteStore, address, open_store
from haotuner.records.address import without_password
from haotuner.records.sqlite import Owner
from haotuner.records.statistics import Queryable, Statistics
from haotuner.spec.record import Failed
from tests.contract.postgres_server import NEEDS, Databases, databases
from tests.contract.record_examples import record

TRIAL = record(1).trial.key()


@pytest.fixture(scope="module")
def server() -> Iterator[Databases]:
    with databases() as cluster:
        yield cluster


@pytest.fixture
def url(server: Databases) -> str:
    return server.fresh()


@NEEDS
def test_each_record_is_stored_once_whoever_delivers_it(url: str) -> None:
    errors: list[BaseException] = []
    new: list[int] = []

    def deliver(first: int) -> None:
        try:
            with closing(open_store(url)) as store:
                for m in range(first, first + 40):
                    new.append(store.append([record(m), record(m + 1)]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=deliver, args=(1 + 20 * at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    seen = 0
    with closing(open_store(url)) as reader:
        while any(thread.is_alive() for thread in threads):
            count = sum(1 for _ in reader.records())
            assert count >= seen, "what was read once is read again"
            seen = count
        for thread in threads:
            thread.join()
        assert errors == []
        extents = [r.trial.shape["m"] for r in reader.records()]
    assert sorted(extents) == list(range(1, 182)) and sum(new) == len(extents)


@NEEDS
def test_a_claim_holds_until_its_owner_is_gone_or_its_lease_is_over(url: str, server: Databases) -> None:
    with closing(open_store(url)) as store, closing(open_store(url)) as other:
        assert store.claim("s", [TRIAL]) == (TRIAL,) and other.claim("s", [TRIAL]) == ()
        store.release("s", [TRIAL])
        assert other.claim("s", [TRIAL]) == (TRIAL,)
        gone = Owner(host=Owner.mine().host, pid=2**22 + 1, born="1", token="t")
        server.sql(url, f"UPDATE haotuner.claim SET owner = '{gone}'")
        assert store.claim("s", [TRIAL]) == (TRIAL,), "its process is gone"
        far = Owner(host="another host", pid=1, born="1", token="t")
        server.sql(url, f"UPDATE haotuner.claim SET owner = '{far}', expires = {time.time() + 60}")
        assert other.claim("s", [TRIAL]) == (), "of another host nothing is known"
        server.sql(url, "UPDATE haotuner.claim SET expires = 1")
        assert other.claim("s", [TRIAL]) == (TRIAL,)
        other.append([record(1)])
        assert server.sql(url, "SELECT COUNT(*) FROM haotuner.claim").strip() == "0"


@NEEDS
def test_a_claim_is_shown_by_the_clock_of_the_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_store(url)) as store, closing(open_store(url, write=False)) as reader:
        store.claim("s", [TRIAL])
        assert isinstance(reader, Queryable)
        ahead = time.time() + 36_000.0
        monkeypatch.setattr(time, "time", lambda: ahead)
        (claim,) = Statistics(reader).claims()
        assert not claim.expired, "the reader's own clock is ten hours ahead"


@NEEDS
def test_tables_of_version_1_are_read_and_upgraded(url: str, server: Databases) -> None:
    with closing(open_store(url)) as store:
        store.append([record(1), record(2)])
    server.sql(url, "ALTER TABLE haotuner.record DROP COLUMN repeat; UPDATE haotuner.alembic_version SET version_num = '1'")
    with closing(open_store(url, write=False)) as store:
        assert list(store.records()) == [record(1), record(2)] and store.check() == ()
        with pytest.raises(RecordsUnusable, match="reading only"):
            store.append([record(3)])
    assert server.sql(url, "SELECT version_num FROM haotuner.alembic_version").strip() == "1"
    with closing(open_store(url)) as store:
        assert store.append([record(3)]) == 1 and store.check() == ()
    assert server.sql(url, "SELECT version_num FROM haotuner.alembic_version").strip() == "2"


@NEEDS
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE haotuner.alembic_version SET version_num = '99'", "has schema 99"),
        ("UPDATE haotuner.alembic_version SET version_num = 'abc'", "has schema abc"),
        ("DROP TABLE haotuner.alembic_version", "of another program"),
    ],
)
def test_tables_that_are_not_known_stay_as_they_are(url: str, server: Databases, statement: str, words: str) -> None:
    open_store(url).close()
    server.sql(url, statement)
    for write in (False, True):
        with pytest.raises(RecordsUnusable, match=words):
            open_store(url, write=write)


@NEEDS
def test_what_is_not_there_is_not_made_by_reading(url: str, server: Databases) -> None:
    with pytest.raises(RecordsUnusable, match="holds no record store"):
        open_store(url, write=False)
    assert server.sql(url, "SELECT COUNT(*) FROM pg_namespace WHERE nspname = 'haotuner'").strip() == "0"
    with pytest.raises(RecordsUnusable, match="cannot open"):
        open_store(server.url("no_such_database"))


@NEEDS
def test_a_changed_row_is_told(url: str, server: Databases) -> None:
    with closing(open_store(url)) as store:
        store.append([record(1), record(2)])
        server.sql(url, "UPDATE haotuner.record SET device_id = 'h100' WHERE seq = 2")
        (problem,) = store.check()
        assert problem.startswith("record in row 2")
        with pytest.raises(RecordsUnusable, match="row 2"):
            list(store.records())


@NEEDS
def test_a_user_without_rights_is_told(url: str, server: Databases) -> None:
    open_store(url).close()
    role = f"reader_{url.partition('@/')[2].partition('?')[0]}"
    server.sql(url, f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA haotuner TO {role}; "
                    f"GRANT SELECT ON ALL TABLES IN SCHEMA haotuner TO {role}")  # fmt: skip
    with closing(open_store(url.replace("postgres@", f"{role}@"), write=False)) as store:
        assert list(store.records()) == []
    store = open_store(url.replace("postgres@", f"{role}@"))
    with pytest.raises(RecordsUnusable, match="permission denied.*grant it the right"):
        store.append([record(1)])
    with pytest.raises(RecordsUnusable):
        store.close()


@NEEDS
def test_a_server_that_is_killed_loses_nothing_that_was_synced(url: str, server: Databases) -> None:
    with closing(open_store(url)) as store:
        store.append([record(m) for m in range(1, 40)])
        store.sync()
        server.stop()
        with pytest.raises(RecordsUnusable, match="check the server"):
            store.append([record(100)])
        server.begin()
        assert store.append([record(39), record(100)]) == 1, "it goes on by itself, and stores nothing twice"
        assert len(list(store.records())) == 40


@NEEDS
def test_a_report_says_the_same_of_both_stores(url: str, tmp_path: Path) -> None:
    failure = Failed(stage="build", reason="compile_error", detail='line 1\nline "2" \\ \x00')
    every = [record(m % 3 + 1, us=100.0 - m, session=f"s{m}") for m in range(30)] + [record(9, outcome=failure)]
    with closing(SqliteStore(tmp_path / "r.db")) as store:
        store.append(every)
    with closing(open_store(url)) as store:
        store.append(every)
    summaries = []
    for name in (url, f"sqlite:///{tmp_path}/r.db"):
        with closing(open_store(name, write=False)) as store:
            assert isinstance(store, Queryable)
            summaries.append(Statistics(store).summary)
    assert summaries[0] == summaries[1]
    with opened([url.replace("postgres@", "postgres:secret@")]) as sources:
        document = document_of(sources, "r")
    assert "secret" not in str(document) and "***@" in str(document)
    page = page_of(url)
    page.refresh()
    page.refresh()
    assert page.version == 2 and "dense_n8_k8" in str(page.document)


@NEEDS
@pytest.mark.parametrize(
    "url", ["postgresql://me:s3cret@127.0.0.1:1/db", "postgresql://me:s3cret@:x/db", "postgres://s3cret@/"]
)
def test_passwords_are_in_no_message(url: str) -> None:
    with pytest.raises((RecordsUnusable, UsageError)) as refused:
        open_store(url)
    assert "s3cret" not in str(refused.value).replace("//s3cret@", "") or "//s3cret@" in url


@given(user=st.text("abc:%", max_size=4), password=st.text("xyz:%!", min_size=3, max_size=9))
def test_a_url_is_printed_without_its_password(user: str, password: str) -> None:
    assert password not in without_password(f"postgresql://{user}:{password}@host:5432/db?sslmode=require")
    assert password not in without_password(f"postgresql://host/db?user=a&password={password}&sslmode=require")
    for url in ("sqlite:///pack.records.db", "memory://", "postgresql://host:5432/db"):
        assert without_password(url) == url


def test_without_its_packages_there_is_a_word_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "missing", lambda names: list(names))
    with pytest.raises(EnvironmentMissing, match=r"sqlalchemy, psycopg, alembic.*pip install '.\[fleet\]'"):
        open_store("postgresql://me:secret@host/db")
