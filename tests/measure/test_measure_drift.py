"""Drift: what a disturbed machine adds to a time is taken out again, by the share of memory and of arithmetic in it."""

from __future__ import annotations

import ctypes
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.backends.cpu.compile import TIMING_SOURCES
from haotuner.backends.cpu.interference import MOST, ThroughputProbe, drift, undisturbed
from haotuner.backends.cpu.timer_process import WATCH_FLOATS, WATCH_LOOKS, WATCH_SAMPLES, TimerProcess
from haotuner.records.codec import trial_of
from haotuner.spec.device import Device
from haotuner.spec.shape import Shape
from tests.backends.native_jobs import job, mutant_library, spied_library

CORE = Device(
    id="fake-core", kind="cpu", name="fake", arch="x86-64-v3", compute_units=2, wave_width=8, registers_per_thread=16,
    peak_gflops_unit=100.0, memory_gbps_unit=20.0, memory_gbps=30.0,
)  # fmt: skip
QUIET = ThroughputProbe(memory_us=50.0, compute_us=10.0)
ONE_ROW = trial_of(op="dense_n1000_k1000", kernel="k", shape=Shape.of(m=1))  # 4 MB: 200 us at 20 GB/s, 20 us at 100 GFLOP/s
MANY = replace(ONE_ROW, shape=Shape.of(m=100))  # 2 ms of arithmetic
ALL = 10**9  # all of the time was looked at
times = st.floats(1.0, 1e6)


def below_peak(slowdown: float, compute: float) -> float:
    """What is taken out of a trial that the clock saw at this share of the peak."""
    room = 1 / compute - 1
    return 1 + room * (1 - math.exp(-(slowdown - 1) / room))


def test_a_quiet_machine_changes_nothing() -> None:
    for trial in (ONE_ROW, MANY):
        assert drift(trial, CORE, 400.0, QUIET, QUIET, ALL) == 1.0


def test_a_stream_of_weights_owes_to_memory_and_many_rows_to_arithmetic() -> None:
    memory, compute = replace(QUIET, memory_us=100.0), replace(QUIET, compute_us=20.0)
    assert drift(ONE_ROW, CORE, 400.0, memory, QUIET, ALL) == pytest.approx(below_peak(2**0.5, 0.05))  # half is the read
    assert drift(ONE_ROW, CORE, 400.0, compute, QUIET, ALL) == pytest.approx(below_peak(2**0.05, 0.05))
    assert drift(MANY, CORE, 5000.0, compute, QUIET, ALL) == pytest.approx(below_peak(2**0.4, 0.4))
    assert drift(replace(ONE_ROW, weights="hot"), CORE, 400.0, memory, QUIET, ALL) == 1.0
    assert drift(replace(ONE_ROW, threads=2), CORE, 400.0, memory, QUIET, ALL) == pytest.approx(
        below_peak(2 ** (4e3 / 30 / 400), 0.025)
    )


def test_no_trial_is_corrected_to_the_peak_and_no_two_to_the_same() -> None:
    slow = replace(QUIET, compute_us=10.5)
    corrected = [us / drift(MANY, CORE, us, slow, QUIET, ALL) for us in (2020.0, 2060.0, 2100.0, 2500.0)]
    assert corrected == sorted(set(corrected)) and 2000.0 < corrected[0] < 2005.0
    assert corrected[-1] == pytest.approx(2500 / 1.05**0.8, rel=0.01), "there is room enough"
    assert drift(MANY, CORE, 1900.0, slow, QUIET, ALL) == 1.0  # the clock is right, the peak of another day


def test_few_looks_beside_long_calls_count_for_less() -> None:
    slow = replace(QUIET, compute_us=20.0)
    drifts = [drift(MANY, CORE, 5000.0, slow, QUIET, looks) for looks in (1, 3, 30, ALL)]
    assert drifts == sorted(drifts) and drifts[0] < 1.1 < 1.25 < drifts[-1]
    short = [drift(ONE_ROW, CORE, 400.0, replace(QUIET, memory_us=100.0), QUIET, looks) for looks in (10, ALL)]
    assert short[0] == pytest.approx(short[1], rel=0.02)


def test_what_is_not_known_is_not_corrected() -> None:
    slow = ThroughputProbe(memory_us=500.0, compute_us=100.0)
    assert drift(ONE_ROW, replace(CORE, peak_gflops_unit=None, memory_gbps_unit=None), 400.0, slow, QUIET, ALL) == 1.0
    assert drift(ONE_ROW, CORE, 400.0, slow, ThroughputProbe(memory_us=0.0, compute_us=0.0), ALL) == 1.0
    assert drift(ONE_ROW, CORE, 400.0, ThroughputProbe(memory_us=0.0, compute_us=10.0), QUIET, ALL) == 1.0


@given(times, times, times, st.integers(1, 4096), st.sampled_from(["cold", "hot"]))
def test_it_is_bounded_and_grows_with_what_was_lost(us: float, memory: float, compute: float, m: int, weights: str) -> None:
    trial = replace(ONE_ROW, shape=Shape.of(m=m), weights=weights)
    slowdown = drift(trial, CORE, us, ThroughputProbe(memory_us=memory, compute_us=compute), QUIET, ALL)
    assert 1 / MOST - 1e-9 <= slowdown <= MOST + 1e-9
    assert drift(trial, CORE, us, ThroughputProbe(memory_us=2 * memory, compute_us=compute), QUIET, ALL) >= slowdown
    assert drift(trial, CORE, us, ThroughputProbe(memory_us=memory, compute_us=2 * compute), QUIET, ALL) >= slowdown


def test_samples_times_the_drift_are_what_the_clock_said() -> None:
    answer = {"samples_us": [400.0, 410.0, 390.0], "memory_us": [100.0, 90.0, 110.0], "compute_us": [10.0, 10.0, 30.0]}
    samples, factor = undisturbed(ONE_ROW, CORE, answer, QUIET)
    assert factor == pytest.approx(2**0.5, rel=0.05)  # three looks tell nearly all of 400 us
    assert np.allclose(np.array(samples) * factor, answer["samples_us"])


def test_the_worker_looks_beside_every_sample_and_never_drives_hot_weights_out(tmp_path) -> None:
    library, table = mutant_library(tmp_path), TimerProcess()
    cold = table.time(job(library, cold_bytes=16 << 20, most=5, least=5))
    assert len(cold["samples_us"]) == len(cold["memory_us"]) == len(cold["compute_us"]) == 5
    assert min(cold["memory_us"]) > 1 and min(cold["compute_us"]) > 1
    assert set(cold["together_us"]) == {0.0}, "one thread has nobody to share a core with"
    hot = table.time(job(library))
    assert set(hot["memory_us"]) == {0.0} and min(hot["compute_us"]) > 1


def test_no_look_reads_what_is_still_cached(tmp_path) -> None:
    """Each is a quarter of a round away from the calls, and half a round of memory passes before one is made again."""
    library, mib = spied_library(tmp_path), 1 << 20
    table, round_bytes = TimerProcess(), 32 * mib
    cold = table.time(job(library, cold_bytes=round_bytes, most=24, least=24, limit_ns=0))
    loaded = ctypes.CDLL(str(library))
    count = ctypes.c_longlong.in_dll(loaded, "spied_count").value
    looks, calls = ((ctypes.c_longlong * 4096).in_dll(loaded, name)[:count] for name in ("spied_looks", "spied_calls"))
    assert count >= len(cold["samples_us"]) == 24
    for at, weight in zip(looks, calls, strict=True):
        ahead = (at - weight) % round_bytes
        assert round_bytes // 4 - mib <= ahead <= round_bytes * 3 // 4 + mib, "neither read by a call lately, nor soon"
    for index, at in enumerate(looks):
        lately = looks[max(0, index - round_bytes // 2 // (2 * mib) + 1) : index]
        assert all(abs(at - other) >= 2 * mib - mib // 4 for other in lately), "read by a look lately"


def test_the_first_looks_never_read_the_same_memory_twice() -> None:
    (size,) = re.findall(r"#define WATCH_BYTES \((\d+) << 20\)", (TIMING_SOURCES / "watch.h").read_text())
    assert WATCH_SAMPLES * (int(size) << 20) <= WATCH_FLOATS * 4 // WATCH_LOOKS, "the second time it would be cached"


def test_a_look_at_the_start_sees_both(tmp_path) -> None:
    samples = TimerProcess().watch({"library": str(mutant_library(tmp_path)), "cold_bytes": 0})
    pace = ThroughputProbe.quiet(samples)
    assert len(samples["memory_us"]) == len(samples["compute_us"]) > 30
    assert min(samples["memory_us"]) <= pace.memory_us <= max(samples["memory_us"]) and pace.compute_us > 1
