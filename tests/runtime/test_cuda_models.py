"""Whole models on CUDA over the stand-in driver: an encoder with attention, a scenario a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from haotuner.graph.interpret import interpret
from tests.runtime.cuda_model_packs import GRAPHS, model_pack
from tests.runtime.native_builds import ASAN, CLIB, HERE, LIBRARY, cc
from tests.standin import environment, toolchain_missing
from tests.standin.forking import Forking
from tests.standin.patience import ran

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")
ARCH, SECONDS = "sm_80", 110
MISFORTUNES = "tests.runtime.cuda_model_misfortunes"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("models")
    model_pack(path / "pack", ARCH, path / "code", {"encoder": GRAPHS["encoder"]})
    return path


@pytest.fixture(scope="module")
def apart(folder: Path) -> Iterator[Forking]:
    """A process that has imported the scenarios, and forks before it has asked anything of the driver."""
    forking = Forking(environment(folder / "images"), ["tests.runtime.cuda_models", MISFORTUNES])
    yield forking
    forking.close()


def run(
    folder: Path, apart: Forking, scenario: str, pack: str = "pack", module: str = "tests.runtime.cuda_models", **how: object
) -> None:
    where = environment(folder / "images", device=ARCH, sources=folder / "code", **how)  # type: ignore[arg-type]
    words = scenario, str(folder / pack)
    assert not apart.call(module, "run", *words, environment=where, seconds=SECONDS)


SECOND = pytest.mark.slow
SEEDS = pytest.mark.parametrize("seed", [1, pytest.param(2, marks=SECOND)])


@pytest.mark.parametrize("mode", ["late", pytest.param("early", marks=SECOND)])
def test_an_encoder_computes_what_its_graph_says_at_any_size(folder, apart, mode):
    run(folder, apart, "numbers", mode=mode)


def test_groups_of_all_kinds_and_convolutions_compute_what_their_graphs_say(folder, apart):
    model_pack(folder / "packs", ARCH, folder / "code", {name: graph for name, graph in GRAPHS.items() if name != "encoder"})
    run(folder, apart, "loops", "packs")
    run(folder, apart, "empty", "packs")


def test_a_model_is_queued_and_captured_from_c(folder, tmp_path):
    program = cc([HERE / "drive_models_on.c", *LIBRARY], folder / "drive_models_on", f"-I{CLIB}", *ASAN)
    where = environment(folder / "images", device=ARCH, sources=folder / "code")
    command = [program, folder / "pack", "encoder", tmp_path / "out", "2", "9"]
    done = ran(command, SECONDS, env={"PATH": os.environ["PATH"], **where})
    assert done.stdout == "right\n", (done.stdout, done.stderr[-3000:])
    ones = (np.arange(18) % 2).reshape(2, 9)
    raw = (tmp_path / "out").read_bytes()
    for expected in interpret(GRAPHS["encoder"], {"ids": ones, "mask": ones}).values():
        output = np.frombuffer(raw[: expected.nbytes], expected.dtype).reshape(expected.shape)
        np.testing.assert_allclose(output, expected, rtol=2e-4, atol=2e-4)
        raw = raw[expected.nbytes :]
    assert not raw


def test_a_call_of_sizes_that_a_stream_has_had_asks_for_launches_alone(folder, apart):
    run(folder, apart, "steady")


@SEEDS
def test_graphs_of_a_model_are_replayed_beside_its_calls_and_after_close(folder, apart, seed):
    run(folder, apart, "captured", seed=seed)


@SEEDS
def test_threads_and_streams_do_not_meet(folder, apart, seed):
    run(folder, apart, "streams", seed=seed)


@SECOND
def test_more_streams_than_a_model_keeps_memory_for(folder, apart):
    run(folder, apart, "many")


def test_what_does_not_fit_is_refused_in_words(folder, apart):
    run(folder, apart, "refusals")


def test_memory_that_cannot_be_had_and_launches_that_fail_are_said(folder, apart):
    run(folder, apart, "faults")


@pytest.mark.parametrize("scenario", ["doors", "driven", "freed"])
def test_a_model_leaves_the_context_and_the_memory_as_they_were(folder, apart, scenario):
    run(folder, apart, scenario)


def test_a_second_device_has_a_model_of_its_own(folder, apart):
    run(folder, apart, "devices", more_devices=(ARCH,))


def test_misfortunes_of_a_model_are_said_and_leave_nothing_behind(folder, apart):
    run(folder, apart, "misfortunes", module=MISFORTUNES, more_devices=(ARCH,))
