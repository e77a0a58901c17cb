"""`haotuner watch`: the page of a run while it goes on, on loopback, read-only; a status file that costs no run anything."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haotuner.cli import run_status, watch
from haotuner.cli.progress import Watcher
from haotuner.cli.run_status import RunStatus, StatusWriter, read_status, status_file
from haotuner.cli.watch import LivePage, Server, page_of
from haotuner.errors import UsageError
from haotuner.records import SqliteStore
from haotuner.spec.op import Op
from tests.cli.test_report import HOSTILE, needs_plotly, panel
from tests.contract.record_examples import record

OP = Op.parse("dense:n=8,k=8")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "pack.records.db")) as opened:
        opened.append([record(1, us=8.0), record(1, us=2.0, session="t")])
        yield opened


@pytest.fixture
def server(store: SqliteStore, tmp_path: Path) -> Iterator[Server]:
    page = page_of(str(tmp_path / "pack"))
    page.refresh()
    with Server("127.0.0.1", 0, page) as running_server:
        thread = threading.Thread(target=running_server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield running_server
        running_server.shutdown()
        thread.join()


def answer(server: Server, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)) as connection:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        result = connection.getresponse()
        assert result.getheader("X-Content-Type-Options") == "nosniff"
        return result.status, result.read().decode()


@needs_plotly
def test_the_page_is_served_and_nothing_else(server: Server) -> None:
    status, text = answer(server, "/")
    assert status == 200 and 'data-live="events"' in text
    assert answer(server, "/?theme=dark")[0] == 200
    assert answer(server, "/", "HEAD") == (200, "")
    for path in ("/../etc/passwd", "/pack.records.db", "/events/", f"/{HOSTILE.encode().hex()}"):
        status, text = answer(server, path)
        assert status == 404 and "no such page" in text and path not in text
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert answer(server, "/", method)[0] == 405


@needs_plotly
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:{port}", 200), ("127.0.0.1:{port}", 200), ("[::1]:{port}", 200), ("LOCALHOST:{port}", 200),
        ("evil.example:{port}", 421), ("127.0.0.1.evil.example:{port}", 421), ("127.0.0.1:1", 421), ("", 421),
        ("10.0.0.1:{port}", 421), ("[::1", 421), ("localhost:{port}@evil.example", 421),
    ],
)  # fmt: skip
def test_a_page_of_others_cannot_read_it(server: Server, host: str, status: int) -> None:
    assert answer(server, "/", host=host.format(port=server.server_address[1]))[0] == status


def events(server: Server) -> Iterator[Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)) as connection:
        connection.request("GET", "/events")
        stream = connection.getresponse()
        assert stream.getheader("Content-Type") == "text/event-stream"
        while line := stream.readline():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


def test_a_new_record_comes_by_itself(server: Server, store: SqliteStore) -> None:
    stream = events(server)
    (row,) = panel(next(stream), "Now", "Progress by operator")["tables"][""]["rows"]
    assert row[:4] == ["dense_n8_k8", "cpu", "2", "0"] and float(row[4][:-1]) > 3.5
    store.append([record(2)])
    store.claim("s", ["{}", record(3).trial.key()])
    server.page.refresh()
    document = next(stream)
    assert panel(document, "Now", "Progress by operator")["tables"][""]["rows"][0][2] == "3"
    (worker,) = panel(document, "Now", "Workers")["tables"][""]["rows"]
    assert worker[1] == "measures" and "dense_n8_k8 m=3, threads: 1" in worker[2]
    version = server.page.version
    server.page.refresh()
    assert server.page.version == version, "what has not changed is not made again"


def test_too_many_readers_are_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.streams = threading.BoundedSemaphore(1)
    stream = events(server)
    next(stream)
    assert answer(server, "/events")[0] == 503


def test_a_reader_that_leaves_makes_room(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "BEAT_S", 0.05)
    server.streams = threading.BoundedSemaphore(1)
    stream = events(server)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    end = time.monotonic() + 30
    while not server.streams.acquire(blocking=False):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_port_in_use_and_odd_addresses_are_told(server: Server) -> None:
    page = LivePage(dict, [])
    for address, port, words in (
        ("127.0.0.1", server.server_address[1], "in use"),
        ("no.such.host.invalid", 0, "no address of this host"),
        ("203.0.113.7", 0, "cannot serve on"),
        ("127.0.0.1", 70000, "0..65535"),
    ):
        with pytest.raises(UsageError, match=words):
            Server(address, port, page)


def test_names_that_cannot_be_a_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name the --out") as refused:
        page_of("mysql://me:secret@host/db")
    assert "secret" not in str(refused.value)
    with pytest.raises(UsageError, match="no folder"):
        page_of(str(tmp_path / "no" / "pack"))


def test_a_run_that_has_not_begun_has_a_page(tmp_path: Path) -> None:
    page = page_of(str(tmp_path / "pack"))
    page.refresh()
    assert "nothing is recorded yet" in panel(page.document, "Now", "Progress by operator")["missing"][""]


def test_a_store_that_is_damaged_meanwhile_is_said(store: SqliteStore, tmp_path: Path) -> None:
    page = page_of(str(tmp_path / "other.db"))
    (tmp_path / "other.db").write_bytes(b"no database" * 99)
    page.refresh()
    assert "records:" in page.document["status"] and page.document["pages"]


def status(**changes: Any) -> RunStatus:
    own = RunStatus(owner="o", db="sqlite:///r.db", stage="x", seen="", budget_s=60, left_s=10, began=1.0, written=5.0,
                    measures=True)  # fmt: skip
    return replace(own, **changes)


def test_time_runs_down_while_something_is_measured() -> None:
    assert status().left(8.0) == 7.0 and status().left(99.0) == 0.0
    assert status(measures=False).left(8.0) == 10.0
    assert not status().alive, "what is no owner is not alive"


def test_a_run_says_what_it_is_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_status, "WRITTEN_EVERY_S", 0.0)
    pack = tmp_path / "pack"
    with Watcher((OP,), 100.0, quiet=True, status=StatusWriter(status_file(pack), "sqlite:///r.db")) as watcher:
        watcher(OP.name, "search", None)
        own = read_status(status_file(pack))
        assert own is not None and own.alive and own.measures and own.budget_s == 100.0
        assert own.stage == "dense_n8_k8 (1/1) searching kernels" and 99 < own.left(own.written) <= 100
        page = page_of(str(pack))
        page.refresh()
        rows = dict(panel(page.document, "Now", "The run")["tables"][""]["rows"])
        assert rows["state"] == "running" and rows["stage"] == own.stage and "of 100 s" in rows["time left"]
    assert list(tmp_path.iterdir()) == [], "a run that has ended leaves no status"


def test_a_status_that_cannot_be_written_costs_no_run(tmp_path: Path) -> None:
    folder = tmp_path / "pack.run.json"
    folder.mkdir()
    with Watcher((OP,), 100.0, quiet=True, status=StatusWriter(folder, "")) as watcher:
        assert watcher(OP.name, "search", None)
    assert folder.is_dir()


@pytest.mark.parametrize("text", ["", "[]", '{"owner": 1}', '{"stage": "x"}', "[" * 99_999])
def test_a_file_that_is_no_status_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.run.json").write_text(text)
    assert read_status(tmp_path / "a.run.json") is None
