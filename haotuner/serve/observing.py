"""Observing a server: metrics, spans, logs and the capture of traffic, each absent from a request's way where it is off."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haotuner.serve.inference import InferenceRequest
from haotuner.serve.metrics import ServerMetrics
from haotuner.serve.refusals import Refusal
from haotuner.serve.repository import LOG, Repository
from haotuner.serve.traffic import Traffic

if TYPE_CHECKING:
    from haotuner.serve.spans import Spans

HTTP, GRPC = "http", "grpc"
_NOTHING: AbstractContextManager[None] = nullcontext()


class Observing:
    """Metrics, spans and traffic of one server; None for each part that is off."""

    def __init__(
        self, metrics: ServerMetrics | None = None, spans: Spans | None = None, traffic: Traffic | None = None
    ) -> None:
        self._metrics, self._spans, self.traffic = metrics, spans, traffic

    @property
    def has_metrics(self) -> bool:
        """True if ``/metrics`` is served."""
        return self._metrics is not None

    @property
    def observe(self) -> Any:
        """Function that a batcher calls behind every call; None where nothing looks on."""
        return self._observe if self._metrics is not None or self.traffic is not None else None

    def _observe(self, model: str, request: InferenceRequest, waited_s: float, took_s: float, joined: int) -> None:
        if self._metrics is not None:
            self._metrics.called(model, waited_s, took_s, joined)
        if self.traffic is not None:
            self.traffic.count(model, request.dims)

    def span(self, model: str, request: InferenceRequest, carrier: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """A span about the answer of one request."""
        return _NOTHING if self._spans is None else self._spans.request(model, request, carrier)

    def answered(self, model: str, protocol: str) -> None:
        """Count an answer."""
        if self._metrics is not None:
            self._metrics.answered(model, protocol)

    def refused(self, model: str, protocol: str, refusal: Refusal) -> None:
        """Count and log a refusal; those that are the server's own fault as errors."""
        if self._metrics is not None:
            self._metrics.refused(protocol, refusal)
        level = logging.ERROR if refusal.status == 500 else logging.INFO
        LOG.log(level, "refused", extra={"facts": {"model": model[:90], "protocol": protocol, "status": refusal.status,
                                                    "why": str(refusal)[:500]}})  # fmt: skip

    def hand_over(self, repository: Repository, path: Path, source: Path | None = None) -> str:
        """Hand a pack over, and log it."""
        new = repository.hand_over(path, source)
        LOG.info("handed over", extra={"facts": {"pack": str(path), "id": new}})
        return new

    def text(self) -> str:
        """Metrics in Prometheus' text format; empty where they are off."""
        return "" if self._metrics is None else self._metrics.text()
