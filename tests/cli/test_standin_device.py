"""A GPU that only the driver shows, no NVML: `devices`, `doctor` and `candidates --device cuda:0`, over the stand-in."""

from __future__ import annotations

import json

import pytest

from haotuner.spec.device import is_standin
from tests.cli.command import environment as of_commands
from tests.cli.command import run_command
from tests.standin import environment, toolchain_missing

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")


@pytest.fixture(scope="module")
def haotuner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doors")
    # NVML, where this host has it, knows nothing of the stand-in's place on the bus.
    where = environment(folder / "images", device="sm_90a", more_devices=["sm_80"])

    def call(*words: str) -> str:
        done = run_command(words, folder, of_commands(folder) | where)
        assert done.code == 0, done.err
        return done.out

    return call


def test_devices_lists_the_stand_ins_as_such(haotuner):
    listed = [
        device for device in json.loads(haotuner("devices", "--json"))["devices"] if device["id"].startswith("stand-in")
    ]
    assert [(device["id"], device["arch"], device["compute_units"], device["source"]) for device in listed] == [
        ("stand-in-sm-90a", "sm_90a", 132, "queried"),
        ("stand-in-sm-80", "sm_80", 108, "queried"),
    ]
    assert all(is_standin(device["id"]) for device in listed)
    assert all(device["l2_bytes"] and device["memory_gbps"] and device["peak_gflops"] for device in listed)


def test_doctor_finds_the_driver(haotuner):
    line = next(line for line in haotuner("doctor").splitlines() if line.startswith("CUDA driver"))
    assert "ok" in line and "2 GPUs" in line


@pytest.mark.parametrize("index, dtype, family", [(0, "fp16", "cuda_wgmma_fp16"), (1, "bf16", "cuda_mma_bf16")])
def test_candidates_are_selected_for_it(index, dtype, family, haotuner):
    words = ("candidates", "--op", f"dense:n=256,k=128,dtype={dtype}", "--shapes", "m=1..256", "--device", f"cuda:{index}")
    output = haotuner(*words, "--json")
    assert family in output and "stand-in-sm" in output
