"""`haotuner serve`: packs behind HTTP and gRPC by the open inference protocol v2."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from haotuner.cli.options import seconds_of
from haotuner.cli.output import say
from haotuner.errors import PackageMissing, UsageError
from haotuner.host.extras import how_to_get, require_idle_tuning, require_serving

if TYPE_CHECKING:
    from haotuner.serve.server import Server
    from haotuner.serve.traffic import Traffic

CAPTURE_S = 60.0  # between two writings of the trace: what a killed server loses
MEGABYTE = 1 << 20


def serve(
    packs: Annotated[list[Path], typer.Argument(metavar="PACK...", help="Directories that `haotuner tune --out` wrote.")],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; another than loopback only by name.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of HTTP; 0 takes a free one.")] = 8000,
    grpc_port: Annotated[
        int, typer.Option("--grpc-port", min=-1, max=65535, help="Port of gRPC; 0 takes a free one, -1 serves none.")
    ] = 8001,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Threads of a call [default: the tuned count nearest to the cores].")
    ] = None,
    latency_limit: Annotated[
        float, typer.Option("--latency-limit", metavar="MS", help="Milliseconds that a joined request may take as expected.")
    ] = 50.0,
    batching: Annotated[
        str,
        typer.Option(
            "--batching", help="exact joins requests whose answers keep their bits, close those that nearly do, or off."
        ),
    ] = "exact",
    max_batch: Annotated[
        int, typer.Option("--max-batch", min=0, help="Rows of one call [default: as many as the pack was tuned for].")
    ] = 0,
    queue: Annotated[
        int, typer.Option("--queue", min=1, help="Requests of a model that may wait; more are refused.")
    ] = 1024,
    max_body: Annotated[int, typer.Option("--max-body", min=1, metavar="MB", help="Megabytes of a request.")] = 64,
    max_request: Annotated[
        int, typer.Option("--max-request-memory", min=0, metavar="MB", help="Working memory of a request; 0: no bound.")
    ] = 0,
    body_timeout: Annotated[float, typer.Option("--body-timeout", metavar="S", help="Seconds to send a request.")] = 30.0,
    grace: Annotated[float, typer.Option("--grace", metavar="S", help="Seconds for what is in flight at a stop.")] = 30.0,
    connections: Annotated[int, typer.Option("--connections", min=1, help="Connections at once.")] = 1024,
    metrics: Annotated[bool, typer.Option("--metrics/--no-metrics", help="Serve /metrics for Prometheus.")] = True,
    spans: Annotated[
        str,
        typer.Option("--spans", help="none, console (stderr), or global: the provider that opentelemetry-instrument set."),
    ] = "none",
    log: Annotated[str, typer.Option("--log", help="Lines on stderr as text or json.")] = "text",
    capture: Annotated[
        Path | None,
        typer.Option("--capture", metavar="FILE", help="Write the sizes of requests as a trace, now and at the end."),
    ] = None,
    tune_idle: Annotated[
        str,
        typer.Option(
            "--tune-idle", metavar="SHARE", help="Tune for captured requests while idle, e.g. within 20% of cores."
        ),
    ] = "",
    tune_budget: Annotated[str, typer.Option("--tune-budget", help="Budget of one tuning while idle.")] = "5m",
    file: Annotated[
        list[Path] | None, typer.Option("--file", metavar="MODEL.onnx", help="Files of the models, which --tune-idle tunes.")
    ] = None,
) -> None:
    """Serve packs over HTTP and gRPC (KServe's open inference protocol v2) until SIGTERM or Ctrl-C; SIGHUP hands over.

    SIGHUP opens the packs that lie in their places now, and moves the models to them; no request is lost.
    """
    require_serving()
    from haotuner.serve.independence import CLOSE, EXACT, OFF
    from haotuner.serve.logs import FORMATS, log_to_stderr
    from haotuner.serve.repository import Settings
    from haotuner.serve.server import Address, Limits, Server, Views
    from haotuner.serve.traffic import Traffic

    _one_of("--batching", batching, (EXACT, CLOSE, OFF))
    _one_of("--log", log, tuple(FORMATS))
    share = share_of(tune_idle) if tune_idle else 0.0
    if share:
        require_idle_tuning()
    seconds_of(tune_budget)
    for option, value in (("--latency-limit", latency_limit), ("--body-timeout", body_timeout), ("--grace", grace)):
        if not 0 < value < 1e6:
            raise UsageError(f"{option} {value:g} must be above 0")
    if capture is not None and not capture.resolve().parent.is_dir():
        raise UsageError(f"--capture {capture}: no such folder {capture.resolve().parent}; make it, or name another file")
    traffic = Traffic() if capture is not None or share else None
    log_to_stderr(log)
    server = Server(
        [path.resolve() for path in packs],
        Settings(
            threads=threads,
            latency_limit_ms=latency_limit,
            batching=batching,
            largest_batch=max_batch,
            waiting=queue,
            max_request_bytes=max_request * MEGABYTE or None,
        ),
        Address(host=host, port=port, grpc_port=None if grpc_port < 0 else grpc_port),
        Limits(body_bytes=max_body * MEGABYTE, body_s=body_timeout, grace_s=grace, connections=connections),
        Views(metrics=metrics, spans=_provider(spans), traffic=traffic),
    )
    events = _Events()
    with events.heeded(), server:
        tuner = _idle_tuner(server, traffic, file or [], share, tune_budget) if share and traffic is not None else None
        where = "" if server.grpc_port is None else f", grpc://{host}:{server.grpc_port}"
        say(f"serving {', '.join(server.repository.batchers)} on http://{host}:{server.port}{where}")
        try:
            events.wait(server, capture, traffic)
        finally:
            if tuner is not None:
                tuner.stop()
    _write_trace(capture, traffic)


class _Events:
    """Signals of a running server: which came."""

    def __init__(self) -> None:
        self._came = threading.Event()
        self._stop = self._hand_over = False

    def heeded(self) -> Any:
        """Context in which signals are noted."""
        from contextlib import ExitStack

        stack = ExitStack()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, self._note))
        return stack

    def _note(self, number: int, _: object) -> None:
        if number == signal.SIGHUP:
            self._hand_over = True
        else:
            self._stop = True
        self._came.set()

    def wait(self, server: Server, capture: Path | None, traffic: Traffic | None) -> None:
        """Serve until a signal to stop came; hand over at SIGHUP, and write the trace now and then."""
        while not self._stop:
            self._came.wait(CAPTURE_S)
            self._came.clear()
            if self._hand_over:
                self._hand_over = False
                server.hand_over()
            _write_trace(capture, traffic)


def _write_trace(capture: Path | None, traffic: Traffic | None) -> None:
    """Write what was captured; a disk that is full stops no server."""
    if capture is None or traffic is None:
        return
    try:
        traffic.write(capture)
    except OSError as error:
        from haotuner.serve.repository import LOG

        LOG.error("trace not written", extra={"facts": {"file": str(capture), "why": str(error)}})


def _idle_tuner(server: Server, traffic: Traffic, files: list[Path], share: float, budget: str) -> Any:
    from haotuner.serve.idle_tuning import IdleTuner

    for path in files:
        if not path.is_file():
            raise UsageError(f"--file {path}: no such file; name the file that the pack was tuned from")
    by_name = {path.stem: path for path in files}
    tuner = IdleTuner(server.repository, server.observing, traffic, by_name, share, budget)
    tuner.start()
    return tuner


def share_of(text: str) -> float:
    """Share of ``20%``. UsageError for what is none."""
    match = re.fullmatch(r"([0-9]{1,3})%", text.strip(), re.ASCII)
    if match is None or not 1 <= int(match[1]) <= 100:
        raise UsageError(f"--tune-idle {text!r}: write a share of the cores from 1% to 100%")
    return int(match[1]) / 100


def _one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{option} {value!r}: write {', '.join(known)}")


def _provider(spans: str) -> Any:
    """The tracer provider of ``--spans``; None for none."""
    _one_of("--spans", spans, ("none", "console", "global"))
    if spans == "none":
        return None
    try:
        if spans == "console":
            from haotuner.serve.spans import console_provider

            return console_provider()
        from opentelemetry.trace import get_tracer_provider

        return get_tracer_provider()
    except ImportError as error:
        raise PackageMissing(
            f"--spans needs OpenTelemetry's SDK, which is not installed ({error.name}). Run: {how_to_get('serve')}, "
            "and pip install opentelemetry-sdk"
        ) from error
