"""One small pack a test session, and what most serving tests start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.runtime.pack import Pack
from tests.runtime.packs import LANES, BuiltPack, best_level, make_pack, packed_op

DENSE = "dense_n100_k37"  # no tile divides 100, no unroll divides 37
TURNED = "dense_n64_k16_kn"
SMALLEST = "dense_n1_k1"


@pytest.fixture(scope="session")
def built_pack(tmp_path_factory: pytest.TempPathFactory) -> BuiltPack:
    """A pack of three ops for this host; tests must not change it (``copied`` may be changed)."""
    level = best_level()
    lanes = LANES[level]
    ops = [packed_op(name, lanes, 2 * lanes) for name in (DENSE, TURNED, SMALLEST)]
    return make_pack(tmp_path_factory.mktemp("packs") / "pack", ops, level)


@pytest.fixture
def copied(built_pack: BuiltPack, tmp_path: Path) -> Path:
    """A copy of the pack that the test may damage."""
    import shutil

    return Path(shutil.copytree(built_pack.path, tmp_path / "copied"))


@pytest.fixture(params=[1, 2, 3, 7], ids=lambda t: f"threads{t}")
def pack(built_pack: BuiltPack, request: pytest.FixtureRequest) -> Iterator[Pack]:
    """The pack at one, two, three (split by rows) and seven (not tuned) threads."""
    with haotuner.load(built_pack.path, threads=request.param) as opened:
        yield opened


@pytest.fixture(scope="session")
def weight() -> Any:
    """A weight of DENSE, as ``torch.nn.Linear`` stores it."""
    return np.random.default_rng(0).standard_normal((100, 37), dtype=np.float32)


@pytest.fixture
def linear(built_pack: BuiltPack, weight: Any) -> Iterator[Any]:
    """DENSE bound on one thread."""
    with haotuner.load(built_pack.path, threads=1) as opened:
        yield opened.op(DENSE).bind(weight)


def rows(m: int, k: int = 37, seed: int = 1) -> Any:
    """m rows of inputs."""
    return np.random.default_rng(seed + m).standard_normal((m, k), dtype=np.float32)


@pytest.fixture(scope="session")
def chained_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack whose ops serve layers alone and with a ReLU behind them, see ``torch_packs``."""
    from tests.torch.torch_packs import chain_pack

    return chain_pack(tmp_path_factory.mktemp("chained"))


@pytest.fixture
def chained(chained_path: Path) -> Iterator[Pack]:
    """The same, open on one thread."""
    with haotuner.load(chained_path, threads=1) as opened:
        yield opened
