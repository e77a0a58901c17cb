"""Fleet of a tuning run: the one that runs already, or one of this host that ends with the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from haotuner.fleet.connection import Connection
from haotuner.fleet.node import LOOPBACK, USUAL, Ports, free_ports, listens, started
from haotuner.fleet.offer import offer_of

HERE = "ray"  # what --on says for this host


@contextmanager
def fleet_at(on: str, names: Sequence[str], *, environment: Mapping[str, str], cache: Path | None) -> Iterator[Connection]:
    """Connection to the fleet that ``--on`` names, left at the end.

    ``ray`` is the head of this host on Ray's usual port. Where there is none, it is a fleet of this host alone, which offers
    the devices of these names.
    """
    if on == HERE and not listens(USUAL.client):
        offer = offer_of(names, cache=cache)
        gcs, client = free_ports(2)
        with (
            started(offer, environment, head=Ports(gcs=gcs, client=client), host=LOOPBACK),
            Connection(f"ray://{LOOPBACK}:{client}") as connection,
        ):
            yield connection
        return
    with Connection(f"ray://{LOOPBACK}:{USUAL.client}" if on == HERE else on) as connection:
        yield connection
