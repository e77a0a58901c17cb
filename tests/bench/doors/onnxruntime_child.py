"""A session of ONNX Runtime in a process: ``python -m tests.bench.doors.onnxruntime_child FILE SHAPES [PACK LIBRARY]``.

With a pack the provider's library computes, else the runtime's CPU provider. One thread. Prints one JSON document.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

NEW_SHAPES = 200
WARM_CALLS = 3  # of each new shape, behind its first
SAME_CALLS = 200  # of one shape, for the percentiles
NAME = "HaotunerExecutionProvider"


def session_of(file: Path, pack: Path | None, library: Path | None) -> Any:
    """A session of one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if pack is None or library is None:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    onnxruntime.register_execution_provider_library("haotuner", str(library))
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]
    options.add_provider_for_devices(devices, {"pack": str(pack), "threads": "1"})
    return onnxruntime.InferenceSession(str(file), options, enable_fallback=False)


def drawn(shapes: str, count: int, seed: int) -> list[dict[str, int]]:
    """Different sizes in the range, evenly drawn."""
    numbers = np.random.default_rng(seed)
    spans = {}
    for part in shapes.split(";"):
        name, _, ends = part.partition("=")
        spans[name] = tuple(int(end) for end in ends.split(".."))
    result: dict[tuple[int, ...], None] = {}
    while len(result) < count:
        result[tuple(int(numbers.integers(low, high + 1)) for low, high in spans.values())] = None
    return [dict(zip(spans, sizes, strict=True)) for sizes in result]


def feeds_of(session: Any, sizes: dict[str, int]) -> dict[str, Any]:
    """A request of these sizes."""
    numbers = np.random.default_rng(0)
    shapes = {end.name: [sizes.get(extent, extent) for extent in end.shape] for end in session.get_inputs()}
    return {name: numbers.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def seconds(call: Any) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def fresh_seconds(session: Any, sizes: dict[str, int]) -> float:
    """Seconds of a call with arrays that were just made, so that first and later calls find caches alike."""
    feeds = feeds_of(session, sizes)
    return seconds(lambda: session.run(None, feeds))


def resident_mb() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def over_direct_us(session: Any, pack: Path, name: str, feeds: dict[str, Any]) -> float:
    """Microseconds that the runtime's call takes over the pack's own, measured in turns."""
    import warnings

    import haotuner

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packs that were made by prediction
        opened = haotuner.load(pack, threads=1)
    model = opened.model(name)
    pairs = [(seconds(lambda: session.run(None, feeds)), seconds(lambda: model.run(feeds))) for _ in range(SAME_CALLS * 5)]
    return 1e6 * (statistics.median(a for a, _ in pairs) - statistics.median(b for _, b in pairs))


def main(arguments: list[str]) -> int:
    """Measure, and print."""
    file, shapes = Path(arguments[0]), arguments[1]
    pack, library = (Path(arguments[2]), Path(arguments[3])) if len(arguments) > 2 else (None, None)
    session = session_of(file, pack, library)
    sizes = drawn(shapes, NEW_SHAPES + 20, seed=1)
    session.run(None, feeds_of(session, sizes[0]))
    ready = time.monotonic()
    for single in sizes[:20]:
        feeds = feeds_of(session, single)
        session.run(None, feeds)
    first, warm, before_mb = list[float](), list[float](), resident_mb()
    for single in sizes[20:]:
        first.append(fresh_seconds(session, single))
        warm.append(statistics.median(fresh_seconds(session, single) for _ in range(WARM_CALLS)))
    grown_mb = resident_mb() - before_mb
    feeds = feeds_of(session, sizes[10])
    same = [seconds(lambda: session.run(None, feeds)) for _ in range(SAME_CALLS)]
    document = {
        "ready": ready,
        "grown_mb": grown_mb,
        "first_ms": 1e3 * statistics.median(first),
        "first_over_warm": statistics.median(a / b for a, b in zip(first, warm, strict=True)),
        "p50_us": 1e6 * float(np.percentile(same, 50)),
        "p99_us": 1e6 * float(np.percentile(same, 99)),
        "throughput": len(warm) / sum(warm),
        "memory_mb": resident_mb(),
    }
    if pack is not None:
        smallest = min(sizes, key=lambda single: np.prod(list(single.values())))
        document["over_direct_us"] = over_direct_us(session, pack, file.stem, feeds_of(session, smallest))
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
