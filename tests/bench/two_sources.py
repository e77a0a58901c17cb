"""Packs of two sources of haotuner, each served by its own, in turns: is any model slower than it was?

    python -m tests.bench.two_sources --old PYTHON --old-packs FOLDER --packs FOLDER --cache FOLDER [--only NAME …] [--loads]

``--old``: the Python of an environment that has the earlier source. The folders of packs are those of
``python -m tests.bench.wild --packs FOLDER``, run in either environment. A line is a model: the earlier pack's time over
this one's, the geometric mean and each size. Times are a thread's own CPU time, the least of all rounds, so that other
programs on the host lengthen neither. ``--loads``: times to load a pack and its model instead, its files in the page cache.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from haotuner.bench.model_child import feeds_of
from haotuner.bench.models import parse_inputs, shape_constraints_of
from haotuner.partition.dim_ranges import spans_of
from haotuner.runtime.pack import load
from haotuner.verify.model_check import graph_of, name_of
from tests.bench.wild import taken
from tests.bench.wild_models import EVERY, Wild, fetched

SIZES, ROUNDS = 5, 14
TURN_S = 0.02  # of calls of one contender, before the other one has its turn
# Public names alone, for it runs in either source. A line is a file of inputs, a count of calls, or null for a load.
CHILD = """
import contextlib, json, sys, time, warnings
warnings.simplefilter("ignore")
import haotuner, numpy
model = None
with contextlib.ExitStack() as ends:
    for line in sys.stdin:
        order = json.loads(line)
        if order is None:
            begin = time.process_time_ns()
            with haotuner.load(sys.argv[1], threads=1) as pack:
                pack.model(sys.argv[2])
                print((time.process_time_ns() - begin) / 1e9, flush=True)
            continue
        if model is None:
            model = ends.enter_context(haotuner.load(sys.argv[1], threads=1)).model(sys.argv[2])
        if isinstance(order, str):
            feeds = dict(numpy.load(order))
            model.run(feeds)
        least = float("inf")
        for _ in range(1 if isinstance(order, str) else order):
            begin = time.thread_time_ns()
            model.run(feeds)
            least = min(least, time.thread_time_ns() - begin)
        print(least / 1e9, flush=True)
"""


class Contender:
    """Process that serves a model of a pack by the source of its Python."""

    def __init__(self, python: str, pack: Path, model: str) -> None:
        command = [python, "-c", CHILD, str(pack), model]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, order: str | int | None) -> float:
        """The least of so many calls, of one by a file of inputs, or of a load; RuntimeError where the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {self._process.args!r} ended with {self._process.wait()}")
        return float(answer)

    def close(self) -> None:
        """End of the process."""
        self._process.communicate()


def load_ratio(model: Wild, file: Path, old: Sequence[str | Path], new: Sequence[str | Path]) -> list[float]:
    """The earlier pack's time to load over the later one's, alone in a list; arguments as ``ratios`` has them."""
    with contextlib.ExitStack() as ends:
        contenders = [Contender(str(python), Path(pack), name_of(file)) for python, pack in (old, new)]
        for contender in contenders:
            ends.callback(contender.close)
        rounds = [[contender.seconds(None) for contender in contenders] for _ in range(ROUNDS)]
    first, second = map(min, zip(*rounds, strict=True))
    print(f"{model.name}: {first * 1e3:.1f} ms, now {second * 1e3:.1f} ms", flush=True)
    return [first / second]


def ratios(model: Wild, file: Path, old: Sequence[str | Path], new: Sequence[str | Path]) -> list[float]:
    """The earlier pack's time over the later one's at each size. ``old``, ``new``: a Python and its pack."""
    name, spans = name_of(file), spans_of(graph_of(file, model.shapes), model.shapes)
    with load(Path(new[1]), threads=1) as opened:
        served = opened.model(name)
        dims = [dim for dim in spans if any(dim in end.shape for end in served.inputs)]
        requests = taken({dim: spans[dim] for dim in dims}, SIZES, shape_constraints_of(served, dims))
        inputs = [{"name": end.name, "dtype": end.dtype.name, "shape": list(end.shape)} for end in served.inputs]
    result = []
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as ends:
        contenders = [Contender(str(python), Path(pack), name) for python, pack in (old, new)]
        for contender in contenders:
            ends.callback(contender.close)
        for seed, request in enumerate(requests):
            values = parse_inputs(model.given, [item["name"] for item in inputs], list(request))
            feeds = Path(scratch) / f"{seed}.npz"
            np.savez(feeds, **feeds_of(inputs, request, seed, values))
            calls = max(1, round(TURN_S / max(contender.seconds(str(feeds)) for contender in contenders)))
            rounds = [[contender.seconds(calls) for contender in contenders] for _ in range(ROUNDS)]
            first, second = map(min, zip(*rounds, strict=True))
            result.append(first / second)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """A line for each model that both folders hold, and the geometric mean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", required=True, help="Python of the earlier source")
    parser.add_argument("--old-packs", type=Path, required=True)
    parser.add_argument("--packs", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True, help="keeps the ONNX files of wheels")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--loads", action="store_true", help="race loads instead of calls")
    args = parser.parse_args(arguments)
    means = []
    for model in _models(args.only, args.old_packs, args.packs):
        earlier, later = (args.old, args.old_packs / model.name), (sys.executable, args.packs / model.name)
        by_size = (load_ratio if args.loads else ratios)(model, fetched(model, args.cache), earlier, later)
        means.append(statistics.geometric_mean(by_size))
        print(f"{model.name}: {means[-1]:.3f} ({', '.join(f'{ratio:.2f}' for ratio in by_size)})", flush=True)
    if means:
        print(f"{len(means)} models: {statistics.geometric_mean(means):.3f}, least {min(means):.3f}")
    return int(not means or not all(map(math.isfinite, means)))


def _models(only: Sequence[str], *folders: Path) -> Iterator[Wild]:
    for model in EVERY:
        if (not only or model.name in only) and all((folder / model.name / "manifest.json").exists() for folder in folders):
            yield model


if __name__ == "__main__":
    sys.exit(main())
