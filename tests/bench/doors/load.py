"""Clients of a server of the open inference protocol: requests of given sizes from many connections, and their latencies."""

from __future__ import annotations

import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from typing import Any

import numpy as np

HEADER = "Inference-Header-Content-Length"
NAMES = ("input_ids", "attention_mask")


def feeds_of(length: int, rows: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs of a request of rows of so many tokens."""
    ids = np.arange(rows * length, dtype=np.int64).reshape(rows, length) % 900 + 1
    return dict(zip(NAMES, (ids, np.ones_like(ids)), strict=True))


def body_of(length: int, rows: int = 1) -> tuple[bytes, dict[str, str]]:
    """A request of rows of so many tokens, and its headers."""
    arrays = feeds_of(length, rows).values()
    size = {"binary_data_size": 8 * rows * length}
    inputs = [{"name": name, "datatype": "INT64", "shape": [rows, length], "parameters": size} for name in NAMES]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + b"".join(array.tobytes() for array in arrays), {HEADER: str(len(head))}


def send(line: HTTPConnection, model: str, length: int, rows: int = 1) -> np.ndarray[Any, Any]:
    """The answer to one request."""
    line.request("POST", f"/v2/models/{model}/infer", *body_of(length, rows))
    answer = line.getresponse()
    raw = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}: {raw[:300]!r}")
    return np.frombuffer(raw[int(answer.headers[HEADER]) :], np.float32)


def first_over_warm(port: int, model: str, most: int, count: int) -> float:
    """Median of times of first requests of so many sizes never seen, each over that of later ones of its size."""
    sizes = random.Random(1).sample([(length, rows) for length in range(1, most + 1) for rows in range(2, 6)], count)
    line, ratios = HTTPConnection("127.0.0.1", port, timeout=60), list[float]()
    for length, rows in sizes:
        first, *later = (_seconds(line, model, length, rows) for _ in range(4))
        ratios.append(first / statistics.median(later))
    line.close()
    return statistics.median(ratios)


def _seconds(line: HTTPConnection, model: str, length: int, rows: int) -> float:
    begin = time.perf_counter()
    send(line, model, length, rows)
    return time.perf_counter() - begin


def one_client(port: int, model: str, lengths: Sequence[int], seconds: float) -> list[float]:
    """Microseconds of requests, one after the other, until the time is over."""
    line, times = HTTPConnection("127.0.0.1", port, timeout=60), list[float]()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        begin = time.perf_counter()
        send(line, model, lengths[len(times) % len(lengths)])
        times.append(1e6 * (time.perf_counter() - begin))
    line.close()
    return times


def many_clients(port: int, model: str, lengths: Sequence[int], seconds: float, count: int) -> list[float]:
    """The same of many clients at once, in processes of their own so that they do not wait for one another."""
    context = multiprocessing.get_context("spawn")
    shares = [[*lengths[first::count], *lengths] for first in range(count)]
    with context.Pool(4, initializer=None) as pool:
        parts = [shares[first::4] for first in range(4)]
        results = pool.starmap(_threads, [(port, model, part, seconds) for part in parts])
    return [us for times in results for us in times]


def _threads(port: int, model: str, shares: Sequence[Sequence[int]], seconds: float) -> list[float]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(shares)) as pool:
        return [us for times in pool.map(lambda share: one_client(port, model, share, seconds), shares) for us in times]
