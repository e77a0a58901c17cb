"""A part of a GPU as a device of its own: `--device cuda:0/16` over the stand-in driver, `h200/64` without one."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from haotuner.errors import UnknownDevice
from haotuner.hw_profiles.find import find_device
from haotuner.spec.device import is_standin
from tests.cli.command import command
from tests.cli.command import environment as of_commands
from tests.cli.test_tune_cuda import Host
from tests.standin import toolchain_missing

pytestmark = pytest.mark.long

needs_driver = pytest.mark.skipif(bool(toolchain_missing()), reason=f"compiler: {toolchain_missing()}")
ASKED = ("--op", "dense:n=64,k=64,dtype=fp16", "--shapes", "m=1..48")
PLANNED = """
import sys, haotuner
from haotuner.errors import UsageError
for device in ("cuda:0/16", "cuda:0"):
    with haotuner.load("pack", device=device) as pack:
        print(pack.gpu.is_planned_for(pack.manifest), pack.gpu.units)
try:
    haotuner.load("pack", device="cuda:0/500")
except UsageError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def part(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Host, Path, Any]:
    """A host with an sm_90a device, the folder where 16 of its multiprocessors were tuned, and what `tune` printed."""
    host, folder = Host(cache, tmp_path_factory.mktemp("images"), "sm_90a"), tmp_path_factory.mktemp("part")
    answer = host.run(folder, "tune", *ASKED, "--device", "cuda:0/16", "--budget", "3s", "--json")
    assert answer.code == 0, answer.err
    return host, folder, answer.json()


@needs_driver
def test_it_is_tuned_packed_and_verified_under_its_own_name(part: tuple[Host, Path, Any]) -> None:
    host, folder, document = part
    assert document["device"] == "stand-in-sm-90a-16sm" and is_standin(document["device"])
    assert document["verification"] == {"numbers": True, "why": ""}
    manifest = json.loads((folder / "pack" / "manifest.json").read_text())["device"]
    assert (manifest["compute_units"], manifest["arch"]) == (16, "sm_90a") and "16 of its 132" in manifest["name"]
    with closing(sqlite3.connect(f"file:{folder / 'pack.records.db'}?mode=ro", uri=True)) as connection:
        assert {row[0] for row in connection.execute("select device_id from record")} == {"stand-in-sm-90a-16sm"}
    assert host.run(folder, "verify", "pack", "--json").json() == {"ok": True, "problems": []}


@needs_driver
def test_its_plans_are_served_as_planned_where_the_part_is_named(part: tuple[Host, Path, Any]) -> None:
    host, folder, _ = part
    lines = subprocess.run([sys.executable, "-c", PLANNED], cwd=folder, env=host.environment, capture_output=True, text=True,
                           check=True).stdout.splitlines()  # fmt: skip
    assert lines[:2] == ["True 16", "False 132"]
    assert "has 132 multiprocessors; name a part of them" in lines[2]


@needs_driver
@pytest.mark.parametrize(
    "device, how, code, words",
    [
        ("cuda:0/12", {}, 1, "no part of 12 multiprocessors; the least that holds as many has 16: ask for cuda:0/16"),
        ("cuda:0/132", {}, 2, "has 132 multiprocessors; a part has fewer"),
        pytest.param("cuda:0/0", {}, 2, "a part has fewer, and at least one", marks=pytest.mark.slow),
        pytest.param("cuda:7/16", {}, 2, "this host has cuda:0", marks=pytest.mark.slow),
    ],
)
def test_a_part_that_there_is_not_is_refused_in_words(
    device: str, how: dict[str, Any], code: int, words: str, cache: Path, tmp_path: Path
) -> None:
    host = Host(cache, tmp_path / "images", "sm_90a", **how)
    answer = host.run(tmp_path, "tune", *ASKED, "--device", device, "--budget", "2s")
    assert words in answer.err and "Traceback" not in answer.err, answer.err
    assert answer.code == code and not (tmp_path / "pack").exists()


@pytest.mark.slow
@needs_driver
def test_races_are_run_on_whole_devices(part: tuple[Host, Path, Any]) -> None:
    host, folder, _ = part
    answer = host.run(folder, "bench", "pack", "--device", "cuda:0/16", "--shapes", "m=1")
    assert answer.code == 2 and "contenders race on whole devices; name cuda:0" in answer.err


@pytest.mark.slow
def test_a_part_of_a_known_device_is_planned_from_predictions(cache: Path, tmp_path: Path) -> None:
    words = command("tune", *ASKED, "--device", "h200/64", "--zero-measure", "--json")
    done = subprocess.run(words, cwd=tmp_path, env=of_commands(cache), capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["device"] == "h200-64sm"


def test_a_part_has_less_arithmetic_and_the_whole_memory() -> None:
    whole, half = find_device("h200", measure=False), find_device("h200/66", measure=False)
    assert (half.id, half.compute_units, half.memory_gbps, half.l2_bytes) == (
        "h200-66sm",
        66,
        whole.memory_gbps,
        whole.l2_bytes,
    )
    assert half.tensor_tflops == pytest.approx((whole.tensor_tflops or 0) / 2)
    assert half.peak_gflops == pytest.approx((whole.peak_gflops or 0) / 2)
    for text, words in (("h200/132", "a part has fewer"), ("nosuch/8", "unknown device"), ("h200/x", "unknown device")):
        with pytest.raises(UnknownDevice, match=words):
            find_device(text, measure=False)
    with pytest.raises(UnknownDevice, match="named with --threads"):
        find_device("cpu/1", measure=False)
