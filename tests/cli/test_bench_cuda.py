"""`haotuner bench --device cuda:0` as a user runs it, over the stand-in driver: rows, our own contender, peers by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haotuner.bench.field import GPU
from haotuner.spec.op import Op
from tests.cli.command import Answer, run_command
from tests.cli.command import environment as of_commands
from tests.conftest import has_gpu
from tests.racing.test_bench_gpu import Whole
from tests.runtime.cuda_device_code import build_pack
from tests.runtime.cuda_packs import GROUPED_FP32, PRODUCT_FP16, SIMT
from tests.standin import environment as of_driver
from tests.standin import toolchain_missing
from tests.standin.devices import DEVICES

pytestmark = [
    pytest.mark.skipif(bool(toolchain_missing()), reason=f"compiler: {toolchain_missing()}"),
    pytest.mark.skipif(has_gpu(), reason="host: has a driver of its own"),
]
PEERS = set(GPU.peers_of(Op.parse(SIMT.op)))  # of a plain layer
ROWS = ("--shapes", "m=3,150", "--cache-state", "cold,hot", "--seconds-per-row", "0.05")


@pytest.fixture(scope="module")
def raced(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with a pack, and the environment of a host whose GPU has little cache: three of it are few weights."""
    folder = tmp_path_factory.mktemp("race")
    pick = Whole(arch=SIMT.arch, op=SIMT.op, kernels=SIMT.kernels, dtype=SIMT.dtype)
    build_pack(folder / "pack", pick, folder / "code")
    where = of_driver(folder / "images", device=pick.arch, sources=folder / "code", execute="demand")
    small = replace(DEVICES[pick.arch], l2_mb=1)
    return folder, {**of_commands(cache), **where, "STANDIN_DEVICES": small.text()}


def bench(raced: tuple[Path, dict[str, str]], *words: str) -> Answer:
    folder, environment = raced
    return run_command(("bench", "pack", "--device", "cuda:0", *words), folder, environment)


def test_rows_hold_ours_and_the_peers_that_are_absent_are_named(raced: tuple[Path, dict[str, str]]) -> None:
    answer = bench(raced, *ROWS, "--json")
    assert answer.code == 0, answer.err
    document: dict[str, Any] = json.loads(answer.out)
    rows = [(row["op"], row["shape"]["m"], row["weights"]) for row in document["rows"]]
    assert rows == [(SIMT.op, 3, "cold"), (SIMT.op, 150, "cold"), (SIMT.op, 3, "hot"), (SIMT.op, 150, "hot")]
    for row in document["rows"]:
        assert row["ours_us"] > 0 and row["failed"] == {} and row["composition"].endswith("@serial")
        assert row["peers_us"] == {}
    assert set(document["missing"]) == PEERS


def test_products_of_a_calls_own_factors_are_raced(raced: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    pick = PRODUCT_FP16
    build_pack(tmp_path / "pack", pick, raced[0] / "code")
    answer = bench((tmp_path, raced[1]), "--shapes", "b=2;m=5;n=7", "--seconds-per-row", "0.05", "--json")
    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    (row,) = document["rows"]
    assert (row["op"], row["shape"], row["weights"]) == (pick.op, {"b": 2, "m": 5, "n": 7}, "hot")
    assert row["ours_us"] > 0 and row["failed"] == {} and document["missing"] == ["inductor", "torch"]


def test_experts_are_raced_with_their_cut_of_the_rows(raced: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    build_pack(tmp_path / "pack", GROUPED_FP32, raced[0] / "code")
    answer = bench((tmp_path, raced[1]), *ROWS, "--json")
    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    rows = [(row["shape"]["m"], row["weights"]) for row in document["rows"]]
    assert rows == [(3, "cold"), (150, "cold"), (3, "hot"), (150, "hot")]
    assert all(row["ours_us"] > 0 and row["failed"] == {} for row in document["rows"])
    assert set(document["missing"]) == {"torch", "torch_grouped"}


def test_people_read_which_peers_are_not_there(raced: tuple[Path, dict[str, str]]) -> None:
    answer = bench(raced, "--shapes", "m=3", "--cache-state", "hot", "--seconds-per-row", "0.05")
    assert answer.code == 0, answer.err
    assert all(name in answer.out + answer.err for name in PEERS) and "m=3" in answer.out


@pytest.mark.parametrize(
    "words, code, message",
    [
        (("--peers", "numpy"), 2, "no such peer"),
        (("--threads", "2"), 2, "are for CPUs"),
        (("--device", "cuda:5"), 2, "this host has cuda:0"),
    ],
)
def test_what_cannot_be_raced_is_refused(raced: tuple[Path, dict[str, str]], words: Any, code: int, message: str) -> None:
    answer = bench(raced, "--shapes", "m=3", *words)
    assert (answer.code, message in answer.err, "Traceback" in answer.err) == (code, True, False), answer.err
