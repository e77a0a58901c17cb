"""Traffic that a server sees: how often each model was asked for which sizes, as traces that `haotuner bench` takes."""

from __future__ import annotations

import csv
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from haotuner.host.files import written_aside

MOST_SIZES = 10_000  # different requests of one model that are counted; further ones count as the last
Sizes = tuple[tuple[str, int], ...]


class Traffic:
    """Counts of requests by model and sizes, in bounded memory."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[Sizes]] = {}
        self._lock = threading.Lock()

    def count(self, model: str, dims: Mapping[str, int]) -> None:
        """Count one request."""
        with self._lock:
            counts = self._counts.setdefault(model, Counter())
            sizes = tuple(sorted(dims.items()))  # a request may name its inputs in any order
            if sizes in counts or len(counts) < MOST_SIZES:
                counts[sizes] += 1

    def counts(self, model: str) -> dict[Sizes, int]:
        """Requests of a model by sizes, the most frequent first."""
        with self._lock:
            return dict(self._counts.get(model, Counter()).most_common())

    @property
    def models(self) -> list[str]:
        """Names of models that were asked for."""
        with self._lock:
            return list(self._counts)

    def write(self, path: Path) -> list[Path]:
        """A CSV trace of each model, replaced in one step: ``path`` of a single model, else ``NAME.MODEL.csv``."""
        if len(self.models) == 1:
            return [self.write_model(path, self.models[0])]
        return [self.write_model(path.with_name(f"{path.stem}.{model}{path.suffix}"), model) for model in self.models]

    def write_model(self, path: Path, model: str) -> Path:
        """The trace of one model: a column for each dimension, and ``weight``."""
        counts = self.counts(model)
        names = [name for name, _ in next(iter(counts), ())]
        with written_aside(path) as aside, aside.open("w", newline="", encoding="utf-8") as stream:
            table = csv.writer(stream, lineterminator="\n")
            table.writerow([*names, "weight"])
            table.writerows([*(size for _, size in sizes), count] for sizes, count in counts.items())
        return path
