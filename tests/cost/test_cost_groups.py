"""Families that know less than others: a demand of work and tiles alone is ranked, what is not known is NaN."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from haotuner.cost.families import demand
from haotuner.cost.features import FEATURES, NAMES, OPTIONAL_NAMES, features
from haotuner.cost.forest import Forest, Settings
from haotuner.cost.model import Analytic, odd_values, predict_alike
from haotuner.cost.roofline import expected_us, least_us
from haotuner.hw_profiles.find import find_device
from haotuner.spec.demand import Demand, DemandQuery, Problem, Work
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel, Tile
from haotuner.spec.shape import Shape
from tests.cost.cost_examples import BARE_CORE, BIG_CORE, CPU_DENSE, OP, PAIRS, SMALL_CORE

GPUS = [find_device(name, measure=False) for name in ("h100", "t4", "mi250x")]


class Sums:
    """Problem: the sum of every row of a matrix."""

    axes, dtype = ("m", "n"), "fp32"

    def extents(self, shape: Shape) -> dict[str, int]:
        return shape.as_dict()


class RowSum:
    """A family that tells its work, its tiles and nothing else."""

    name = "toy_row_sum"

    def tile(self, kernel: MicroKernel) -> Tile:
        return Tile(extent={"m": kernel["r"]}, edge={"m": "masked"}, step={"n": kernel["vl"]})

    def footprint(self, kernel: MicroKernel) -> Footprint:
        return Footprint(registers_per_thread=kernel["r"] + 1, shared_bytes=4 * kernel["vl"], threads=kernel["t"])

    def demand(self, query: DemandQuery) -> Demand:
        rows, columns = query.extents["m"], query.extents["n"]
        work = Work.streamed(rows * columns, (rows * columns + rows) * query.element_bytes)
        return Demand(work=work, tiles=query.tiles(self.tile, self.footprint, vector=query.param("vl")))


FAMILY, PROBLEM = RowSum(), Sums()


def pairs(threads: int, lanes: Sequence[int] = (1, 16), rows: Sequence[int] = (1, 4)) -> list[tuple[MicroKernel, Shape]]:
    return [
        (MicroKernel(FAMILY.name, (("r", r), ("vl", vl), ("t", threads))), Shape.of(m=m, n=n))
        for r in rows
        for vl in lanes
        for m in (1, 7, 4096)
        for n in (1, 3, 1000)
    ]


@pytest.mark.parametrize("device", [BIG_CORE, SMALL_CORE, BARE_CORE, *GPUS], ids=lambda device: device.id)
def test_work_and_tiles_are_enough_for_a_time_and_a_rank(device: Device) -> None:
    candidates = pairs(1 if device in (BIG_CORE, SMALL_CORE, BARE_CORE) else 128)
    demands = demand(device, FAMILY, PROBLEM, candidates)
    us = expected_us(device, demands)
    assert np.isfinite(us).all() and (us > 0).all()
    assert (us >= 0.999 * least_us(device, demands)).all(), "nothing beats the roofline"
    frame = features(device, FAMILY, PROBLEM, candidates)
    assert np.isfinite(Analytic().predict(frame)).all()
    assert not odd_values(frame).any()
    for feature in FEATURES:
        if feature.group is None:
            assert frame[feature.name].between(feature.low, feature.high).all(), feature.name
        else:
            assert frame[feature.name].isna().all(), feature.name


def test_more_rows_and_narrower_vectors_take_longer() -> None:
    narrow, wide = (MicroKernel(FAMILY.name, (("r", 4), ("vl", vl), ("t", 1))) for vl in (1, 16))
    few, many, slow = expected_us(BIG_CORE, demand(BIG_CORE, FAMILY, PROBLEM, [
        (wide, Shape.of(m=4, n=4096)), (wide, Shape.of(m=64, n=4096)), (narrow, Shape.of(m=64, n=4096)),
    ]))  # fmt: skip
    assert few < many < slow


def test_a_forest_learns_from_rows_that_know_less_beside_rows_that_know_more() -> None:
    dense, sums = features(BIG_CORE, CPU_DENSE, OP, PAIRS), features(BIG_CORE, FAMILY, PROBLEM, pairs(1))
    both = pd.concat([dense, sums], ignore_index=True)
    labels = np.where(both["tile_rows_log2"].isna(), both["threads_limit_log2"] - 1.0, both["expected_log"])
    for settings in (Settings(), Settings(linear=0.01)):
        model = Forest(settings=settings).fit(both, labels)
        predictions = model.predict(both)
        assert np.isfinite(predictions).all()
        assert abs(predictions[len(dense) :].mean() - labels[len(dense) :].mean()) < 0.2
    predictions = predict_alike(both, lambda rows: np.asarray(rows["depth_log2"].fillna(-1.0), np.float64))
    assert predictions.tolist() == both["depth_log2"].fillna(-1.0).tolist()


def test_what_is_not_known_is_not_known_as_a_group() -> None:
    frame = features(BIG_CORE, CPU_DENSE, OP, PAIRS[:20])
    labels = np.zeros(20)
    for name in ("streams", "staged_rows", "fetched", "units_log2"):  # one column of each group, and one that all must have
        with pytest.raises(ValueError, match=f"NaN or infinity in {name}$"):
            Forest().fit(frame.assign(**{name: np.nan}), labels)
    for infinite in (np.inf, -np.inf):
        group = [feature.name for feature in FEATURES if feature.group == "stream"]
        with pytest.raises(ValueError, match="NaN or infinity in "):
            Forest().fit(frame.assign(**dict.fromkeys(group, infinite)), labels)
    assert set(OPTIONAL_NAMES) < set(NAMES)
    assert Forest().fit(frame.assign(**dict.fromkeys(OPTIONAL_NAMES, np.nan)), labels).fitted


def test_a_demand_says_which_families_it_knows_by_name() -> None:
    class Stranger:
        name = "no_such"

    problem: Problem = PROBLEM
    with pytest.raises(ValueError, match="no demand function for family 'no_such'; known: cpu_dense_fp32, .*kt_conv2d"):
        demand(BIG_CORE, Stranger(), problem, pairs(1)[:1])
