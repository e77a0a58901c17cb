"""Metrics of a server in Prometheus' text format: answers, refusals, waiting, latencies, joined requests, and its packs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from haotuner.serve.pack_metrics import BOUNDS_S, PackMetrics
from haotuner.serve.refusals import Refusal
from haotuner.serve.repository import Repository

JOINED = (1, 2, 4, 8, 16, 32, 64)


class ServerMetrics:
    """Metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        own = {"registry": self._registry}
        self._answers = Counter("haotuner_answers", "Requests answered", ["model", "protocol"], **own)
        self._refusals = Counter("haotuner_refusals", "Requests refused, by HTTP's code", ["protocol", "status"], **own)
        self._waited = Histogram("haotuner_wait_seconds", "From arrival to the call", ["model"], buckets=BOUNDS_S, **own)
        self._took = Histogram("haotuner_model_seconds", "Of the call", ["model"], buckets=BOUNDS_S, **own)
        self._joined = Histogram("haotuner_joined_requests", "Requests of one call", ["model"], buckets=JOINED, **own)

    def attach(self, repository: Repository) -> None:
        """Also tell of the packs that are served whenever somebody asks."""
        hand_overs = Gauge("haotuner_hand_overs", "Packs handed over", registry=self._registry)
        hand_overs.set_function(lambda: repository.hand_overs)
        self._registry.register(_Packs(repository))

    def called(self, model: str, waited_s: float, took_s: float, joined: int) -> None:
        """Count one request of a call."""
        self._waited.labels(model).observe(waited_s)
        self._took.labels(model).observe(took_s)
        self._joined.labels(model).observe(joined)

    def answered(self, model: str, protocol: str) -> None:
        """Count an answer."""
        self._answers.labels(model, protocol).inc()

    def refused(self, protocol: str, refusal: Refusal) -> None:
        """Count a refusal."""
        self._refusals.labels(protocol, refusal.status).inc()

    def text(self) -> str:
        """All of them."""
        return str(generate_latest(self._registry).decode())


class _Packs:
    """Collector of the packs that are open when it is asked; their families are merged by name."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def collect(self) -> Iterator[Any]:
        """Families of all packs, and the requests that wait for their models."""
        waiting = GaugeMetricFamily("haotuner_waiting_requests", "Requests that wait", labels=["model"])
        for name, batcher in list(self._repository.batchers.items()):
            waiting.add_metric([name], batcher.depth)
        yield waiting
        merged: dict[str, Any] = {}
        for pack in list(self._repository.packs.values()):
            for family in PackMetrics(pack, latency=False).collect():
                if family.name in merged:
                    merged[family.name].samples += family.samples
                else:
                    merged[family.name] = family
        yield from merged.values()
