"""Dedispersion, a kernel that is bound by its loads: what the analysis makes of its parameters."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from haotuner.cost.families import demand, problem_of
from haotuner.cost.features import FEATURES, PROGRAM_NAMES, features
from haotuner.cost.roofline import expected_us
from haotuner.hw_profiles.find import find_device
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.record import OpName
from haotuner.spec.shape import Shape
from tests.cost.cost_examples import Named

SUM = Named("kt_dedispersion")
PROBLEM = problem_of(OpName("dedispersion_s25000_d2048_c1536"))
A4000, W6600, W7800 = (find_device(name, measure=False) for name in ("a4000", "w6600", "w7800"))
TILES = st.fixed_dictionaries({
    "bx": st.sampled_from([1, 2, 4, 8, 16, 32]), "by": st.integers(4, 32).map(lambda by: 8 * by), "tx": st.integers(1, 4),
    "ty": st.integers(1, 8), "sx": st.integers(0, 1), "sy": st.integers(0, 1), "un": st.sampled_from([0, 1, 8]),
}).filter(lambda params: params["bx"] * params["by"] <= 1024)  # fmt: skip


def tile(**params: int) -> MicroKernel:
    usual = {"bx": 8, "by": 64, "bz": 1, "tx": 1, "ty": 1, "sx": 0, "sy": 0, "un": 0}
    return MicroKernel("kt_dedispersion", tuple((usual | params).items()))


def us(device: Device, **params: int) -> float:
    return float(expected_us(device, demand(device, SUM, PROBLEM, [(tile(**params), Shape.of())]))[0])


@given(device=st.sampled_from([A4000, W6600, W7800]), params=TILES)
def test_every_feature_is_in_its_documented_range(device: Device, params: dict[str, int]) -> None:
    frame = features(device, SUM, PROBLEM, [(tile(**params), Shape.of())])
    for feature in FEATURES:
        assert np.isfinite(frame[feature.name]).all(), feature.name
        assert frame[feature.name].between(feature.low, feature.high).all(), feature.name


def test_parameters_that_make_another_program_make_other_features() -> None:
    programs = [{}, {"bx": 4}, {"by": 72}, {"tx": 2}, {"tx": 2, "sx": 1}, {"ty": 2}, {"ty": 2, "sy": 1}, {"un": 2}]
    frame = features(A4000, SUM, PROBLEM, [(tile(**program), Shape.of()) for program in programs])
    assert len(frame[list(PROGRAM_NAMES)].drop_duplicates()) == len(programs)


def test_lanes_that_no_thread_fills_cost_time() -> None:
    assert us(A4000, bx=1, by=40) > 1.3 * us(A4000, bx=1, by=64)


def test_neighbours_that_read_neighbouring_bytes_are_faster() -> None:
    assert us(W7800, ty=8, sy=1) < us(W7800, ty=8, sy=0)


def test_loads_bound_it_not_memory() -> None:
    demands = demand(A4000, SUM, PROBLEM, [(tile(), Shape.of())])
    least_us = float(demands.work.far_bytes[0]) / (A4000.memory_gbps or 1.0) / 1e3
    assert us(A4000) > 10 * least_us
