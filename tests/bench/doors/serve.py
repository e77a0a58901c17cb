"""The door `haotuner serve` beside plain uvicorn and ONNX Runtime: an encoder of MiniLM's sizes with random weights.

Also how far expected times are from those of the pack's calls over the same trace, by one thread and by two.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import haotuner
from tests.bench.doors.load import feeds_of, first_over_warm, many_clients, one_client, send
from tests.bench.doors.row import Row
from tests.bench.markdown import markdown_table

SECONDS, CLIENTS, TURNS = 4.0, 32, 3
LENGTHS = 400  # drawn once, log-normally as sentences are
NAME, SHAPES, BUDGET, THREADS = "minilm_size", "batch=1..16;seq=1..128", "120s", "1,2"
NEW_SIZES = 200  # that come once each
_NOTES: list[str] = []


def prepare(folder: Path) -> None:
    """The model's file and its pack, where the folder lacks them."""
    import torch

    from tests.bench.encoder_files import Encoder, write

    file, pack = folder / f"{NAME}.onnx", folder / "pack"
    if not file.exists():
        torch.manual_seed(0)
        write(NAME, Encoder(width=384, heads=12, layers=6), folder)
    if not pack.exists():
        words = ["tune", str(file), "--shapes", SHAPES, "--budget", BUDGET, "--threads", THREADS, "--peers", "none", "-q"]
        done = subprocess.run([sys.executable, "-m", "haotuner", *words, "--out", str(pack)], check=False)
        if done.returncode not in (0, 3):
            raise RuntimeError(f"haotuner {' '.join(words)} exited with {done.returncode}")


def lengths_to(most: int) -> list[int]:
    """Lengths of requests."""
    draw = random.Random(0)
    return [max(1, min(most, int(draw.lognormvariate(3.2, 0.7)))) for _ in range(LENGTHS)]


@contextmanager
def server(words: Sequence[str]) -> Iterator[tuple[int, float, int]]:
    """A server's port, the milliseconds until it answered, and its process id."""
    begin = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert child.stdout is not None
        line = child.stdout.readline().strip()
        port = int(line.split(",")[-1].rsplit(":", 1)[-1]) if not line.isdecimal() else int(line)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                probe = HTTPConnection("127.0.0.1", port, timeout=5)
                probe.request("GET", "/v2/health/ready")
                probe.getresponse().read()
                break
            except OSError:
                time.sleep(0.005)
        yield port, 1e3 * (time.perf_counter() - begin), child.pid
    finally:
        child.terminate()
        child.wait()


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def measured(words: Sequence[str], model: str, lengths: Sequence[int], *, new_sizes: bool) -> dict[str, Any]:
    """Figures of one server, and its answers to three requests; with ``new_sizes`` also of first requests of such."""
    with server(words) as (port, cold_ms, pid):
        line = HTTPConnection("127.0.0.1", port, timeout=60)
        answers = [send(line, model, length) for length in (1, 17, 40)]
        begin = time.perf_counter()
        send(line, model, 93)
        first_ms = 1e3 * (time.perf_counter() - begin)
        line.close()
        alone = one_client(port, model, lengths, SECONDS)
        crowd = many_clients(port, model, lengths, SECONDS, CLIENTS)
        memory, ratio = memory_mb(pid), first_over_warm(port, model, max(lengths), NEW_SIZES) if new_sizes else 0.0
        grown = memory_mb(pid) - memory
    return {
        "first_over_warm": ratio,
        "grown_mb": grown,
        "cold_ms": cold_ms,
        "first_ms": first_ms,
        "alone": alone,
        "crowd": crowd,
        "memory_mb": memory,
        "answers": answers,
    }


def figures(turns: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Figures of the turns of one server: times of all turns together."""
    alone = np.concatenate([turn["alone"] for turn in turns])
    return {
        "cold_ms": float(min(turn["cold_ms"] for turn in turns)),
        "first_ms": float(min(turn["first_ms"] for turn in turns)),
        "p50_us": float(np.median(alone)),
        "p99_us": float(np.quantile(alone, 0.99)),
        "throughput": float(np.median([len(turn["crowd"]) / SECONDS for turn in turns])),
        "memory_mb": float(max(turn["memory_mb"] for turn in turns)),
    }


def expected_errors(pack: Path, model: str, lengths: Sequence[int], threads: int) -> np.ndarray[Any, Any]:
    """Expected times over those of calls, less 1, of a trace: every call has another size than the one before."""
    with haotuner.load(pack, threads=threads) as opened:
        own, errors = opened.model(model), list[float]()
        for turn in range(3):
            for length in lengths:
                feeds, begin = feeds_of(length), time.perf_counter()
                own.run(feeds)
                us = 1e6 * (time.perf_counter() - begin)
                if turn:  # not the first, which makes plans
                    errors.append(own.expected_us(batch=1, seq=length).expected / us - 1)
    return np.array(errors)


def rows(folder: Path) -> list[Row]:
    """One encoder: ours, and ONNX Runtime a call a request; notes compare batching with padding to buckets."""
    import onnxruntime

    pack, file = str(folder / "pack"), str(folder / f"{NAME}.onnx")
    with haotuner.load(pack) as opened:
        model, threads = opened.models[0], opened.threads
        most = opened.manifest.tuning["model_ranges"][model]["seq"][1]
    lengths = lengths_to(most)
    free = ["--port", "0", "--grpc-port", "-1", "--threads", str(threads), "--no-metrics"]
    commands = {
        "ours": ["haotuner", "serve", pack, *free],
        "plain": ["tests.bench.doors.serve_peer", file, str(threads), "plain"],
        "buckets": ["tests.bench.doors.serve_peer", file, str(threads), "buckets"],
    }
    load_before = os.getloadavg()[0]
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for turn in range(TURNS):
        for name, words in commands.items():
            turns[name].append(measured(words, model, lengths, new_sizes=not turn and name != "buckets"))
    for own, other in zip(turns["ours"][0]["answers"], turns["plain"][0]["answers"], strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-3, atol=1e-3)
    loads = f"load average of the host {load_before:.1f} at first, {os.getloadavg()[0]:.1f} at last."
    errors = {count: expected_errors(Path(pack), model, lengths, count) for count in map(int, THREADS.split(","))}
    _NOTES[:] = [crowd_table(turns), *facts(turns, errors), f"- Servers in turns, {TURNS} times; {loads}"]
    label = f"{model}, seq 1 to {most}, {threads} threads"
    peer = f"uvicorn {version('uvicorn')}, ONNX Runtime {onnxruntime.__version__}"
    return [Row(door="serve", model=label, **figures(turns["ours"]), beside=dict(figures(turns["plain"])), server=peer)]


def crowd_table(turns: dict[str, list[dict[str, Any]]]) -> str:
    """Throughput and latencies of all clients together."""
    words = {
        "ours": "`haotuner serve`: equal lengths joined by expected times",
        "plain": "ONNX Runtime, a call a request",
        "buckets": "ONNX Runtime, padded to buckets of 16, 32, 64, 128 and joined for 2 ms",
    }
    table = []
    for name, every in turns.items():
        crowd = np.concatenate([turn["crowd"] for turn in every])
        rate = np.median([len(turn["crowd"]) / SECONDS for turn in every])
        p50, p99 = np.quantile(crowd, [0.5, 0.99]) / 1e3
        table.append([words[name], f"{rate:,.0f}", f"{p50:,.1f}", f"{p99:,.1f}"])
    head = (f"{CLIENTS} clients", "requests a second", "p50, ms", "p99, ms")
    return "\n".join(markdown_table(head, table))


def facts(turns: dict[str, list[dict[str, Any]]], errors: dict[int, np.ndarray[Any, Any]]) -> list[str]:
    """Lines on batching beside padding, on first requests of new sizes, and on expected times."""
    rates = {name: np.median([len(turn["crowd"]) for turn in every]) for name, every in turns.items()}
    own, plain = turns["ours"][0], turns["plain"][0]
    lines = [
        f"Throughput of {CLIENTS} clients: {rates['ours'] / rates['plain']:.2f}x that of a call a request, "
        f"{rates['ours'] / rates['buckets']:.2f}x that of padding to buckets.",
        f"{NEW_SIZES} sizes never seen: a first request over a later one of its size, median: "
        f"{own['first_over_warm']:.3f}x, of ONNX Runtime {plain['first_over_warm']:.3f}x. Memory grew by "
        f"{own['grown_mb']:.1f} MB, and by {plain['grown_mb']:.1f} MB.",
    ]
    for count, off in errors.items():
        lines.append(
            f"Expected times, {count} thread{'s' * (count > 1)}: {100 * np.median(np.abs(off)):.1f} % off the trace's calls "
            f"in the median; the median of signed errors is {100 * np.median(off):+.1f} %."
        )
    return ["", *(f"- {line}" for line in lines)]


def notes(folder: Path) -> str:
    """The table of all clients, and the lines of ``facts``; of the rows that were measured last."""
    del folder
    return "\n".join(_NOTES)
