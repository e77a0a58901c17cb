"""`haotuner serve` as a process: start, signals, capture, graceful stop, and what keeps it from starting."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.serve.nets import drawn

for package in ("starlette", "uvicorn", "grpc", "prometheus_client"):
    pytest.importorskip(package)

START_S = 60


@contextmanager
def served(*words: Any) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server on free ports, and HTTP's."""
    command = [sys.executable, "-m", "haotuner", "serve", *map(str, words), "--port", "0", "--grpc-port", "0"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(START_S, child.kill)
    watchdog.start()
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        seen = re.search(r"http://127\.0\.0\.1:(\d+), grpc://127\.0\.0\.1:\d+", line)
        assert seen, child.communicate()
        yield child, int(seen[1])
    finally:
        watchdog.cancel()
        if child.poll() is None:
            child.kill()
        child.communicate()


def post(line: HTTPConnection, size: int = 3) -> Any:
    x = drawn(0, 2, size)
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.reshape(-1).tolist()}]}
    line.request("POST", "/v2/models/rows/infer", json.dumps(body))
    answer = line.getresponse()
    return answer.status, json.loads(answer.read())


def test_a_server_hands_over_at_sighup_captures_and_stops_at_sigterm(pack_path: Path, tmp_path: Path) -> None:
    folder, trace = tmp_path / "pack", tmp_path / "trace.csv"
    shutil.copytree(pack_path, folder)
    with served(folder, "--log", "json", "--capture", trace) as (child, port):
        line = HTTPConnection("127.0.0.1", port, timeout=30)
        for size in (3, 3, 5):
            assert post(line, size)[0] == 200
        child.send_signal(signal.SIGHUP)
        for _ in range(300):
            line.request("GET", "/metrics")
            if "haotuner_hand_overs 1.0" in line.getresponse().read().decode():
                break
            time.sleep(0.02)
        else:
            raise AssertionError("nothing was handed over")
        assert post(line)[0] == 200
        (folder / "manifest.json").write_text("damaged")
        child.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert post(line)[0] == 200, "a damaged pack leaves the old one serving"
        line.close()
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=30)
    events = [json.loads(text) for text in errors.splitlines()]
    assert child.returncode == 0
    assert [event["event"] for event in events if event["level"] != "warning"] == [
        "serving", "handed over", "not handed over", "stopped",
    ]  # fmt: skip
    assert trace.read_text().splitlines() == ["batch,seq,weight", "2,3,4", "2,5,1"]


def test_a_stop_in_the_middle_of_a_request_answers_it(pack_path: Path) -> None:
    with served(pack_path) as (child, port), socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        x = drawn(0, 2, 3)
        tensor = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": x.reshape(-1).tolist()}
        body = json.dumps({"inputs": [tensor]}).encode()
        line.sendall(b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:9])
        time.sleep(0.3)
        child.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        line.sendall(body[9:])
        answer = b""
        while part := line.recv(65536):
            answer += part
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert child.wait(30) == 0


def test_a_trace_that_cannot_be_written_stops_no_server(pack_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    assert refused(pack_path, "--capture", folder / "trace.csv")[0] == 2
    folder.mkdir()
    with served(pack_path, "--capture", folder / "trace.csv") as (child, port):
        line = HTTPConnection("127.0.0.1", port, timeout=30)
        assert post(line)[0] == 200
        folder.rmdir()
        child.send_signal(signal.SIGHUP)  # writes the trace, too
        time.sleep(1.0)
        assert post(line)[0] == 200
        line.close()
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=30)
    assert child.returncode == 0 and "trace not written" in errors and "Traceback" not in errors


def refused(*words: Any) -> tuple[int, str]:
    command = [sys.executable, "-m", "haotuner", "serve", *map(str, words)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return answer.returncode, answer.stderr


def test_what_keeps_a_server_from_starting_is_told(pack_path: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(pack_path, damaged)
    (damaged / "models" / "rows.bytecode").write_bytes(b"cut")
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        rows: list[tuple[tuple[Any, ...], int, str]] = [
            ((pack_path, "--port", port), 4, f"127.0.0.1:{port} is in use"),
            ((pack_path, "--port", 0, "--grpc-port", port), 4, f"127.0.0.1:{port} is in use"),
            ((tmp_path / "none", "--port", 0), 5, "not a haotuner pack"),
            ((damaged, "--port", 0, "--grpc-port", 0), 5, "sha256"),
            ((pack_path, "--host", "no.such.host.invalid", "--port", 0), 2, "no address of this host"),
        ]
        for words, code, text in rows:
            seen = refused(*words)
            assert seen[0] == code and text in seen[1] and "Traceback" not in seen[1], seen


def test_options_that_make_no_sense_are_refused(pack_path: Path) -> None:
    from haotuner.cli.app import run

    for words in (
        ["--batching", "odd"],
        ["--log", "odd"],
        ["--spans", "odd"],
        ["--tune-idle", "0%"],
        ["--tune-idle", "x"],
        ["--grace", "0"],
        ["--tune-budget", "soon"],
        ["--port", "70000"],
    ):
        assert run(["serve", str(pack_path), *words]) == 2, words
