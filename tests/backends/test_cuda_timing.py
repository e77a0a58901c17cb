"""The library that times on a device, over the stand-in: results, waits, graphs, and every call of the driver failing."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.cuda_device_code import build_pack, device_code
from tests.runtime.cuda_packs import (
    DIRECT_PICKS,
    GENERATED_PICKS,
    GROUPED_FP32,
    GROUPED_HOPPER,
    ONE_FOLD_PICKS,
    PICKS,
    PRODUCT_FP16,
    Pick,
)
from tests.runtime.cuda_window_packs import IMAGE_PICKS, PHASE_PICKS, WINDOW_PICKS
from tests.standin import environment, toolchain_missing
from tests.standin.forking import Forking

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")
SECONDS = 110  # of processors
MODULES = tuple(
    f"tests.backends.cuda_timing{kind}" for kind in ("", "_groups", "_batches", "_generated", "_direct", "_windows")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("timing")
    yield path
    forking(path).close()


@functools.cache
def forking(folder: Path) -> Forking:
    """A process that has imported the scenarios, and forks before it has asked anything of the driver."""
    return Forking(environment(folder / "images"), MODULES)


@pytest.mark.parametrize("pick", [GROUPED_HOPPER, GROUPED_FP32], ids=lambda pick: pick.op)
def test_rows_in_groups_are_timed_in_one_launch(folder, pick):
    timed(folder, pick, "tests.backends.cuda_timing_groups", "timing_groups")


def test_products_side_by_side_are_timed_in_one_launch(folder):
    timed(folder, PRODUCT_FP16, "tests.backends.cuda_timing_batches", "timing_batches")


@pytest.mark.parametrize("pick", (*GENERATED_PICKS[:2], *ONE_FOLD_PICKS), ids=lambda pick: pick.op)
def test_generated_programs_are_timed_as_they_are_launched(folder, pick):
    timed(folder, pick, "tests.backends.cuda_timing_generated", "timing_generated")


def test_convolutions_without_columns_are_timed_as_they_are_launched(folder):
    timed(folder, DIRECT_PICKS[0], "tests.backends.cuda_timing_direct", "timing_direct")
    for pick in (WINDOW_PICKS[0], IMAGE_PICKS[0], PHASE_PICKS[2]):
        timed(folder, pick, "tests.backends.cuda_timing_windows", "timing_windows")


@pytest.mark.parametrize("scenario", ["timing", "unended", "parted"])
@pytest.mark.parametrize("pick", PICKS, ids=lambda pick: pick.arch)
def test_a_timing_process_is_right_and_says_what_the_driver_refuses(folder, pick, scenario):
    timed(folder, pick, "tests.backends.cuda_timing", scenario)


def timed(folder: Path, pick: Pick, module: str, scenario: str) -> None:
    """A scenario in a process of its own."""
    if not (folder / pick.op).exists():
        build_pack(folder / pick.op, pick, folder / "code")
    cubin = device_code(pick, folder / "code")
    where = environment(folder / "images", device=pick.arch, more_devices=(pick.arch,), sources=folder / "code", noise=0.0)
    assert not forking(folder).call(module, scenario, str(cubin), pick.op, environment=where, seconds=SECONDS)
