"""A started model puts the level of every regime right, and knows how far off it is."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from haotuner.cost.features import features
from haotuner.cost.forest import Forest
from haotuner.cost.model import Analytic, HasSpread, Scores
from haotuner.transfer.similarity import start_distance
from haotuner.transfer.sources import learn_sources
from haotuner.transfer.warm_start import SPREAD, TREE_ROWS, Remembered, Started
from tests.bench.shipped_trees import SHIPPED_TREES, fit_start
from tests.bench.transfer_study.modes import Sample, make_pool
from tests.bench.transfer_study.started_mode import rank_started
from tests.cost.cost_examples import BIG_CORE, CPU_DENSE, OP, PAIRS
from tests.transfer.transfer_examples import COUSIN, NARROW, WIDE, tables

FEW_ROWS = np.array([shape["m"] <= 5 for _, shape in PAIRS])


@cache
def base_model() -> Forest:
    """A model of what is expected, but for one slope."""
    return Forest().fit(frame(), np.asarray(frame()["expected_log"] - 0.2 * frame()["tile_rows_log2"], np.float64))


@cache
def frame() -> pd.DataFrame:
    """Columns of all pairs of kernels and shapes."""
    return features(BIG_CORE, CPU_DENSE, OP, PAIRS)


def parts(rows: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows that are measured, and the others."""
    order = np.random.default_rng(seed).permutation(len(PAIRS))
    return order[:rows], order[rows:]


def test_what_a_start_has_wrong_in_one_regime_alone_is_put_right_there_alone() -> None:
    off = base_model().predict(frame()) + np.where(FEW_ROWS, 0.4, -0.2)
    seen, other = parts(TREE_ROWS - 1, seed=0)
    left = off - Started(base_model()).fit(frame().iloc[seen], off[seen]).predict(frame())
    for regime in (FEW_ROWS, ~FEW_ROWS):
        assert abs(float(np.mean(left[other][regime[other]]))) < 0.05


@pytest.mark.parametrize("noise", [0.05, 0.15, 0.3])
def test_two_of_three_unseen_rows_lie_within_a_spread_and_nearly_all_within_two(noise: float) -> None:
    """What a standard deviation promises: 0.68 and 0.95 of normal errors; wider bounds, as 47 rows know it roughly."""
    within = []
    for seed in range(8):
        off = base_model().predict(frame()) + np.random.default_rng(seed).normal(0.0, noise, len(frame()))
        seen, other = parts(TREE_ROWS - 1, seed)
        model = Started(base_model()).fit(frame().iloc[seen], off[seen])
        errors = np.abs(off - model.predict(frame()))[other]
        spread = model.spread(frame())[other]
        within.append((np.mean(errors <= spread), np.mean(errors <= 2 * spread)))
    within_one, within_two = np.mean(within, axis=0)
    if noise < SPREAD:  # a few rows that fit do not outweigh what other devices' models were off by
        assert within_one > 0.68 and within_two > 0.95
    else:
        assert 0.5 < within_one < 0.8 and 0.85 < within_two < 0.99


def test_rows_that_fit_make_it_surer_and_rows_that_do_not_less_sure() -> None:
    seen, _ = parts(TREE_ROWS - 1, seed=0)
    predicted, sine = base_model().predict(frame()), np.sin(np.arange(len(frame())))
    spreads = [
        float(Started(base_model()).fit(frame().iloc[seen], (predicted + off * sine)[seen]).spread(frame())[0])
        for off in (0, 1.0)
    ]
    assert spreads[0] < SPREAD < spreads[1]
    assert Started(base_model()).spread(frame()) == pytest.approx(SPREAD), "before any row it is what other devices taught"


def test_a_spread_is_a_number_from_zero_up_for_every_row_and_of_this_version_only() -> None:
    model = Started(base_model())
    assert isinstance(model, HasSpread) and not isinstance(Analytic(), HasSpread) and not isinstance(Forest(), HasSpread)
    for rows in (0, 1, 7):
        spread = model.spread(frame().iloc[:rows])
        assert spread.shape == (rows,) and np.isfinite(spread).all() and (spread >= 0).all()
    with pytest.raises(ValueError, match="lacks tile_cols_log2"):
        model.spread(pd.DataFrame({"tile_rows_log2": [1.0]}))


def test_weights_count_in_the_level_and_in_the_spread() -> None:
    """A row without weight might as well not be there."""
    seen, _ = parts(40, seed=1)
    labels = base_model().predict(frame())[seen]
    wild = labels.copy()
    wild[0] += 5.0
    weights = np.ones(len(seen))
    weights[0] = 0.0
    with_it = Started(base_model()).fit(frame().iloc[seen], wild, weights)
    without = Started(base_model()).fit(frame().iloc[seen[1:]], labels[1:])
    assert with_it.predict(frame()) == pytest.approx(without.predict(frame()), abs=1e-3)
    assert with_it.spread(frame()) == pytest.approx(without.spread(frame()), rel=0.05)


def test_a_start_is_asked_once_about_rows_that_come_again() -> None:
    row_counts: list[int] = []

    class Counted:
        def predict(self, frame: pd.DataFrame) -> Scores:
            row_counts.append(len(frame))
            return np.arange(len(frame), dtype=np.float64)

    start = Remembered(Counted())
    rows = features(BIG_CORE, CPU_DENSE, OP, PAIRS)
    for count in (20, 30, 40):  # a search: fitted to the rows measured, then asked about all
        model = copy.copy(Started(start)).fit(rows.iloc[:count], np.linspace(-2, -1, count))
        model.predict(rows)
    assert row_counts == [20, len(PAIRS), 30, 40]
    other = rows.copy()
    assert np.array_equal(start.predict(other), start.predict(rows)) and row_counts[-1] == len(PAIRS), (
        "the object, not its values"
    )
    assert np.array_equal(
        Started(start).fit(rows.iloc[:30], np.linspace(-2, -1, 30)).predict(rows),
        Started(Counted()).fit(rows.iloc[:30], np.linspace(-2, -1, 30)).predict(rows),
    )


def test_started_is_what_tune_runs_a_blend_of_shipped_models_put_right_by_the_samples() -> None:
    target, *others = tables(COUSIN, WIDE, NARROW)
    rows = np.random.default_rng(0).permutation(len(target))[:48]
    seen = Sample(rows=rows, labels=target.labels[rows])
    start = fit_start(others, target.device)
    assert start is not None
    pool = make_pool(learn_sources(others, target.device, seed=0), others, target)
    shipped = [Forest(seed=0, settings=SHIPPED_TREES).fit(table.frame, table.labels) for table in others]
    nearness = np.array([2.0 ** -start_distance(table.device, target.device) for table in others])
    expected = nearness @ np.stack([model.predict(target.frame) for model in shipped]) / nearness.sum()
    assert start.predict(target.frame) == pytest.approx(expected)
    tuned = Started(start, seed=3).fit(target.frame.iloc[seen.rows], seen.labels)
    assert rank_started(start, pool, seen, 3).tolist() == tuned.predict(target.frame).tolist()


def test_without_a_near_source_there_is_nothing_to_start_from() -> None:
    target, other = tables(COUSIN, WIDE)
    far = replace(WIDE, id="far", l2_bytes=2**34, memory_gbps=2e4, l1_bytes=2**28)
    assert fit_start([replace(other, device=far)], target.device) is None
