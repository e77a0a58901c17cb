"""A record store of made-up devices that go by the names of real profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from haotuner.hw_profiles.find import find_device
from haotuner.records.address import open_store
from tests.transfer.transfer_examples import WIDE, records


def store_of_profiles(path: Path, names: Sequence[str]) -> str:
    """The URL of a new store in which devices of these profiles have the records of a made-up CPU."""
    url = f"sqlite:///{path}"
    store = open_store(url, write=True)
    for seed, name in enumerate(names):
        device = find_device(name, measure=False).id
        store.append([replace(row, device_id=device) for row in records(WIDE, seed=seed)])
    store.close()
    return url
