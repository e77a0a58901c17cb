"""Times of whole models of a new pack at chosen requests, for the table of expected times that it will hold.

``python -m haotuner.verify.model_times PACK SECONDS PLAN`` reads thread counts and requests from a file, and prints JSON:
of each thread count and model the microseconds of every request's calls. A process of its own, for code that crashes must
not take the tuner along.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from haotuner.errors import HaotunerError, UsageError
from haotuner.host.files import read_regular
from haotuner.isolate import group
from haotuner.isolate.answers import TimedOut
from haotuner.runtime.pack import Pack
from haotuner.verify.pack_race import call_of

START_S = 60.0  # of the process, beside its calls: it opens models of a gigabyte
PLAN_BYTES = 1 << 26  # of a file of requests
MOST_CALLS = 9  # of one request at one pass
ENOUGH_S = 0.02  # of one request at one pass

Requests = Mapping[str, Sequence[Mapping[str, int]]]
Times = dict[int, dict[str, list[list[float]]]]  # by threads and model, of each request; no time where it was not answered


def times_apart(
    pack: Path, threads: Sequence[int], requests: Requests, seconds: float, environment: Mapping[str, str]
) -> Times:
    """Microseconds of the calls of each request, by threads and model; empty where the process failed."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        plan.write_text(json.dumps({"threads": list(threads), "requests": requests}), encoding="utf-8")
        words = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "haotuner.verify.model_times",
            str(pack),
            str(seconds),
            str(plan),
        ]
        try:
            answer = group.run(words, START_S + 4 * seconds, dict(environment) or None)
        except (TimedOut, OSError):
            return {}
    if answer.code != 0:
        return {}
    times: dict[str, dict[str, list[list[float]]]] = json.loads(answer.out.splitlines()[-1])
    return {int(count): models for count, models in times.items()}


def times_of(pack: Path, threads: Sequence[int], requests: Requests, seconds: float) -> Times:
    """As ``times_apart``, in this process. HaotunerErrors as of packs."""
    result: Times = {}
    share = seconds / len(requests) / len(threads)
    for count in threads:
        with Pack(pack, count) as opened:
            # The processor's time of the calling thread, where it is the only one: other programs do not lengthen it.
            clock = time.thread_time if count == 1 else time.perf_counter
            result[count] = {name: _times(opened.model(name), rows, share, clock) for name, rows in requests.items()}
    return result


def _times(
    model: Any, requests: Sequence[Mapping[str, int]], seconds: float, clock: Callable[[], float]
) -> list[list[float]]:
    """Times of every request's calls, in passes over all of them: what disturbs a moment meets no request alone.

    The smallest requests come first, and the largest have no time where ``seconds`` are over before. A call that takes long
    is timed once: what its first call does more is little of it.
    """
    times: list[list[float]] = [[] for _ in requests]
    short: dict[int, Any] = {}
    until = time.perf_counter() + seconds
    for index in sorted(range(len(requests)), key=lambda index: prod(requests[index].values())):
        try:
            call = call_of(model, requests[index])
            begin = clock()
            call()
        except UsageError:  # sizes that the model refuses together
            continue
        took = clock() - begin
        if took > ENOUGH_S:
            times[index].append(1e6 * took)
        else:
            short[index] = call
        if time.perf_counter() > until:
            break
    last = 0.0  # of a whole pass
    while short and (not last or time.perf_counter() + last < until):
        begin = time.perf_counter()
        for index, call in short.items():
            times[index] += _one_pass(call, clock)
        last = time.perf_counter() - begin
    return times


def _one_pass(call: Any, clock: Callable[[], float]) -> list[float]:
    """Microseconds of a few calls of one request."""
    times, begin = list[float](), time.perf_counter()
    while len(times) < MOST_CALLS and (not times or time.perf_counter() - begin < ENOUGH_S):
        start = clock()
        call()
        times.append(1e6 * (clock() - start))
    return times


def main(pack: str, seconds: str, plan: str) -> int:
    """A line of JSON; what a pack says that fails goes to stderr."""
    document = json.loads(read_regular(plan, PLAN_BYTES))
    try:
        print(json.dumps(times_of(Path(pack), document["threads"], document["requests"], float(seconds))))
    except HaotunerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
