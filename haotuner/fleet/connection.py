"""Connection to a fleet by Ray's client: this process outlives the head, whatever becomes of it.

A driver of Ray ends itself when its head is gone. A client only gets an error, so that a pack can still be written.
"""

from __future__ import annotations

import logging
import re
import socket
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
import ray
from ray._private import auto_init_hook
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util import client
from ray.util.client import common as client_settings

from haotuner.errors import EnvironmentMissing, UnknownDevice, UsageError
from haotuner.fleet.offer import BUILD, named
from haotuner.fleet.versions import LABEL, check_labels
from haotuner.measure.engine import EngineLost

NAMESPACE = "haotuner"
_ADDRESS = re.compile(r"ray://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
GLANCE_S = 5.0  # between two looks at the nodes while an answer is waited for
REACH_S = 5.0  # of a connection: a network answers within tenths
CONNECT_S = 150.0  # in which a head that is there may be too busy to take another tuner
_BUSY = "Starting Ray client server failed"  # Ray's words for it
AWAY_S = 60.0  # in which a device that left may come back


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """Node of a fleet as its head knows it."""

    id: str
    address: str
    alive: bool
    devices: Mapping[str, str]  # id of a profile by every name that --device takes
    builds: int
    versions: Mapping[str, str]


def check_address(text: str) -> tuple[str, int]:
    """Host and port of a head's address; UsageError for another text."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise UsageError(f"--on {text}: write ray, or ray://HOST:PORT as `haotuner fleet join` prints it on the head")
    return match[1].strip("[]"), int(match[2])


class Connection:
    """Client of a head. Close it."""

    def __init__(self, address: str) -> None:
        """EnvironmentMissing for a head that does not answer, or of another version of Ray or Python."""
        host, port = check_address(address)
        try:
            socket.create_connection((host, port), REACH_S).close()
        except OSError as error:
            raise EnvironmentMissing(
                f"--on {address}: no head can be reached there ({error}); start one with `haotuner fleet join` on {host}, "
                "and look at host, port and firewall"
            ) from error
        self.address = address
        self._lost = ""
        auto_init_hook.enable_auto_connect = False  # a call after the head is gone must not start or find another one
        logging.getLogger("ray").setLevel(logging.ERROR)  # what happens is said in our words
        _end_silent_connections(AWAY_S)
        until = time.monotonic() + CONNECT_S
        while True:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self._context = ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
                return
            except (ConnectionError, RuntimeError, grpc.RpcError, TimeoutError) as error:
                if _BUSY in str(error) and time.monotonic() < until:
                    continue
                words = " ".join(str(error).split())[-400:]
                raise EnvironmentMissing(
                    f"--on {address}: no head answers as this haotuner expects ({words}); start one with `haotuner fleet "
                    "join` there, and look at host, port and firewall"
                ) from error

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    @property
    def lost(self) -> str:
        """Words on why nobody answers any more; empty while somebody does."""
        return self._lost

    def nodes(self) -> list[NodeSeen]:
        """Nodes, those that left among them. EngineLost where the head is gone."""
        try:
            answer = ray.nodes()
        except Exception as error:  # Ray's client names no class for a head that is gone
            raise self.gone(error) from error
        return [_seen(node) for node in answer]

    def offered(self, name: str) -> list[NodeSeen]:
        """Living nodes that offer a device, by any of its names."""
        return [node for node in self.nodes() if node.alive and name in node.devices]

    def require(self, name: str) -> NodeSeen:
        """A node that offers a device. UnknownDevice where there is none, EnvironmentMissing for one of other versions."""
        offering = self.offered(name)
        if not offering:
            known = sorted({item for node in self.nodes() if node.alive for item in node.devices})
            raise UnknownDevice(
                f"--device {name}: no node of {self.address} offers it; offered: {', '.join(known) or 'nothing'}. Run "
                f"`haotuner fleet join --device {name} --address HOST:PORT` on a machine that has it"
            )
        for node in offering:
            check_labels(node.address, node.versions)
        return offering[0]

    def answer(self, reference: Any, limit_s: float, name: str = "") -> Any:
        """Answer to a call. TimeoutError after the limit, EngineLost where nobody is left to give it.

        ``name``: the device that it waits for; time in which no node offers that one is not counted, up to ``AWAY_S``.
        RayActorError and RayTaskError as Ray has them.
        """
        until, away_since = time.monotonic() + limit_s, None
        while True:
            if self._lost:
                raise EngineLost(self._lost)
            try:
                return ray.get(reference, timeout=max(0.0, min(GLANCE_S, until - time.monotonic())))
            except GetTimeoutError:
                pass
            except (RayActorError, RayTaskError):
                raise
            except Exception as error:  # Ray's client names no class for a head that is gone
                raise self.gone(error) from error
            now = time.monotonic()
            if name and not self.offered(name):
                away_since = away_since or now
                until = max(until, now + GLANCE_S)
                if now - away_since > AWAY_S:
                    raise EngineLost(f"no node offers {name} any more, for {AWAY_S:.0f} s")
            elif away_since is not None:
                away_since, until = None, now + limit_s
            if now >= until:
                raise TimeoutError(f"no answer within {limit_s:.0f} s")

    def close(self) -> None:
        """Leave the fleet; its nodes stay."""
        try:
            self._context.disconnect()
        except Exception as error:  # the head may be gone
            logging.getLogger(__name__).debug("%s", error)
        if not client.ray.is_connected():
            _forget_contexts()

    def gone(self, error: BaseException) -> EngineLost:
        """Error of a head that does not answer any more, which is noted."""
        words = " ".join(str(error).split())[:200]
        self._lost = self._lost or f"the head {self.address} is gone ({type(error).__name__}: {words})"
        return EngineLost(self._lost)


def _end_silent_connections(limit_s: float) -> None:
    """Let Ray's client take a head for gone that is silent for so long: a cut network answers nothing. Ray waits 600 s."""
    options, name = client_settings.GRPC_OPTIONS, "grpc.keepalive_timeout_ms"
    options[:] = [(key, round(limit_s * 1000) if key == name else value) for key, value in options]


def _forget_contexts() -> None:
    """Let this process connect again: a client whose head is gone stays in Ray's table of clients."""
    with client._lock:
        client._all_contexts.clear()
    client.ray.get_context().client_worker = None


def _seen(node: Mapping[str, Any]) -> NodeSeen:
    resources: Mapping[str, float] = node.get("Resources") or {}
    versions = {key: value for key, value in (node.get("Labels") or {}).items() if key.startswith(LABEL)}
    return NodeSeen(
        id=str(node["NodeID"]), address=str(node["NodeManagerAddress"]), alive=bool(node["Alive"]), devices=named(resources),
        builds=int(resources.get(BUILD, 0)), versions=versions,
    )  # fmt: skip
