"""What a compiler makes of a convolution's unrolled taps, and what the analysis makes of that."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.cost.families import demand, problem_of
from haotuner.cost.features import FEATURES, PROGRAM_NAMES, features
from haotuner.cost.roofline import expected_us
from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.imported.conv2d import distinct, kept_values, registers_of_a_thread
from haotuner.spec.demand import Demand
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.record import OpName
from haotuner.spec.shape import Shape
from tests.cost.cost_examples import Named, product, waits

CONV = Named("kt_conv2d")
PROBLEM = problem_of(OpName("conv2d_w4096_h4096_fw15_fh15"))
A4000, W6600, W7800 = (find_device(name, measure=False) for name in ("a4000", "w6600", "w7800"))
ANY = st.sampled_from([A4000, W6600, W7800])
TILES = st.fixed_dictionaries({
    "bx": st.sampled_from([2, 16, 32, 48, 128, 256]), "by": st.sampled_from([1, 2, 4, 8]), "tx": st.integers(1, 8),
    "ty": st.integers(1, 8), "ro": st.integers(0, 1), "pad": st.integers(0, 1), "sh": st.integers(0, 1),
})  # fmt: skip


def tile(**params: int) -> MicroKernel:
    usual = {"bx": 64, "by": 1, "tx": 1, "ty": 4, "fh": 15, "fw": 15, "ro": 0, "pad": 0, "sh": 0, "cm": 1}
    return MicroKernel("kt_conv2d", tuple((usual | params).items()))


def asked_of(device: Device, **params: int) -> Demand:
    return demand(device, CONV, PROBLEM, [(tile(**params), Shape.of())])


def us(device: Device, **params: int) -> float:
    return float(expected_us(device, asked_of(device, **params))[0])


@given(outputs=st.integers(1, 8), apart=st.integers(1, 40), taps=st.integers(1, 20))
def test_values_are_kept_from_their_first_use_to_their_last(outputs: int, apart: int, taps: int) -> None:
    columns = (np.array([float(value)]) for value in (outputs, apart, taps))
    outputs_, apart_, taps_ = columns
    kept_count, read = kept_values(outputs_, apart_, taps_)[0], distinct(outputs_, apart_, taps_)[0]
    live: set[int] = set()
    most = 0
    for tap in range(taps):  # a thread that loads a value once and drops it after its last use
        most = max(most, len(live))
        used = {tap + output * apart for output in range(outputs)}
        later = {now + output * apart for output in range(outputs) for now in range(tap + 1, taps)}
        live = (live | used) & later
    assert kept_count == most
    assert read == len({now + output * apart for output in range(outputs) for now in range(taps)})


@given(device=ANY, params=TILES)
def test_every_feature_of_a_convolution_is_in_its_documented_range(device: Device, params: dict[str, int]) -> None:
    frame = features(device, CONV, PROBLEM, [(tile(**params), Shape.of())])
    for feature in FEATURES:
        assert np.isfinite(frame[feature.name]).all(), feature.name
        assert frame[feature.name].between(feature.low, feature.high).all(), feature.name


@given(params=TILES)
def test_what_a_compiler_does_is_no_program_feature(params: dict[str, int]) -> None:
    here, *there = (
        features(device, CONV, PROBLEM, [(tile(**params), Shape.of())])[list(PROGRAM_NAMES)]
        for device in (A4000, W6600, W7800)
    )
    assert all(here.equals(other) for other in there)


def test_checked_reads_are_not_shared_among_outputs() -> None:
    whole, checked = product(asked_of(A4000, bx=64)), product(asked_of(A4000, bx=48))
    assert whole.checks[0] == 0 and checked.checks[0] > 0
    assert whole.loads[0] == pytest.approx((3 + 15) * 15 / 225) and checked.loads[0] == 4
    assert product(asked_of(A4000, bx=48, sh=1)).checks[0] == 0, "nvcc checks where the image is staged, not at every tap"
    assert product(asked_of(W6600, bx=48, sh=1)).checks[0] > 0
    assert us(A4000, bx=48) > 1.5 * us(A4000, bx=64)


def test_values_kept_for_later_taps_spill_where_the_compiler_keeps_them() -> None:
    assert registers_of_a_thread(W6600) == 128 and registers_of_a_thread(W7800) == 192
    assert registers_of_a_thread(A4000) == 255
    assert registers_of_a_thread(find_device("mi250x", measure=False)) == 128
    far = {"by": 8, "ty": 4}  # 315 values
    for device in (W6600, W7800):
        assert us(device, **far) > us(device, by=16, ty=4), "more work, but nothing is used twice, so nothing is kept"
    assert us(A4000, ro=1, **far) > 1.2 * us(A4000, ro=0, **far), "nvcc keeps what came through the read-only cache"
    assert us(A4000, ro=1, sh=1, **far) == us(A4000, ro=0, sh=1, **far)


def test_a_loop_too_long_to_unroll_is_fetched_once() -> None:
    few, many = (product(asked_of(W7800, bx=48, tx=outputs, ty=outputs)) for outputs in (3, 4))
    assert few.code[0] > 10 * many.code[0]
    assert us(W7800, bx=48, tx=3, ty=3) > 2 * us(W7800, bx=48, tx=4, ty=4)


def test_staging_more_rows_than_a_tile_computes_is_waited_for() -> None:
    # half the rows of a block, nearly as many rows around it: staged in as many turns for half the outputs
    assert waits(asked_of(A4000, by=1, ty=8, sh=1)) == 2 * 22 and waits(asked_of(A4000, by=2, ty=8, sh=1)) == 2 * 15
    assert waits(asked_of(A4000)) == 0
    staged, direct = (us(A4000, by=2, ty=8, sh=sh) / us(A4000, by=1, ty=8, sh=sh) for sh in (1, 0))
    assert staged < direct
