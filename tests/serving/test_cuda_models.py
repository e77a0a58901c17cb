"""Whole models on CUDA over the stand-in driver: an encoder with attention, a scenario a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.cuda_model_packs import model_pack
from tests.standin import environment, toolchain_missing
from tests.standin.forking import Forking

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")
ARCH, SECONDS = "sm_80", 110


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("models")
    model_pack(made / "pack", ARCH, made / "code")
    return made


@pytest.fixture(scope="module")
def apart(folder: Path) -> Iterator[Forking]:
    """A process that has imported the scenarios, and forks before it has asked anything of the driver."""
    found = Forking(environment(folder / "images"), ["tests.serving.cuda_models"])
    yield found
    found.close()


def run(folder: Path, apart: Forking, scenario: str, **how: object) -> None:
    where = environment(folder / "images", device=ARCH, sources=folder / "code", **how)  # type: ignore[arg-type]
    words = scenario, str(folder / "pack")
    assert not apart.call("tests.serving.cuda_models", "run", *words, environment=where, seconds=SECONDS)


@pytest.mark.parametrize("mode", ["late", "early"])
def test_an_encoder_computes_what_its_graph_says_at_any_size(folder, apart, mode):
    run(folder, apart, "numbers", mode=mode)


def test_a_call_of_sizes_that_a_stream_has_had_asks_for_launches_alone(folder, apart):
    run(folder, apart, "steady")


@pytest.mark.parametrize("seed", [1, 2])
def test_graphs_of_a_model_are_replayed_beside_its_calls_and_after_close(folder, apart, seed):
    run(folder, apart, "captured", seed=seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_threads_and_streams_do_not_meet(folder, apart, seed):
    run(folder, apart, "streams", seed=seed)


def test_what_does_not_fit_is_refused_in_words(folder, apart):
    run(folder, apart, "refusals")


def test_memory_that_cannot_be_had_and_launches_that_fail_are_said(folder, apart):
    run(folder, apart, "faults")


def test_a_second_device_has_a_model_of_its_own(folder, apart):
    run(folder, apart, "devices", more_devices=(ARCH,))
