"""Differences between a pack's answers and another library's to the same requests, both in one child process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.bench.contender import OURS, Setting, child_environment
from haotuner.bench.model_child import feeds_of, loader
from haotuner.bench.models import drawn_ends
from haotuner.isolate.answers import MISSING, Job, Refusal
from haotuner.isolate.child import Child
from haotuner.isolate.program import Program
from haotuner.runtime.model import Chain, Model

PROGRAM = "haotuner.bench.model_answers:comparison"
LIMIT_S = 900.0  # of one request, by both


def comparison(config: Mapping[str, Any]) -> Program:
    """Program that has both models; ``compare`` answers request ``index`` by both and says how far they are apart."""
    try:
        ours, other = (loader(name, config)() for name in (OURS, config["contender"]))
    except ImportError as error:
        raise Refusal("load", MISSING, str(error)) from error

    def compare(job: Job) -> Job:
        position = job["index"]
        feeds = feeds_of(config["inputs"], config["requests"][position], position, {})
        return {"difference": largest_difference(list(ours(feeds).values()), _arrays(other(feeds)))}

    return Program(verbs={"compare": compare})


def largest_difference(ours: Sequence[Any], others: Sequence[Any]) -> float:
    """The largest difference of any element, in terms of the largest value of its output; 1 for outputs of other shapes.

    Infinities and NaN must lie at the same elements, and whole numbers must be the same.
    """
    worst = 0.0 if len(ours) == len(others) else 1.0
    for own, other in zip(ours, others, strict=False):
        a, b = np.asarray(own, np.float64), np.asarray(other, np.float64)
        if a.shape != b.shape:
            return 1.0
        finite = np.isfinite(a) & np.isfinite(b)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return 1.0
        size = float(np.abs(b[finite]).max(initial=0.0)) or 1.0
        worst = max(worst, float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / size)
    return worst


def _arrays(outputs: Any) -> list[Any]:
    """Outputs of a library in the model's order, as arrays."""
    if hasattr(outputs, "values"):
        outputs = list(outputs.values())
    elif not isinstance(outputs, (list, tuple)):
        outputs = [outputs]
    return [
        output.float().numpy() if hasattr(output, "numpy") and hasattr(output, "float") else output for output in outputs
    ]


def differences(
    model: Model | Chain,
    peer: str,
    file: str,
    requests: Sequence[Mapping[str, int]],
    *,
    threads: int,
    environment: Mapping[str, str],
) -> float:
    """The largest of ``largest_difference`` over requests. HaotunerError or ChildNotResponding where a library fails."""
    config = {"pack": str(model.pack.path), "model": model.name, "inputs": drawn_ends(model, {}), "threads": threads,
              "requests": [dict(request) for request in requests], "given": {}, "contender": peer, "file": file}  # fmt: skip
    child = Child(PROGRAM, config, environment=child_environment(environment, Setting(threads=threads)))
    try:
        jobs = ({"do": "compare", "index": index} for index in range(len(requests)))
        return max((float(child.ask(request, LIMIT_S)["difference"]) for request in jobs), default=0.0)
    finally:
        child.close()
