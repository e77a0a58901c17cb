"""Attention on tensor cores: executed by the emulator on ragged shapes, compiled, priced."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from haotuner.backends.cuda.unit import device_unit
from tests.content.cuda_attention import CASES, QUICK, entries
from tests.emulator import build
from tests.standin.patience import ran

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing())
@pytest.mark.parametrize("symbols", [QUICK, pytest.param(tuple(CASES), marks=pytest.mark.slow)], ids=["quick", "all"])
def test_it_is_right_on_ragged_shapes(symbols, tmp_path):
    source = tmp_path / "attention.cu"
    unit = device_unit({symbol: (CASES[symbol].family, CASES[symbol].kernel) for symbol in symbols})
    source.write_text(unit + entries(symbols))
    library = build.build_plain([source], tmp_path / "attention.so")
    done = ran([sys.executable, "-m", "tests.content.cuda_attention", str(library), *symbols], 110, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr[-2000:]
