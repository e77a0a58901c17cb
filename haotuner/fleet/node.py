"""Node of a fleet on this host: Ray's own processes, started in the foreground with what this node offers."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from haotuner.errors import EnvironmentMissing
from haotuner.fleet.offer import OFFER_WORD, Offer
from haotuner.fleet.versions import labels
from haotuner.host.files import read_regular
from haotuner.isolate.group import Group

STORE_BYTES = 80_000_000  # of Ray's object store: the least that it takes, libraries have some hundred kilobytes
START_LIMIT_S = 90.0  # 6 s on a quiet host, 25 s on a crowded one
LOOK_S = 0.1
# A tuner's server starts in 3 s, in a crowd in 40, and now and then not at all: it is forked beside threads.
_SETTINGS = {
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "45",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",  # no worker is wanted before there is work
    "RAY_worker_niceness": "0",  # Ray's 15 would let any other program disturb every timing
    "PYTHONUNBUFFERED": "1",
}
STARTED = "To terminate the Ray runtime"  # what `ray start` says last
LOG_MOST = 1 << 20
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports of a head: of nodes that join (``gcs``) and of tuners (``client``)."""

    gcs: int
    client: int


USUAL = Ports(gcs=6379, client=10001)  # Ray's own


class Node:
    """Processes of one node. They end with it, and with this process. Close it."""

    def __init__(self, group: Group, log: Path) -> None:
        self._group, self._log = group, log

    @property
    def pid(self) -> int:
        """Id of the process in the foreground, and of its group."""
        return self._group.pid

    def ended(self) -> bool:
        """True if the node is gone."""
        return self._group.ended()

    def text(self) -> str:
        """Output of Ray so far."""
        return read_regular(self._log, LOG_MOST).decode(errors="replace")

    def wait_until_started(self, client_port: int = 0, limit_s: float = START_LIMIT_S) -> None:
        """Return once the node takes work, a head also tuners. EnvironmentMissing with Ray's words if it does not."""
        until = time.monotonic() + limit_s
        while STARTED not in self.text() or (client_port and not listens(client_port)):
            if self.ended() or time.monotonic() > until:
                words = " ".join((self.text() + self._group.errors()).split())[-600:]
                self.close()
                raise EnvironmentMissing(
                    f"Ray did not start on this host: {words or 'no word from it'}; look at the address, the ports and "
                    "the memory, then run the same command again"
                )
            time.sleep(LOOK_S)

    def close(self) -> None:
        """Kill the node's processes."""
        if self._group.process.returncode is None:
            self._group.kill()


def listens(port: int) -> bool:
    """True if somebody takes connections at a port of this host."""
    try:
        socket.create_connection((LOOPBACK, port), 1.0).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on. Below Ray's range for workers, 10002 to 19999, lie those of services."""
    sockets = [socket.socket() for _ in range(count * 4)]
    try:
        for item in sockets:
            item.bind((LOOPBACK, 0))
        ports = [int(item.getsockname()[1]) for item in sockets]
    finally:
        for item in sockets:
            item.close()
    return [port for port in ports if not 10002 <= port <= 19999][:count]


@contextmanager
def started(
    offer: Offer,
    environment: Mapping[str, str],
    *,
    head: Ports | None = None,
    address: str = "",
    host: str = "",
    wait_s: float = 0.0,
) -> Iterator[Node]:
    """A node of this host: a head at these ports, or one that joins the head at ``address`` (HOST:PORT).

    ``host``: address that others reach it by; empty for Ray's choice. ``wait_s``: for another head of this host to end.

    EnvironmentMissing where Ray does not start, or where this host has a head already.
    """
    with ExitStack() as stack:
        if head is not None:
            stack.enter_context(_only_head(wait_s))
        folder = Path(tempfile.mkdtemp(prefix="htr-"))  # short: Ray's sockets lie in it, and a path has 107 letters at most
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        words = ["start", "--block", "--disable-usage-stats", "--num-gpus", "0", "--num-cpus", "0"]  # ours alone
        words += ["--object-store-memory", str(STORE_BYTES), "--resources", json.dumps(offer.resources)]
        words += ["--labels", ",".join(f"{name}={value}" for name, value in labels().items())]
        words += [] if not host else ["--node-ip-address", host]
        if head is not None:
            words += ["--head", "--port", str(head.gcs), "--ray-client-server-port", str(head.client)]
            words += ["--include-dashboard", "false", "--no-monitor", "--temp-dir", str(folder)]
        else:
            words += ["--address", address]
        command = [sys.executable, "-m", "ray.scripts.scripts", *words]
        own = {**environment, **_SETTINGS, OFFER_WORD: offer.text}
        own.pop("PYTHONDONTWRITEBYTECODE", None)  # its processes would compile all sources again, each
        own["PYTHONPATH"] = os.pathsep.join(filter(None, [*_own_path(), environment.get("PYTHONPATH", "")]))
        log = folder / "start.log"
        with log.open("wb") as out:
            node = Node(Group(command, own, stdin=subprocess.DEVNULL, stdout=out), log)
        try:
            node.wait_until_started(0 if head is None else head.client)
            yield node
        finally:
            node.close()


@contextmanager
def _only_head(wait_s: float) -> Iterator[None]:
    """Hold the right to be this host's head: Ray's servers for tuners have the same ports under every head."""
    path = Path(tempfile.gettempdir()) / f"haotuner-head-{os.getuid()}.lock"
    until = time.monotonic() + wait_s
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > until:
                    raise EnvironmentMissing(
                        "this host has a head already, of `haotuner fleet join` or of another run with --on ray, and Ray "
                        "serves tuners of one head a host; use that one (--on ray://HOST:PORT), or end it"
                    ) from error
                time.sleep(LOOK_S)
        yield
    finally:
        os.close(descriptor)


def _own_path() -> list[str]:
    """Folders that this process imports from: programs of the node import the same haotuner."""
    return [entry for entry in sys.path if entry and Path(entry).is_dir()]
