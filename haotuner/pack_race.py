"""Whether a new pack of whole models is slower than the one in its place: a short race of both, before anything is replaced.

Times of two runs are not comparable, nor are those of a run and a prediction. Both packs are loaded by one process, and
answer the requests that the new one was planned for in turns, the least time of each counts. ``python -m haotuner.pack_race
OLD NEW`` prints the new one's time over the old one's: a process of its own, for code that crashes must not take the tuner
along.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.errors import HaotunerError
from haotuner.pack.manifest import Manifest, read_manifest
from haotuner.runtime.pack import Pack

SLOWER = 1.05  # of the old pack's time: less is chance
SECONDS, LIMIT_S = 6.0, 60.0  # for all requests of all models; of the process
LEAST_CALLS = 2
SEED = 0


class StaysBetter(Exception):  # noqa: N818  # nothing is wrong
    """The pack in its place answers faster than the new one; ``ratio``: the new one's time over the old one's."""

    def __init__(self, ratio: float) -> None:
        super().__init__(f"the pack that lies there answers faster ({ratio:.2f} of its time is what the new one takes)")
        self.ratio = ratio


def check_not_slower(old: Path, new: Path, environment: Mapping[str, str]) -> None:
    """StaysBetter where the pack ``old`` serves the same models for the same sizes, and clearly faster."""
    ratio = ratio_apart(old, new, environment) if comparable(old, new) else None
    if ratio is not None and ratio > SLOWER:
        raise StaysBetter(ratio)


def comparable(old: Path, new: Path) -> bool:
    """Whether both packs are for the same device and have the same models, by their weights, for the same sizes."""
    try:
        return bool(_meaning(read_manifest(old)) == _meaning(read_manifest(new)))
    except HaotunerError:
        return False


def _meaning(manifest: Manifest) -> Any:
    tuning = manifest.tuning
    threads = {name: sorted(one["predicted_us"]) for name, one in tuning.get("models", {}).items()}
    weights = {name: one.weights_sha256 for name, one in manifest.models.items()}
    return manifest.document["device"]["id"], weights, tuning.get("model_ranges"), threads


def ratio_apart(old: Path, new: Path, environment: Mapping[str, str]) -> float | None:
    """``ratio`` by a process of its own; None where it came to nothing: an older pack need not run here."""
    command = [sys.executable, "-m", "haotuner.pack_race", str(old), str(new)]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, env=dict(environment) or None, timeout=LIMIT_S, check=True
        )
        return float(json.loads(answer.stdout))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return None


def ratio(old: Path, new: Path, now: Callable[[], float] = time.perf_counter) -> float:
    """Time of ``new`` over that of ``old``: geometric mean over the requests of all models. HaotunerErrors as of packs."""
    held = read_manifest(new).tuning["models"]
    threads = min(int(count) for plan in held.values() for count in plan["predicted_us"])
    found: list[float] = []
    with Pack(old, threads) as one, Pack(new, threads) as other:
        asked = [(name, said) for name, plan in held.items() for said in next(iter(plan["predicted_us"].values()))]
        for name, said in asked:
            dims = {key: int(size) for key, _, size in (part.partition("=") for part in said.split(";"))}
            calls = [_call(pack.model(name), dims) for pack in (one, other)]
            before, after = _least(calls, SECONDS / len(asked), now)
            found.append(log(after / before))
    return exp(sum(found) / max(1, len(found)))


def _call(model: Any, dims: Mapping[str, int]) -> Callable[[], Any]:
    draw, inputs = np.random.default_rng(SEED), {}
    for end in model.inputs:
        shape = [dims[extent] if isinstance(extent, str) else extent for extent in end.shape]
        drawn = draw.standard_normal(shape) if end.dtype.kind == "f" else draw.integers(0, 2, shape)
        inputs[end.name] = drawn.astype(end.dtype)
    more = {"seed": SEED} if hasattr(model, "segments") else {}
    return lambda: model.run(inputs, **more)


def _least(calls: list[Callable[[], Any]], seconds: float, now: Callable[[], float]) -> list[float]:
    """The least time of each, in turns: what else runs here meets both."""
    for call in calls:
        call()
    least, begin, count = [float("inf")] * len(calls), now(), 0
    while count < LEAST_CALLS or now() - begin < seconds:
        count += 1
        for place, call in enumerate(calls):
            start = now()
            call()
            least[place] = min(least[place], max(now() - start, 1e-9))
    return least


if __name__ == "__main__":
    print(json.dumps(ratio(Path(sys.argv[1]), Path(sys.argv[2]))))
