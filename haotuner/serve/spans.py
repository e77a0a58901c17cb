"""Spans of OpenTelemetry about requests: a child of the caller's span, where a header names one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from haotuner import __version__
from haotuner.serve.inference import InferenceRequest

_CALLER = TraceContextTextMapPropagator()


class Spans:
    """Spans of one server by a tracer provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("haotuner.serve", __version__)

    @contextmanager
    def request(self, model: str, request: InferenceRequest, carrier: Mapping[str, Any]) -> Iterator[Any]:
        """A span about one answer; its attributes are the model and the request's sizes."""
        names = {name: str(carrier[name]) for name in ("traceparent", "tracestate") if name in carrier}
        attributes = {"haotuner.model": model, **{f"haotuner.dim.{name}": size for name, size in request.dims.items()}}
        with self._tracer.start_as_current_span(
            "infer", context=_CALLER.extract(names), kind=SpanKind.SERVER, attributes=attributes
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise


def console_provider() -> Any:
    """A provider that writes every span to stderr as JSON. ImportError where the SDK is not installed."""
    import sys

    from opentelemetry.sdk.trace import TracerProvider as SdkProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    provider = SdkProvider()
    provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=sys.stderr)))
    return provider
