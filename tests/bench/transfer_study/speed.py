"""Speed: how long a model takes for many rows on one core, features included."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import pandas as pd

from haotuner.cost.features import features
from haotuner.cost.forest import Forest, one_device
from haotuner.errors import UsageError
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.shape import Shape
from haotuner.transfer.reading import DeviceTables, groups_of
from haotuner.transfer.saved_model import Transferred
from haotuner.transfer.sources import learn_sources
from tests.bench.transfer_study.splits import table_of

REPEATS = 5  # the fastest counts: other load only ever adds
SAMPLE = 32  # target rows the residual model is fitted on


def time_scoring(read: DeviceTables, target: str, family: str, counts: Sequence[int]) -> dict[str, Any]:
    """Seconds for each count of rows: features alone, then features and predictions of three kinds of model.

    Rows beyond those that the target measured repeat from the start.

    Raises:
        UsageError: no rows asked for.
    """
    if not counts or min(counts) < 1:
        raise UsageError("--rows must name at least one count from 1 up, such as 4000,64000")
    table, others = table_of(read, family, target)
    cold = Transferred(learn_sources(others, table.device, seed=0))
    warm = Transferred(cold.sources).fit(table.frame.iloc[:SAMPLE], table.labels[:SAMPLE])
    own = Forest(settings=one_device(len(table))).fit(table.frame, table.labels)
    results: dict[str, dict[str, float]] = {}
    groups = groups_of(table.device, family, table.trials)
    every = [(at, pair) for at, group in enumerate(groups) for pair in group.pairs]
    for count in counts:
        requests: list[list[tuple[MicroKernel, Shape]]] = [[] for _ in groups]
        for at, pair in islice(cycle(every), count):
            requests[at].append(pair)

        def frames(requests: Any = requests) -> list[pd.DataFrame]:
            """As a search makes them: from kernels and shapes."""
            return [
                features(group.part, group.family, group.problem(), pairs, weights=group.cache)
                for group, pairs in zip(groups, requests, strict=True)
                if pairs
            ]

        results[str(count)] = {"features": _least(frames)} | {
            name: _least(lambda m=model, f=frames: [m.predict(part) for part in f()])  # type: ignore[misc]
            for name, model in (("zero-shot", cold), ("residual", warm), ("own forest", own))
        }
    return {"target": target, "family": family, "sources": list(cold.sources.ids), "rows": results}


def _least(of: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        of()
        times.append(time.perf_counter() - start)
    return min(times)
