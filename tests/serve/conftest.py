"""A pack, a server of it, and clients, shared by a file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.nets import served_pack


@pytest.fixture(scope="session")
def pack_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return served_pack(tmp_path_factory.mktemp("served") / "pack")


@pytest.fixture(scope="module")
def server(pack_path: Path) -> Iterator[Any]:
    """A server of the pack with small limits."""
    for package in ("starlette", "uvicorn", "grpc", "prometheus_client", "tritonclient"):
        pytest.importorskip(package)
    from haotuner.serve.repository import Settings
    from haotuner.serve.server import Address, Limits, Server

    limits = Limits(body_bytes=1 << 20, head_s=1.5, body_s=1.5, grace_s=5.0)
    with Server([pack_path], Settings(threads=1), Address(port=0, grpc_port=0), limits) as running:
        yield running
