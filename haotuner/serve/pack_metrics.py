"""Metrics of an open pack: calls, shapes out of range, latencies and memory, as numbers or for a Prometheus registry."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily

from haotuner.runtime.model import Chain, Model
from haotuner.runtime.pack import Pack

BOUNDS_S = tuple(base * 10.0**power for power in range(-6, 1) for base in (1, 2, 5)) + (10.0,)  # 1 us to 10 s


class Latency:
    """Histogram of the seconds of calls."""

    def __init__(self) -> None:
        self.counts, self.total_s = [0] * (len(BOUNDS_S) + 1), 0.0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        """Count one call."""
        with self._lock:
            self.counts[bisect_left(BOUNDS_S, seconds)] += 1
            self.total_s += seconds

    @property
    def buckets(self) -> list[tuple[str, int]]:
        """Bounds, and how many calls took at most so long."""
        sums, total = [], 0
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], self.counts, strict=True):
            total += count
            sums.append((bound, total))
        return sums


class PackMetrics:
    """Metrics of one pack; also a collector: ``registry.register(haotuner.metrics(pack))``.

    ``latency``: whether calls of whole models are timed from now on, those of handles that callers have already too. A pack
    without metrics, or without latency, has nothing of it in the way of a call.
    """

    def __init__(self, pack: Pack, *, latency: bool = True) -> None:
        self.pack = pack
        self._latency: dict[str, Latency] = {}
        if latency:
            pack.watch(self._watch)

    def _watch(self, handle: Model | Chain) -> None:
        """Time the calls of one handle: its own ``run`` stands before that of its class."""
        add, run = self._latency.setdefault(handle.name, Latency()).add, handle.run

        def timed(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return run(*arguments, **options)
            finally:
                add(time.perf_counter() - begin)

        setattr(handle, "run", timed)  # noqa: B010  # of one object; a class's method is no attribute to be assigned

    def snapshot(self) -> dict[str, Any]:
        """``pack`` (its id), ``ops`` and ``models``: of each calls, shapes out of range, memory, and a histogram."""
        pack = self.pack
        models: dict[str, dict[str, Any]] = {name: dict(stats) for name, stats in pack.model_stats().items()}
        for name, latency in self._latency.items():
            models.setdefault(name, {})["latency_s"] = {"buckets": latency.buckets, "sum": latency.total_s}
        ops = {} if pack.models else pack.stats()
        return {"pack": pack.manifest.sha256[:16], "path": str(pack.path), "models": models, "ops": ops}

    def collect(self) -> Iterator[Any]:
        """Families of metrics for a registry."""
        state = self.snapshot()
        info = InfoMetricFamily("haotuner_pack", "The pack that is served", labels=["pack"])
        info.add_metric([state["pack"]], {"path": state["path"], "device": self.pack.device})
        yield info
        counted = (("calls", "Calls"), ("out_of_range", "Calls of sizes that nothing was tuned for"))
        for key, text in counted:
            family = CounterMetricFamily(f"haotuner_{key}", text, labels=["pack", "kind", "name"])
            for kind in ("models", "ops"):
                for name, stats in state[kind].items():
                    family.add_metric([state["pack"], kind[:-1], name], stats.get(key, 0))
            yield family
        memory = GaugeMetricFamily("haotuner_memory_bytes", "Memory of models", labels=["pack", "name", "what"])
        latency = HistogramMetricFamily("haotuner_call_seconds", "Seconds of calls of models", labels=["pack", "name"])
        for name, stats in state["models"].items():
            for what in ("arena_bytes", "packed_bytes"):
                memory.add_metric([state["pack"], name, what.removesuffix("_bytes")], stats.get(what, 0))
            if "latency_s" in stats:
                latency.add_metric([state["pack"], name], stats["latency_s"]["buckets"], stats["latency_s"]["sum"])
        yield from (memory, latency)

    def text(self) -> str:
        """The metrics in Prometheus' text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return str(generate_latest(registry).decode())


def metrics(pack: Pack) -> PackMetrics:
    """Metrics of an open pack, from now on: ``.snapshot()``, ``.text()``, or a collector for a Prometheus registry."""
    return PackMetrics(pack)
