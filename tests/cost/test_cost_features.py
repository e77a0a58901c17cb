from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.cost.families import demand
from haotuner.cost.features import FEATURES, FEATURES_VERSION, NAMES, PROGRAM_NAMES, RING_FEATURES, features
from haotuner.cost.model import Analytic
from haotuner.cost.roofline import expected_us, roofline_us
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.microkernels.cpu.dense_demand import K_BLOCK_LEAST_ROWS
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.cost.cost_examples import BARE_CORE, BIG_CORE, CPU_DENSE, OP, PAIRS, SMALL_CORE, Named, kernel, product

CORES = st.sampled_from([BIG_CORE, SMALL_CORE, BARE_CORE])
TILES = st.builds(kernel, st.integers(1, 16), st.sampled_from([16, 32, 64, 192]), vl=st.sampled_from([8, 16]))


@pytest.mark.parametrize("device", [BIG_CORE, SMALL_CORE, BARE_CORE], ids=lambda d: d.id)
@pytest.mark.parametrize("weights", ["cold", "hot"])
def test_every_feature_is_finite_and_in_its_documented_range(device: Device, weights: str) -> None:
    frame = features(device, CPU_DENSE, OP, PAIRS, weights=weights)
    assert tuple(frame.columns) == NAMES and len(frame) == len(PAIRS)
    for feature in FEATURES:
        assert np.isfinite(frame[feature.name]).all(), feature.name
        assert frame[feature.name].between(feature.low, feature.high).all(), feature.name


def test_features_have_one_name_each_and_a_formula() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(len(feature.formula) > 8 for feature in FEATURES)


@given(
    device=CORES, tile=TILES, m=st.integers(1, 10**6), others=st.lists(st.tuples(TILES, st.integers(1, 10**6)), max_size=4)
)
def test_a_row_does_not_depend_on_its_neighbours(
    device: Device, tile: MicroKernel, m: int, others: list[tuple[MicroKernel, int]]
) -> None:
    alone = features(device, CPU_DENSE, OP, [(tile, Shape.of(m=m))])
    among = features(device, CPU_DENSE, OP, [*((k, Shape.of(m=e)) for k, e in others), (tile, Shape.of(m=m))])
    assert (alone.iloc[0].to_numpy() == among.iloc[-1].to_numpy()).all()


def test_program_features_are_the_same_on_every_device() -> None:
    here, there = (features(device, CPU_DENSE, OP, PAIRS)[list(PROGRAM_NAMES)] for device in (BIG_CORE, SMALL_CORE))
    assert here.equals(there)
    assert not features(BIG_CORE, CPU_DENSE, OP, PAIRS).equals(features(SMALL_CORE, CPU_DENSE, OP, PAIRS))


@given(device=CORES, tile=TILES, m=st.integers(1, 10**5))
def test_no_kernel_is_expected_to_beat_the_roofline_by_more_than_a_hair(device: Device, tile: MicroKernel, m: int) -> None:
    shape = Shape.of(m=m)
    expected = expected_us(device, demand(device, CPU_DENSE, OP, [(tile, shape)]))[0]
    arithmetic_us = OP.flops(shape) / (device.peak_gflops or 1e9) / 1e3
    assert expected >= 0.9 * arithmetic_us
    assert roofline_us(device, OP, [shape])[0] >= arithmetic_us * 0.999


@given(device=CORES, tile=TILES, m=st.integers(1, 10**5))
def test_more_rows_never_take_less_time(device: Device, tile: MicroKernel, m: int) -> None:
    less, more = expected_us(device, demand(device, CPU_DENSE, OP, [(tile, Shape.of(m=m)), (tile, Shape.of(m=m + 16))]))
    assert less <= more * (1 + 1e-9)


def test_cold_weights_take_longer_than_hot_ones_for_few_rows() -> None:
    pair = [(kernel(2, 64), Shape.of(m=2))]
    cold, hot = (expected_us(BIG_CORE, demand(BIG_CORE, CPU_DENSE, OP, pair, weights=w))[0] for w in ("cold", "hot"))
    assert cold > 1.5 * hot


def test_long_sums_are_described_in_the_parts_they_are_computed_in() -> None:
    wide = Op.parse("dense_n1024_k4096")
    few, many = (
        features(BIG_CORE, CPU_DENSE, wide, [(kernel(6, 64), Shape.of(m=m))]).iloc[0]
        for m in (K_BLOCK_LEAST_ROWS - 1, K_BLOCK_LEAST_ROWS)
    )
    assert few["depth_blocks_log2"] == 0 and many["depth_blocks_log2"] == 2
    assert many["l1_fill_log2"] == pytest.approx(few["l1_fill_log2"] - 2)


def test_the_analysis_prefers_tiles_that_hide_latency_and_refuses_spills() -> None:
    shape = Shape.of(m=240)
    thin, good, spilling = expected_us(
        BIG_CORE, demand(BIG_CORE, CPU_DENSE, OP, [(kernel(1, 16), shape), (kernel(6, 64), shape), (kernel(16, 64), shape)])
    )
    assert good < 0.5 * thin and good < 0.9 * spilling


def test_unknown_families_mixed_families_and_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="no demand function"):
        features(BIG_CORE, Named("no_such"), OP, PAIRS[:1])
    with pytest.raises(ValueError, match="found micro-kernels of other"):
        features(BIG_CORE, CPU_DENSE, OP, [(MicroKernel("other", (("mr", 1),)), Shape.of(m=1))])
    with pytest.raises(ValueError, match="no .* pairs"):
        features(BIG_CORE, CPU_DENSE, OP, [])


def test_kernels_with_and_without_a_narrow_last_tile_are_described_side_by_side() -> None:
    op, shape = Op.parse("dense_n388_k1076"), Shape.of(m=136)
    whole, narrow = CpuDense().kernel(8, 48, 48, 4, 16), CpuDense().kernel(8, 48, 48, 4, 16, 0, op["n"])
    both = demand(BIG_CORE, CPU_DENSE, op, [(whole, shape), (narrow, shape)])
    assert product(both).computed_cols.tolist() == [432, 392]
    for at, candidate in enumerate((whole, narrow)):
        alone = features(BIG_CORE, CPU_DENSE, op, [(candidate, shape)])
        together = features(BIG_CORE, CPU_DENSE, op, [(whole, shape), (narrow, shape)])
        assert (together.iloc[at].to_numpy() == alone.iloc[0].to_numpy()).all()
    assert expected_us(BIG_CORE, both)[1] < expected_us(BIG_CORE, both)[0]


def test_kernels_with_and_without_a_packed_width_are_described_side_by_side() -> None:
    shape, narrow = Shape.of(m=40), kernel(4, 64, pw=16)
    bare = MicroKernel(narrow.family, tuple((name, value) for name, value in kernel(4, 64).params if name != "pw"))
    together = features(BIG_CORE, CPU_DENSE, OP, [(narrow, shape), (bare, shape)])
    for at, candidate in enumerate((narrow, kernel(4, 64))):  # without a width of its own the panel is as wide as the tile
        alone = features(BIG_CORE, CPU_DENSE, OP, [(candidate, shape)])
        assert (together.iloc[at].to_numpy() == alone.iloc[0].to_numpy()).all()
    assert features(BIG_CORE, CPU_DENSE, OP, [(bare, shape)]).equals(
        features(BIG_CORE, CPU_DENSE, OP, [(kernel(4, 64), shape)])
    )


def test_a_parameter_that_some_kernels_lack_and_none_can_do_without_is_named() -> None:
    odd = MicroKernel("cpu_dense_fp32", (("mr", 4), ("nr", 32), ("ku", 1)))
    with pytest.raises(KeyError, match="some of these micro-kernels have no parameter 'vl'; found"):
        demand(BIG_CORE, CPU_DENSE, OP, [(kernel(4, 32), Shape.of(m=4)), (odd, Shape.of(m=4))])


def test_the_page_of_features_documents_each_as_it_is() -> None:
    text = (Path(__file__).parents[2] / "haotuner/cost/FEATURES.md").read_text(encoding="utf-8")
    for feature in (*FEATURES, *RING_FEATURES):
        assert f"| {feature.name} | {feature.formula} | {feature.low:g} to {feature.high:g} |" in text
    assert f"`FEATURES_VERSION` {FEATURES_VERSION};" in text


@pytest.mark.parametrize("weights", ["cold", "hot"])
def test_the_analytic_model_predicts_the_analytic_time_where_memory_limits_too(weights: str) -> None:
    """Labels are shares of the roofline, so what a model says times the roofline is a time, whatever the rows."""
    device = BIG_CORE.with_units(1)
    pairs = [(kernel(mr, 64), Shape.of(m=mr)) for mr in (1, 4, 8, 16)]
    predictions = Analytic().predict(features(device, CPU_DENSE, OP, pairs, weights=weights))
    us = roofline_us(device, OP, [shape for _, shape in pairs]) / np.exp(predictions)
    assert us == pytest.approx(expected_us(device, demand(device, CPU_DENSE, OP, pairs, weights=weights)))


def test_rows_of_x_that_share_the_sets_of_the_l1_cache_push_each_other_out() -> None:
    shape = Shape.of(m=252)

    def us(device: Device, k: int, mr: int) -> float:
        op = Op.parse(f"dense_n1024_k{k}")
        return float(expected_us(device, demand(device, CPU_DENSE, op, [(kernel(mr, 16), shape)]))[0]) / k

    wide = replace(BIG_CORE, l1_bytes=48 * 2**10)  # 12 ways of the same 64 sets
    assert us(BIG_CORE, 1024, 6) == pytest.approx(us(BIG_CORE, 1040, 6), rel=0.02), "six rows fit"
    assert us(BIG_CORE, 1024, 12) > 1.3 * us(BIG_CORE, 1040, 12)
    assert us(wide, 1024, 9) == pytest.approx(us(wide, 1040, 9), rel=0.02) and us(BIG_CORE, 1024, 9) > us(wide, 1024, 9)
    assert us(BIG_CORE, 1536, 12) < 1.05 * us(BIG_CORE, 1552, 12), "half a page apart they use two sets"
    named = [features(BIG_CORE, CPU_DENSE, Op.parse(f"dense_n1024_k{k}"), [(kernel(12, 16), shape)]) for k in (1024, 1040)]
    assert named[0]["bank_ways"][0] == 13 / 8 and named[1]["bank_ways"][0] == 1


def test_an_accumulator_that_does_not_fit_waits_for_memory_at_every_step() -> None:
    # sixteen registers: a weight that three rows use stays in one, so 3 x 4 vectors need seventeen and 4 x 3 sixteen
    pairs = [(kernel(mr, nr, vl=8), Shape.of(m=252)) for mr, nr in ((3, 32), (4, 24), (1, 96))]
    demands = demand(SMALL_CORE, CPU_DENSE, OP, pairs)
    assert demands.tiles.registers.tolist() == [17, 16, 14]
    spilling, fitting, _ = expected_us(SMALL_CORE, demands)
    assert spilling > 1.5 * fitting


def test_a_narrow_panel_is_read_in_the_order_it_is_stored_in() -> None:
    pairs = [(kernel(4, 64, pw=pw), Shape.of(m=8)) for pw in (16, 64)]
    assert features(BIG_CORE, CPU_DENSE, Op.parse("dense_n1024_k1000"), pairs)["line_ratio"].tolist() == [1, 1]
