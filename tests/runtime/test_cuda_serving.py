"""CUDA packs served over the stand-in driver: real device code and the host code of packs, a scenario a process."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.cuda_byte_packs import BYTE_PICKS, BYTE_PRODUCTS
from tests.runtime.cuda_device_code import build_pack
from tests.runtime.cuda_packs import (
    ATTENTION_PICK,
    CONV_FIRST,
    CONV_PICKS,
    DIRECT_PICKS,
    FUSED_FP16,
    FUSED_PICKS,
    GENERATED_PICKS,
    GROUPED_FP32,
    GROUPED_HOPPER,
    GROUPED_PICKS,
    KN_HOPPER,
    KN_PICKS,
    PARTS_PICK,
    PICKS,
    PRODUCT_FP16,
    PRODUCT_PICKS,
    SIMT,
    STAGES_PICK,
    STEPPED_PICKS,
    STEPPED_PRODUCT,
    TENSOR_PICK,
    TRANSPOSED_PICKS,
    TURNED_PICKS,
    WGMMA,
    Pick,
)
from tests.runtime.cuda_window_packs import BESIDE_COLUMNS, IMAGE_PICKS, PHASE_PICKS, WINDOW_PICKS
from tests.standin import ROOT, environment, toolchain_missing
from tests.standin.forking import Forking
from tests.standin.patience import ran

pytestmark = [
    pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing"),
]
SECONDS = 110  # of processors
BOTH = pytest.mark.parametrize("pick", PICKS, ids=lambda pick: pick.arch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("cuda")
    yield path
    forking(path).close()


@functools.cache
def forking(folder: Path) -> Forking:
    """A process that has imported the scenarios, and forks before it has asked anything of the driver."""
    return Forking(environment(folder / "images"), ["tests.runtime.cuda_scenarios"])


def pack(folder: Path, pick: Pick) -> Path:
    out = folder / f"pack-{pick.op}"
    return out if out.exists() else build_pack(out, pick, folder / "code")


def run(folder: Path, pick: Pick, scenario: str, *more: str, device: str = "", whole: bool = False, **how: Any) -> None:
    """A scenario in a child process on the stand-in; a ``whole`` one, or one that failed, has its own start and exit."""
    where = environment(folder / "images", device=device or pick.arch, sources=folder / "code", **how)
    words = (scenario, str(pack(folder, pick)), *more)
    ended = ""
    if not whole:
        ended = forking(folder).call("tests.runtime.cuda_scenarios", "run", *words, environment=where, seconds=SECONDS)
        if not ended:
            return
    command = [sys.executable, "-m", "tests.runtime.cuda_scenarios", *words]
    done = ran(command, SECONDS, cwd=ROOT, env={**os.environ, **where})
    assert done.returncode == 0 and not ended, f"{ended} {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@BOTH
@pytest.mark.parametrize("mode", ["late", "early"])
def test_every_cell_and_beyond_is_right(folder, pick, mode):
    run(folder, pick, "numbers", mode=mode, whole=mode == "late")


@BOTH
@pytest.mark.parametrize(
    "scenario", ["alignment", "looked", "unprepared", "refusals", "frameworks", "allocating", "counted"]
)
def test_one_device(folder, pick, scenario):
    run(folder, pick, scenario)


DRIVERS = ("early", "crowd", "older_load", "older_maps", "older_still", "other_major", "other_minor", "other_shared",
           "other_driver", "misuses", "settings")  # fmt: skip


@BOTH
@pytest.mark.parametrize("scenario", DRIVERS)
def test_drivers_that_are_not_as_they_should_be(folder, pick, scenario):
    run(folder, pick, scenario)


@BOTH
@pytest.mark.parametrize("seed", [1, 2])
def test_a_graph_is_replayed_after_hand_over_and_close(folder, pick, seed):
    run(folder, pick, "captured", seed=seed, whole=seed == 1)


@pytest.mark.parametrize("seed", [1, 2])
def test_threads_and_streams_while_the_pack_is_handed_over(folder, seed):
    run(folder, SIMT, "threads", seed=seed, whole=seed == 1)


@BOTH
@pytest.mark.parametrize("scenario", ["devices", "context"])
def test_two_devices(folder, pick, scenario):
    run(folder, pick, scenario, more_devices=(pick.arch,))


@pytest.mark.parametrize("pick", KN_PICKS, ids=lambda pick: pick.op)
def test_weights_stored_kn_are_served(folder, pick):
    run(folder, pick, "several", "numbers", "alignment", "stored")


@pytest.mark.parametrize("pick", GROUPED_PICKS, ids=lambda pick: pick.op)
def test_rows_in_groups_are_served_in_one_launch(folder, pick):
    run(folder, pick, "several", "grouped", "grouped_refusals")


@pytest.mark.parametrize("pick", FUSED_PICKS, ids=lambda pick: pick.op)
def test_an_epilogue_is_computed_in_the_launches_of_its_product(folder, pick):
    run(folder, pick, "several", "fused", "fused_refusals")


@pytest.mark.parametrize("pick", (*STEPPED_PICKS, *TRANSPOSED_PICKS, *DIRECT_PICKS), ids=lambda pick: pick.op)
def test_any_epilogue_and_type_of_result_is_served(folder, pick):
    run(folder, pick, "several", "stepped", "stepped_faults")


@pytest.mark.parametrize("pick", BYTE_PICKS, ids=lambda pick: pick.op)
def test_bytes_are_served_with_any_epilogue_and_type_of_result(folder, pick):
    run(folder, pick, "several", "stepped", "stepped_faults")


@pytest.mark.parametrize("pick", BYTE_PRODUCTS, ids=lambda pick: pick.op)
def test_products_of_bytes_are_served_with_what_a_call_brings(folder, pick):
    run(folder, pick, "stepped_products")


@pytest.mark.parametrize("pick", WINDOW_PICKS, ids=lambda pick: pick.op)
def test_windows_are_read_where_they_lie(folder, pick):
    run(folder, pick, "several", "stepped", "stepped_faults", "windowed")


@pytest.mark.parametrize("pick", IMAGE_PICKS, ids=lambda pick: pick.op)
def test_windows_of_images_are_read_where_they_lie_channels_first(folder, pick):
    run(folder, pick, "several", "stepped", "stepped_faults", "images")


@pytest.mark.parametrize("pick", PHASE_PICKS, ids=lambda pick: pick.op)
def test_transposed_windows_are_read_where_they_lie_by_one_launch(folder, pick):
    run(folder, pick, "several", "stepped", "stepped_faults", "phased")


def test_products_of_columns_are_not_computed_by_kernels_that_read_windows(folder):
    run(folder, BESIDE_COLUMNS, "windows_beside_columns")


def test_steps_follow_what_a_call_of_products_brings(folder):
    run(folder, STEPPED_PRODUCT, "stepped_products")


@pytest.mark.parametrize("pick", PRODUCT_PICKS, ids=lambda pick: pick.op)
def test_products_of_a_calls_own_factors_are_served_in_one_launch(folder, pick):
    run(folder, pick, "several", "products", "products_beside", "product_refusals", "product_faults")


@pytest.mark.parametrize("pick", PRODUCT_PICKS, ids=lambda pick: pick.op)
def test_products_on_a_second_device(folder, pick):
    run(folder, pick, "products_elsewhere", more_devices=(pick.arch,))


@pytest.mark.parametrize("pick", GENERATED_PICKS, ids=lambda pick: pick.op)
def test_generated_programs_are_served_in_one_launch(folder, pick):
    run(folder, pick, "several", "generated", "generated_refusals")
    run(folder, pick, "generated_faults")


def test_blocks_share_a_fold_where_there_is_memory_for_their_parts(folder):
    run(folder, PARTS_PICK, "generated_parts")
    run(folder, ATTENTION_PICK, "generated_keys")
    run(folder, TENSOR_PICK, "generated_keys")
    run(folder, STAGES_PICK, "generated_stages")


def test_torch_gives_generated_programs_their_operands(folder):
    pytest.importorskip("torch")
    run(folder, GENERATED_PICKS[0], "torch_generated")


@pytest.mark.parametrize("pick", CONV_PICKS, ids=lambda pick: pick.op)
def test_torch_gives_convolutions_their_weight(folder, pick):
    pytest.importorskip("torch")
    run(folder, pick, "torch_convolutions")


@pytest.mark.parametrize("pick", CONV_PICKS, ids=lambda pick: pick.op)
def test_convolutions_are_served_in_two_launches_at_most(folder, pick):
    run(folder, pick, "several", "convolutions", "convolution_refusals")
    run(folder, pick, "convolution_faults", more_devices=(pick.arch,))


@pytest.mark.parametrize("pick", TURNED_PICKS, ids=lambda pick: pick.op)
def test_a_first_factor_stored_the_other_way_is_served(folder, pick):
    run(folder, pick, "turned")


@BOTH
@pytest.mark.parametrize("scenario", ["extents", "lost", "captures"])
def test_what_no_server_should_do_is_said_and_leaves_nothing_behind(folder, pick, scenario):
    run(folder, pick, scenario)


OF_ALL_KINDS = (SIMT, GROUPED_FP32, PRODUCT_FP16, CONV_FIRST, GENERATED_PICKS[0])
AND_MORE = (FUSED_FP16, WINDOW_PICKS[0], *IMAGE_PICKS, DIRECT_PICKS[0], TRANSPOSED_PICKS[2], BYTE_PICKS[0], BYTE_PRODUCTS[1],
            PARTS_PICK, ATTENTION_PICK)  # fmt: skip


@pytest.mark.parametrize(
    "pick", [*OF_ALL_KINDS, *(pytest.param(pick, marks=pytest.mark.slow) for pick in AND_MORE)], ids=lambda pick: pick.op
)
def test_misfortunes_of_every_kind_are_said_and_leave_nothing_behind(folder, pick):
    run(folder, pick, "misfortunes", more_devices=(pick.arch,))


def test_a_fork_is_refused(folder):
    run(folder, SIMT, "forked")


@BOTH
def test_loading_refuses_what_is_not_there(folder, pick):
    run(folder, pick, "loading")


@pytest.mark.parametrize("pick, device", [(WGMMA, "sm_80"), (SIMT, "sm_75"), (SIMT, "sm_90a")], ids=str)
def test_another_architecture_is_a_mismatch(folder, pick, device):
    run(folder, pick, "mismatch", device=device)


def test_later_minors_run_older_code(folder):
    run(folder, SIMT, "numbers", device="sm_89")


FAILURES = {
    "cuInit:1+=999": ("EnvironmentMissing", "cuInit answers CUDA error 999; `nvidia-smi` must work first"),
    "cuDevicePrimaryCtxRetain:1+=2": (
        "PackMismatch",
        r"cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY \(2\): free memory",
    ),
    "cuModuleLoadData:1+=2": ("PackMismatch", r"cuModuleLoadData: CUDA_ERROR_OUT_OF_MEMORY \(2\): free memory"),
    "cuModuleLoadData:1+=222": ("PackMismatch", r"\(222\): update the driver"),
    "cuModuleGetFunction:1+=500": (
        "PackMismatch",
        r"cuModuleGetFunction: CUDA_ERROR_NOT_FOUND \(500\): the pack is damaged",
    ),
    "cuFuncGetAttribute:1+=2": ("PackMismatch", "loading a kernel"),
    "cuCtxPushCurrent:1+=709": ("PackMismatch", r"cuCtxPushCurrent: .*\(709\): the device is lost to this process"),
}


@pytest.mark.parametrize("fail", FAILURES, ids=lambda fail: re.sub(r"\W", "-", fail))
def test_what_the_driver_refuses_while_loading_is_said(folder, fail):
    run(folder, SIMT, "cannot", *FAILURES[fail], fail=fail)


def test_a_driver_that_shows_nothing(folder):
    words = "there is no device cuda:0: the CUDA driver shows 0"
    run(folder, SIMT, "cannot", "EnvironmentMissing", words, driver=0)


def test_a_driver_that_is_too_old(folder):
    run(folder, SIMT, "too_old", driver=12040)
    where = environment(folder / "images", device=SIMT.arch, driver=12040)
    output = subprocess.run(
        [sys.executable, "-m", "haotuner", "inspect", str(pack(folder, SIMT))],
        cwd=ROOT, env={**os.environ, **where, "COLUMNS": "400"}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "for CUDA 13.0 (driver 580 or later); not on this host: its sm_80 code needs a driver" in output
    assert "the one of this host serves CUDA 12.4: update the NVIDIA driver" in output


CALLS = {
    "cuLaunchKernel=700": r"launching a kernel: CUDA_ERROR_ILLEGAL_ADDRESS \(700\): the device is lost to this process",
    "cuLaunchKernel=701": r"\(701\): the kernel wants more registers or shared memory than the device has",
    "cuLaunchKernel=906": r"\(906\): a stream is being captured: load, bind and warm up before the capture",
    "cuCtxGetCurrent=4": r"cuCtxGetCurrent: .* \(4\)",
    "cuCtxPushCurrent=201": r"cuCtxPushCurrent: CUDA_ERROR_INVALID_CONTEXT \(201\): is the stream alive",
    "cuTensorMapEncodeTiled=1": r"cuTensorMapEncodeTiled: CUDA_ERROR_INVALID_VALUE \(1\)",
}


@pytest.mark.parametrize("fail", CALLS)
def test_what_the_driver_refuses_in_a_call_is_said_and_does_not_stick(folder, fail):
    run(folder, WGMMA, "failing", *fail.split("="), CALLS[fail])


@BOTH
def test_every_call_of_the_driver_may_fail_once(folder, pick):
    run(folder, pick, "faults")


def test_partial_sums_without_memory_are_refused_while_preparing(folder):
    run(folder, SIMT, "preparing")


def test_torch_gives_offsets_of_groups(folder):
    pytest.importorskip("torch")
    run(folder, GROUPED_HOPPER, "torch_groups")
    run(folder, PRODUCT_FP16, "torch_products")


@pytest.mark.parametrize("pick", FUSED_PICKS, ids=lambda pick: pick.op)
def test_torch_gives_what_an_epilogue_reads(folder, pick):
    pytest.importorskip("torch")
    run(folder, pick, "torch_fused")


@pytest.mark.parametrize("pick", [*PICKS, KN_HOPPER], ids=lambda pick: pick.op)
def test_torch_knows_what_the_operators_give_and_which_layers_are_served(folder, pick):
    pytest.importorskip("torch")
    run(folder, pick, "torch_fakes")
