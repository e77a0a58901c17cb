"""The plan of `haotuner tune --device cuda:0` against many kernels that could have been planned, on the stand-in's clock."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import ROOT
from tests.cli.test_tune_cuda import Host
from tests.standin import toolchain_missing

pytestmark = [
    pytest.mark.slow,  # compiles dozens of kernels: two minutes of two cores
    pytest.mark.timeout(3000),
    pytest.mark.skipif(bool(toolchain_missing()), reason=f"compiler: {toolchain_missing()}"),
]
OP, SHAPES = "dense:n=256,k=128,dtype=fp16", "m=1..256"
UNITS = 8  # few, so that rounds of blocks tell kernels apart


def timed(host: Host, folder: Path, cache: Path, compositions: dict[int, str]) -> dict[int, float]:
    """Of the compositions, or of the best there is, by rows."""
    words = (OP, SHAPES, f"sqlite:///{folder / f'times-{len(compositions)}.db'}", str(cache / "haotuner"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.brute_force", *words], input=json.dumps(compositions), cwd=ROOT,
        env=host.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return {int(m): us for m, us in json.loads(done.stdout).items()}


def test_the_plan_is_within_three_percent_of_brute_force(cache: Path, tmp_path: Path) -> None:
    host = Host(cache, tmp_path / "images", "sm_80", noise=0.0, units=UNITS)
    best = timed(host, tmp_path, cache, {})  # first: what it compiles, the tuner finds again, however slow this host is
    options = ("--op", OP, "--shapes", SHAPES, "--device", "cuda:0", "--budget", "400s", "--json")
    answer = host.run(tmp_path, "tune", *options, seconds=1200)
    assert answer.code == 0, answer.err
    plan: dict[int, str] = {}
    for m in best:
        explained = host.run(tmp_path, "explain", "pack", "--op", OP, "--shape", f"m={m}", "--json").json()
        plan[m] = explained["considered"][0]["composition"]
    ours = timed(host, tmp_path, cache, plan)
    ratios = {m: ours[m] / best[m] for m in best}
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    (op,) = answer.json()["ops"]
    assert mean <= 1.03, f"{mean:.3f} with {op['measured']} of {op['candidates']} measured: {ratios}"
