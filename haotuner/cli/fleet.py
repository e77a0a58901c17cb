"""`haotuner fleet`: makes this host a node of a fleet, and shows a fleet's nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from types import FrameType
from typing import Annotated

import typer

from haotuner.cli.devices import columns
from haotuner.cli.options import Json, Quiet
from haotuner.cli.output import say, tell
from haotuner.cli.tune_fleet import require_ray
from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.host.cache_folder import cache_folder

fleet_app = typer.Typer(
    help="Tune with several machines: nodes offer their devices, Ray places the work.", no_args_is_help=True
)

LOOK_S = 0.5
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


@fleet_app.command()
def join(
    address: Annotated[
        str, typer.Option("--address", metavar="HOST:PORT", help="The head to join; without it this host is a head.")
    ] = "",
    device: Annotated[
        str,
        typer.Option("--device", help="Devices to offer, as `haotuner devices` lists them; several CPUs share the cores."),
    ] = "cpu",
    cores: Annotated[
        str, typer.Option("--cores", metavar="0,1", help="Cores of this node [default: all of the process].")
    ] = "",
    port: Annotated[int, typer.Option("--port", help="Of a head: where nodes join.")] = 6379,
    client_port: Annotated[
        int, typer.Option("--client-port", help="Of a head: where tuners come, --on ray://HOST:PORT.")
    ] = 10001,
    host: Annotated[
        str, typer.Option("--host", help="Address of this host that the others reach it by [default: Ray's].")
    ] = "",
    quiet: Quiet = False,
) -> None:
    """Measure this host's profile and offer it to a fleet, until Ctrl-C or SIGTERM; without --address as its head."""
    require_ray()
    from haotuner.fleet.node import Ports, started
    from haotuner.fleet.offer import offer_of

    if address and not _ADDRESS.fullmatch(address):
        raise UsageError(f"--address {address}: write HOST:PORT as `haotuner fleet join` prints it on the head")
    for number in (port, client_port):
        if not 0 < number < 65536:
            raise UsageError(f"port {number}: give one of 1..65535")
    stopped: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)

    names = [name.strip() for name in device.split(",") if name.strip()]
    offer = offer_of(names, cache=cache_folder(os.environ), cores=_numbers(cores))
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        head = None if address else Ports(gcs=port, client=client_port)
        with started(offer, os.environ, head=head, address=address, host=host) as node:
            offered = ", ".join(f"{name} ({device.id})" for name, device in offer.devices.items())
            reached = host or _host(node.text())
            if head is not None:
                say(f"head: nodes join with --address {reached}:{port}, tuners come with --on ray://{reached}:{client_port}")
            say(f"offers {offered}, and {offer.builds} builds at a time; Ctrl-C takes it away")
            while not stopped:
                if node.ended():
                    raise EnvironmentMissing(f"the node ended: {' '.join(node.text().split())[-300:]}; join again")
                time.sleep(LOOK_S)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not quiet:
        tell("left the fleet")


@fleet_app.command()
def status(
    on: Annotated[str, typer.Option("--on", metavar="URL", help="The head, ray://HOST:PORT.")] = "ray://127.0.0.1:10001",
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the nodes of a fleet, what they offer, and their versions."""
    require_ray()
    from haotuner.fleet.connection import Connection
    from haotuner.fleet.versions import HAOTUNER, PYTHON

    with Connection(on) as fleet:
        nodes = fleet.nodes()
    if json_output:
        document = [
            {"id": node.id, "address": node.address, "alive": node.alive, "devices": dict(node.devices),
             "builds": node.builds, "versions": dict(node.versions)}
            for node in nodes
        ]  # fmt: skip
        say(json.dumps({"nodes": document}, indent=1))
        return
    rows = [
        (node.address, "alive" if node.alive else "gone", ", ".join(sorted(set(node.devices.values()))) or "-",
         str(node.builds), node.versions.get(HAOTUNER, "-"), node.versions.get(PYTHON, "-"))
        for node in nodes
    ]  # fmt: skip
    say(columns([("node", "state", "devices", "builds", "haotuner", "python"), *rows]))


def _numbers(text: str) -> list[int]:
    """Cores of ``--cores``; none of an empty text."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise UsageError(f"--cores {text}: write numbers, for example 0,1") from error


def _host(text: str) -> str:
    """This host's address as Ray says it; the loopback where it says none."""
    match = re.search(r"Local node IP: (\S+)", text)
    return "127.0.0.1" if match is None else match[1]
