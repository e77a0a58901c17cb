"""Whole models on CUDA where something below them fails, a scenario a process; the driver is the stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.cuda_model_faults import SCENARIOS
from tests.runtime.cuda_model_packs import model_pack
from tests.runtime.cuda_odd_models import ODD, others
from tests.runtime.cuda_packs import PARTS_PICK, packed
from tests.runtime.memory_refused import preloaded
from tests.standin import environment, toolchain_missing
from tests.standin.forking import Forking

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")
ARCH, SECONDS = "sm_80", 110


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("models")
    model_pack(path / "pack", ARCH, path / "code", ODD, others=others, beside=[packed(PARTS_PICK)])
    return path


@pytest.fixture(scope="module")
def apart(folder: Path) -> Iterator[Forking]:
    """A process that has imported the scenarios, and forks before it has asked anything of the driver."""
    forking = Forking(environment(folder / "images") | preloaded(folder), ["tests.runtime.cuda_model_faults"])
    yield forking
    forking.close()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_fails_below_a_model_is_said_and_leaves_nothing(folder, apart, scenario):
    where = environment(folder / "images", device=ARCH, sources=folder / "code")
    words = scenario, str(folder / "pack")
    assert not apart.call("tests.runtime.cuda_model_faults", "run", *words, environment=where, seconds=SECONDS)
