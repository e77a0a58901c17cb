"""Throttled clocks: a step of all programs at one moment is found, and nothing else is taken for one."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.cost.series import slow_readings, step_of
from haotuner.hw_profiles.find import find_device
from haotuner.records.importing import load_kernel_tuner
from tests.records.test_records_import import GEMM

ROWS, PROGRAMS = 240, 60


def series(seed: int, factor: float = 1.0, first: int = 120, noise: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """Times of programs that are measured four times each in random order, slower by a factor from one row on."""
    rng = np.random.default_rng(seed)
    programs = rng.permutation(np.arange(ROWS) % PROGRAMS)
    times = np.exp(rng.normal(3.0, 1.0, PROGRAMS))[programs] * np.exp(rng.normal(0.0, noise, ROWS))
    times[first:] *= factor
    return times, programs


@given(st.integers(0, 10_000), st.floats(1.2, 2.5), st.integers(40, 200))
def test_a_clock_that_falls_is_found_where_it_fell_and_by_how_much(seed: int, factor: float, first: int) -> None:
    step = step_of(*series(seed, factor, first))
    assert step is not None and abs(step.first - first) <= 12
    assert abs(step.factor / factor - 1.0) < 0.1 and step.programs > 5
    assert "throttled half-way" in step.words()


@given(st.integers(0, 10_000), st.floats(0.0, 0.3), st.floats(0.4, 1.0))
def test_noise_and_a_clock_that_rises_are_no_throttling(seed: int, noise: float, factor: float) -> None:
    assert step_of(*series(seed, 1.0, noise=noise)) is None
    assert step_of(*series(seed, factor)) is None, "a device that warms up to its clock is not slowed"


@given(st.floats(0.001, 1000.0))
def test_the_unit_of_times_does_not_matter(scale: float) -> None:
    times, programs = series(7, 1.5)
    step, scaled = step_of(times, programs), step_of(times * scale, programs)
    assert step is not None and scaled is not None and scaled.first == step.first


def test_programs_that_were_timed_once_say_nothing() -> None:
    times, _ = series(1, 2.0)
    assert step_of(times, np.arange(ROWS)) is None
    assert step_of([], []) is None


def test_an_outlier_is_no_step() -> None:
    times, programs = series(3)
    times[130:133] *= 50.0
    assert step_of(times, programs) is None


def test_readings_of_the_clock_name_the_slow_rows() -> None:
    facts = [{"clock_mhz": 1980.0}] * 12 + [{"clock_mhz": 1200.0}] * 5 + [{}]
    slow, words = slow_readings(facts)
    assert slow.tolist() == [False] * 12 + [True] * 5 + [False]
    assert "as low as 1200 MHz" in words and "1980" in words
    drawn = [{"clock_mhz": 1980.0 - 600.0 * (at % 3 == 0)} for at in range(60)]
    assert not slow_readings(drawn)[0].any(), "kernels that draw more power have a lower clock all along"
    assert slow_readings([{**row, "throttled": "no"} for row in drawn])[0].sum() == 20
    assert not slow_readings([{**row, "throttled": "power cap"} for row in drawn])[0].any()
    assert not slow_readings([{"clock_mhz": 1980.0 - at} for at in range(40)])[0].any()
    assert not slow_readings([{"core_freq": "unknown"}, {}] * 9)[0].any()


def cache(tmp_path: Path, rows: list[dict[str, object]]) -> Path:
    base = dict(zip(GEMM, (64, 64, 32, 8, 8, 8, 8, 2, 1, 1, 0, 0, 1, 1, 32), strict=True))
    content = {
        "device_name": "NVIDIA TITAN RTX",
        "kernel_name": "Xgemm",
        "problem_size": [4096, 4096],
        "tune_params_keys": list(GEMM),
        "cache": {str(at): {**base, **row} for at, row in enumerate(rows)},
    }
    path = tmp_path / "gemm.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("witness", ["repeats", "readings"])
def test_an_import_leaves_the_throttled_part_of_a_file_out_and_says_so(tmp_path: Path, witness: str) -> None:
    rng = np.random.default_rng(0)
    tiles = [(mwg, nwg, vwm) for mwg in (32, 64, 128) for nwg in (32, 64, 128) for vwm in (1, 2)]
    rows: list[dict[str, object]] = []
    for turn in range(2):
        for at, (mwg, nwg, vwm) in enumerate(tiles):
            slow = 1.6 if turn else 1.0
            row: dict[str, object] = {"MWG": mwg, "NWG": nwg, "VWM": vwm, "time": (20.0 + at) * slow * rng.normal(1.0, 0.01)}
            if witness == "readings":
                row |= {"core_freq": 1100 if turn else 1770, "VWN": 1 + turn}
            rows.append(row)
    loaded = load_kernel_tuner(cache(tmp_path, rows), find_device=partial(find_device, measure=False))
    (reason,) = loaded.refused
    assert "throttled" in reason and abs(loaded.refused[reason] - len(tiles)) <= 1
    assert len(loaded.records) == len(rows) - loaded.refused[reason]
