"""One contender of a model race, alone in its process: ``python -m haotuner.bench.model_child`` reads a task, prints times.

First every request is answered once, in the order of the trace: what a size costs that was not seen before. Then each is
answered again and again: its steady time.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[Mapping[str, Any]], Any]


def contender(name: str, task: Mapping[str, Any]) -> Callable[[], Run]:
    """What loads the model and gives a function that answers feeds. ImportError where its library is not installed."""
    if name == "ours":
        from haotuner.runtime.pack import load

        return lambda: load(task["pack"], threads=task["threads"]).model(task["model"]).run
    if name == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = task["threads"], 1

        def load_session() -> Run:
            session = onnxruntime.InferenceSession(task["file"], options, providers=["CPUExecutionProvider"])
            return lambda feeds: session.run(None, dict(feeds))

        return load_session
    if name == "openvino":
        import openvino

        settings = {
            "INFERENCE_NUM_THREADS": task["threads"],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }

        def load_request() -> Run:
            request = openvino.Core().compile_model(task["file"], "CPU", settings).create_infer_request()
            return lambda feeds: request.infer(dict(feeds))

        return load_request
    raise ValueError(f"no contender {name!r}")


def feeds_of(
    inputs: Sequence[Mapping[str, Any]], dims: Mapping[str, int], seed: int, given: Mapping[str, list[str]]
) -> dict[str, Any]:
    """Inputs of a request: normal numbers, whole ones 0 or 1; ``given``: numbers, or dimensions' names, for some."""
    draw, found = np.random.default_rng(seed), {}
    for one in inputs:
        shape = [dims[e] if isinstance(e, str) else e for e in one["shape"]]
        if one["name"] in given:
            told = [dims[e] if e in dims else float(e) for e in given[one["name"]]]
            found[one["name"]] = np.ascontiguousarray(np.broadcast_to(np.array(told, one["dtype"]), shape))
        elif one["dtype"].startswith("float"):
            found[one["name"]] = draw.standard_normal(shape).astype(one["dtype"])
        else:
            found[one["name"]] = draw.integers(0, 2, shape).astype(one["dtype"])
    return found


def peak_bytes() -> int:
    """The most memory that this process held; the system's other count also has that of the process which started it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def main() -> int:
    """Read a task from stdin, print what it took as JSON."""
    task = json.loads(sys.stdin.read())
    try:
        load_model = contender(task["contender"], task)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return 0
    begin = time.perf_counter()
    run = load_model()
    load_ms = (time.perf_counter() - begin) * 1e3
    first, steady = [], []
    for place, dims in enumerate(task["requests"]):
        feeds = feeds_of(task["inputs"], dims, place, task["given"])
        begin = time.perf_counter()
        run(feeds)
        first.append((time.perf_counter() - begin) * 1e6)
    for place, dims in enumerate(task["requests"]):
        feeds = feeds_of(task["inputs"], dims, place, task["given"])
        times: list[float] = []
        until = time.perf_counter() + task["seconds"]
        while len(times) < 5 or (time.perf_counter() < until and len(times) < 1000):
            begin = time.perf_counter()
            run(feeds)
            times.append((time.perf_counter() - begin) * 1e6)
        steady.append(statistics.median(times))
    print(json.dumps({"first_us": first, "steady_us": steady, "load_ms": load_ms, "peak_bytes": peak_bytes()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
