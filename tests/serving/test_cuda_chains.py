"""Models whose sizes, branches and turns depend on data, on CUDA over the stand-in driver: a scenario a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.chain_graphs import ON_DEVICE as GRAPHS
from tests.serving.cuda_model_packs import model_pack
from tests.standin import environment, toolchain_missing
from tests.standin.forking import Forking

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")
ARCH, SECONDS, MODULE = "sm_80", 110, "tests.serving.cuda_chains"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("chains")
    model_pack(made / "pack", ARCH, made / "code", GRAPHS)
    return made


@pytest.fixture(scope="module")
def apart(folder: Path) -> Iterator[Forking]:
    """A process that has imported the scenarios, and forks before it has asked anything of the driver."""
    found = Forking(environment(folder / "images"), [MODULE])
    yield found
    found.close()


def run(folder: Path, apart: Forking, scenario: str, **how: object) -> None:
    where = environment(folder / "images", device=ARCH, sources=folder / "code", **how)  # type: ignore[arg-type]
    assert not apart.call(MODULE, "run", scenario, str(folder / "pack"), environment=where, seconds=SECONDS)


@pytest.mark.parametrize("mode", ["late", pytest.param("early", marks=pytest.mark.slow)])
def test_sizes_branches_and_turns_that_data_tell_are_as_the_reference_has_them(folder, apart, mode):
    run(folder, apart, "numbers", mode=mode)


@pytest.mark.parametrize("scenario", ["steady", "captured", "refusals", "faults", "forked", "freed"])
def test_calls_memory_and_misfortunes(folder, apart, scenario):
    run(folder, apart, scenario)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_threads_and_streams_do_not_meet(folder, apart, seed):
    run(folder, apart, "streams", seed=seed)


def test_a_second_device_has_a_chain_of_its_own(folder, apart):
    run(folder, apart, "devices", more_devices=(ARCH,))
