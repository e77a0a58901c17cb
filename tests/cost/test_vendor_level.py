"""Expectations beside vendors' measured GEMM times."""

from __future__ import annotations

from functools import partial

import pytest

from haotuner.cost.vendor_level import LEAST_ROWS, WARN, beside_vendor, vendor_us
from haotuner.hw_profiles.find import find_device
from haotuner.spec.op import Op

device_of = partial(find_device, measure=False)
SQUARE = Op.parse("dense:n=4096,k=4096,dtype=bf16")


@pytest.mark.parametrize(("device", "us"), [("b200", 28.9), ("h200", 46.1), ("l40s", 141.1)])
def test_a_size_of_the_table_has_its_measured_time(device: str, us: float) -> None:
    times = vendor_us(device_of(device), SQUARE, [1024])
    assert times is not None and times[0] == pytest.approx(us, rel=0.01)


def test_another_size_lies_between_its_neighbours() -> None:
    times = [vendor_us(device_of("h100"), Op.parse(f"dense:n={n},k=4096,dtype=bf16"), [2048]) for n in (4096, 5000, 6144)]
    low, middle, high = (float(us[0]) for us in times if us is not None)
    assert low < middle < high


def test_what_nobody_measured_has_no_level() -> None:
    assert vendor_us(device_of("rtx-4090"), SQUARE, [1024]) is None
    assert vendor_us(device_of("h200"), Op.parse("dense:n=4096,k=4096"), [1024]) is None, "fp32"


def test_only_rows_whose_weights_count_little_are_compared() -> None:
    times = beside_vendor(device_of("h200"), SQUARE, [8, 256, 1024], [5.0, 40.0, 50.0])
    assert times is not None and times.rows == (256, 1024) and LEAST_ROWS == 256
    assert beside_vendor(device_of("h200"), SQUARE, [8], [5.0]) is None


def test_an_expectation_far_above_the_vendor_s_time_is_called_so() -> None:
    b200, vendor = device_of("b200"), vendor_us(device_of("b200"), SQUARE, [256, 1024])
    assert vendor is not None
    for factor, words in ((WARN * 1.01, "b200: from 256 rows on"), (WARN * 0.99, "")):
        times = beside_vendor(b200, SQUARE, [256, 1024], (factor * vendor).tolist())
        assert times is not None and times.ratio == pytest.approx(factor)
        assert times.warning(b200).startswith(words) and bool(times.warning(b200)) == bool(words)


def test_the_profiles_agree_with_the_vendor_s_times() -> None:
    """No time of the table is below its device's roofline by more than what clocks above the paper's explain."""
    for name in ("a100-80gb", "h100", "h200", "b200", "l40s"):
        device = device_of(name)
        times = vendor_us(device, SQUARE, [4096])
        assert times is not None and device.tensor_tflops is not None
        share = 2.0 * 4096**3 / (times[0] * 1e6) / device.tensor_tflops
        assert 0.5 < share < 1.0, name
