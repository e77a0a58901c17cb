"""Server of packs: its sockets and threads, from start to graceful stop."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.serve.connections import impatient
from haotuner.serve.grpc_service import grpc_server
from haotuner.serve.http_app import State, http_app
from haotuner.serve.metrics import ServerMetrics
from haotuner.serve.observing import Observing
from haotuner.serve.repository import LOG, Repository, Settings
from haotuner.serve.traffic import Traffic

START_S = 30.0  # until the listening thread is up


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of what clients may do. ``body_bytes``: of a request; ``head_s``, ``body_s``: to send its parts.

    ``grace_s``: for requests in flight when the server stops. ``connections``: at once, and calls of gRPC.
    """

    body_bytes: int = 64 << 20
    head_s: float = 10.0
    body_s: float = 30.0
    grace_s: float = 30.0
    connections: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address that the server listens on; port 0 takes a free one, ``grpc_port`` None serves no gRPC."""

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 8001


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """Views of a server: metrics, spans by a tracer provider (None: off), traffic (None: off)."""

    metrics: bool = True
    spans: Any = None
    traffic: Traffic | None = None


@dataclass(slots=True)
class Server:
    """A running server, as a context. EnvironmentMissing for a port in use, errors as of ``Repository``."""

    paths: Sequence[Path]
    settings: Settings = field(default_factory=Settings)
    address: Address = field(default_factory=Address)
    limits: Limits = field(default_factory=Limits)
    views: Views = field(default_factory=Views)
    repository: Repository = field(init=False)
    observing: Observing = field(init=False)
    port: int = field(init=False, default=0)
    grpc_port: int | None = field(init=False, default=None)
    _state: State = field(init=False, default_factory=State)
    _http: Any = field(init=False, default=None)
    _grpc: Any = field(init=False, default=None)
    _thread: threading.Thread | None = field(init=False, default=None)

    def start(self) -> Server:
        """Open the packs, answer one request of each model, listen."""
        metrics = ServerMetrics() if self.views.metrics else None
        self.observing = Observing(metrics, self._spans(), self.views.traffic)
        listening = _listening(self.address.host, self.address.port)
        try:
            self.repository = Repository(self.paths, self.settings, self.observing.observe)
            self.repository.warm()
            if metrics is not None:
                metrics.attach(self.repository)
            self._start_grpc()
            self._start_http(listening)
        except BaseException:
            listening.close()
            if self._grpc is not None:
                self._grpc.stop(None)
            if hasattr(self, "repository"):
                self.repository.close(0.0)
            raise
        self._state.ready = True
        LOG.info("serving", extra={"facts": {"host": self.address.host, "port": self.port, "grpc_port": self.grpc_port,
                                              "models": list(self.repository.batchers)}})  # fmt: skip
        return self

    def _spans(self) -> Any:
        if self.views.spans is None:
            return None
        from haotuner.serve.spans import Spans

        return Spans(self.views.spans)

    def _start_grpc(self) -> None:
        if self.address.grpc_port is None:
            return
        body, most = self.limits.body_bytes, self.limits.connections
        self._grpc = grpc_server(self.repository, self.observing, self._state, body_bytes=body, waiting=most)
        where = f"{_bracketed(self.address.host)}:{self.address.grpc_port}"
        try:
            self.grpc_port = self._grpc.add_insecure_port(where)
        except RuntimeError as error:
            raise EnvironmentMissing(_in_use(self.address.host, self.address.grpc_port, "--grpc-port")) from error
        if not self.grpc_port:
            raise EnvironmentMissing(_in_use(self.address.host, self.address.grpc_port, "--grpc-port"))
        self._grpc.start()

    def _start_http(self, listening: socket.socket) -> None:
        self.port = listening.getsockname()[1]
        app = http_app(
            self.repository,
            self.observing,
            self._state,
            body_bytes=self.limits.body_bytes,
            body_s=self.limits.body_s,
        )
        config = uvicorn.Config(
            app,
            http=impatient(self.limits.head_s, self.limits.connections),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=max(1, int(self.limits.grace_s)),
        )
        self._http = uvicorn.Server(config)
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._thread = threading.Thread(
            target=self._http.run, kwargs={"sockets": [listening]}, name="haotuner-http", daemon=True
        )
        self._thread.start()
        waited = threading.Event()
        for _ in range(int(START_S / 0.01)):
            if self._http.started or not self._thread.is_alive():
                break
            waited.wait(0.01)
        if not self._http.started:
            raise EnvironmentMissing(f"the HTTP server did not start within {START_S:.0f} s")

    def stop(self) -> None:
        """Take no more requests, answer those in flight within the grace, close the packs. Twice is harmless."""
        if self._http is None:
            return
        self._state.ready = False
        self._http.should_exit = True
        stopping = None if self._grpc is None else self._grpc.stop(self.limits.grace_s)
        if self._thread is not None:
            self._thread.join(self.limits.grace_s + START_S)
        if stopping is not None:
            stopping.wait(self.limits.grace_s)
        self.repository.close(self.limits.grace_s)
        self._http = None
        LOG.info("stopped", extra={"facts": {}})

    def hand_over(self) -> list[str]:
        """Hand every pack over to the one that lies in its place; a pack that cannot be served is logged and left."""

        def failed(path: Path, error: Exception) -> None:
            LOG.error("not handed over", extra={"facts": {"pack": str(path), "why": str(error)}})

        ids = self.repository.hand_over_all(failed)
        for new in ids:
            LOG.info("handed over", extra={"facts": {"id": new}})
        return ids

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _listening(host: str, port: int) -> socket.socket:
    """A bound socket. EnvironmentMissing for a port in use, UsageError for an address that is none of this host's."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=2048)
        listening.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # connections have it from here; else 40 ms an answer
        return listening
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise EnvironmentMissing(_in_use(host, port, "--port")) from error
        if error.errno == errno.EACCES:
            raise EnvironmentMissing(
                f"port {port} is not allowed for this user; choose one from 1024 on with --port"
            ) from error
        raise UsageError(f"--host {host}: no address of this host ({error}); name one, or 0.0.0.0 for all") from error


def _in_use(host: str, port: int, option: str) -> str:
    return f"{host}:{port} is in use; stop what listens there, or choose another port with {option} (0 takes a free one)"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
