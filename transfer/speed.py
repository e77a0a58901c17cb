"""Speed: how long a model takes for many rows on one core, features included."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

from haotuner.cost.features import frame as frame_of
from haotuner.cost.forest import Forest
from haotuner.errors import UsageError
from haotuner.transfer.reading import Read, demands_of, table_of
from haotuner.transfer.sources import learn_sources
from haotuner.transfer.transferred import Transferred

REPEATS = 5  # the fastest counts: other load only ever adds
SAMPLE = 32  # target rows the residual model is fitted on


def time_scoring(read: Read, target: str, family: str, counts: Sequence[int]) -> dict[str, Any]:
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
    own = Forest().fit(table.frame, table.labels)
    found: dict[str, dict[str, float]] = {}
    for count in counts:
        rows = list(islice(cycle(range(len(table))), count))
        trials = [table.trials[row] for row in rows]
        _, demands = demands_of(table.device, family, trials)

        def features(demands: Any = demands) -> Any:
            return [frame_of(part, wanted) for part, wanted in demands]

        found[str(count)] = {"features": _least(features)} | {
            name: _least(lambda m=model, f=features: [m.predict(part) for part in f()])  # type: ignore[misc]
            for name, model in (("zero-shot", cold), ("residual", warm), ("own forest", own))
        }
    return {"target": target, "family": family, "sources": list(cold.sources.ids), "rows": found}


def _least(of: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        of()
        times.append(time.perf_counter() - start)
    return min(times)
