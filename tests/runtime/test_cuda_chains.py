"""Models whose sizes, branches and turns depend on data, on CUDA over the stand-in driver: a scenario a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from haotuner.graph.interpret import interpret
from tests.runtime.chain_graphs import ON_DEVICE as GRAPHS
from tests.runtime.cuda_model_packs import model_pack
from tests.runtime.native_builds import ASAN, CLIB, HERE, LIBRARY, cc
from tests.standin import environment, toolchain_missing
from tests.standin.forking import Forking
from tests.standin.patience import ran

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")
ARCH, SECONDS, MODULE = "sm_80", 110, "tests.runtime.cuda_chains"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("chains")
    model_pack(path / "pack", ARCH, path / "code", GRAPHS)
    return path


@pytest.fixture(scope="module")
def apart(folder: Path) -> Iterator[Forking]:
    """A process that has imported the scenarios, and forks before it has asked anything of the driver."""
    forking = Forking(environment(folder / "images"), [MODULE])
    yield forking
    forking.close()


def run(folder: Path, apart: Forking, scenario: str, **how: object) -> None:
    where = environment(folder / "images", device=ARCH, sources=folder / "code", **how)  # type: ignore[arg-type]
    assert not apart.call(MODULE, "run", scenario, str(folder / "pack"), environment=where, seconds=SECONDS)


@pytest.mark.parametrize("mode", ["late", pytest.param("early", marks=pytest.mark.slow)])
def test_sizes_branches_and_turns_that_data_tell_are_as_the_reference_has_them(folder, apart, mode):
    run(folder, apart, "numbers", mode=mode)


@pytest.mark.parametrize(
    "scenario", ["sound", "steady", "captured", "refusals", "framework", "doors", "faults", "forked", "freed"]
)
def test_calls_memory_and_misfortunes(folder, apart, scenario):
    run(folder, apart, scenario)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_threads_and_streams_do_not_meet(folder, apart, seed):
    run(folder, apart, "streams", seed=seed)


def test_a_second_device_has_a_chain_of_its_own(folder, apart):
    run(folder, apart, "devices", more_devices=(ARCH,))


def test_a_chain_is_queued_from_c(folder, tmp_path):
    program = cc([HERE / "drive_chain_on.c", *LIBRARY], folder / "drive_chain_on", f"-I{CLIB}", *ASAN)
    where = {"PATH": os.environ["PATH"], **environment(folder / "images", device=ARCH, sources=folder / "code")}
    for name, rows, length in (("grown", 5, 7), ("looped", 3, 2), ("branched", 6, 1)):
        command = [program, folder / "pack", name, str(rows), str(length), "12", tmp_path / "out"]
        done = ran(command, SECONDS, env=where)
        assert done.stdout == "right\n", (name, done.stdout, done.stderr[-3000:])
        x = ((np.arange(rows * 8) % 11 - 5) / 4).astype(np.float32).reshape(rows, 8)
        raw = (tmp_path / "out").read_bytes()
        for expected in interpret(GRAPHS[name], {"x": x, "long": np.full(2, length)}, 12).values():
            output = np.frombuffer(raw[: expected.nbytes], expected.dtype).reshape(expected.shape)
            np.testing.assert_allclose(output, expected, rtol=3e-4, atol=3e-4)
            raw = raw[expected.nbytes :]
        assert not raw
