"""What independent opinions agree on: not moved by one that is far off, silent without a majority, a part of the head."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from haotuner.cost.model import Scores
from haotuner.transfer.calibrate import CANDIDATES, scores_on
from haotuner.transfer.experts import ANALYSIS, COPY_MEAN, COPY_OF, FOREST_OF, SHARES, agreement, shared_head
from haotuner.transfer.modes import Pool, make_pool
from haotuner.transfer.portfolio import Opinion
from haotuner.transfer.sources import learn_sources
from haotuner.transfer.warm_start import shares_of
from tests.transfer.transfer_examples import COUSIN, NARROW, WIDE, tables

TRUTH = -np.arange(100.0)


def opinions(**said: Scores) -> list[Opinion]:
    names = {"one": FOREST_OF + "one", "other": FOREST_OF + "other", "analysis": ANALYSIS}
    return [Opinion(name=names.get(name, name), prediction=each, weight=1.0) for name, each in said.items()]


def near(seed: int) -> Scores:
    return np.asarray(TRUTH + np.random.default_rng(seed).normal(0, 3, len(TRUTH)))


@pytest.mark.parametrize("liar", ["one", "other", "analysis"])
def test_one_that_is_far_off_does_not_move_what_the_others_agree_on(liar: str) -> None:
    said = {"one": near(1), "other": near(2), "analysis": near(3)} | {liar: -10 * TRUTH}
    assert agreement(opinions(**said))[:5].max() < 15
    weighed = np.argsort(-np.mean(list(said.values()), axis=0))[:5]
    assert weighed.max() > 15, "a mean is moved"


def test_copies_and_models_of_all_sources_have_no_say() -> None:
    said = {"one": near(1), "other": near(2), "analysis": near(3)}
    more = {COPY_OF + "one": -TRUTH, COPY_MEAN: -TRUTH, "joint": -TRUTH, "plain": -TRUTH}
    assert agreement(opinions(**said, **more)).tolist() == agreement(opinions(**said)).tolist()


def test_fewer_than_three_have_no_majority() -> None:
    assert not len(agreement(opinions(one=near(1), analysis=near(2))))


def test_the_head_is_shared_as_asked_and_no_row_comes_twice() -> None:
    agreed, portfolio = np.arange(40), np.arange(30, 62)
    head = shared_head(agreed, portfolio, 0.9).tolist()
    assert len(head) == len(set(head)) == 32
    assert head[:10] == [*range(9), 30] and head[10:20] == [*range(9, 18), 31]
    assert shared_head(agreed, portfolio, 0.0).tolist() == portfolio.tolist()
    assert shared_head(np.arange(0), portfolio, 0.9).tolist() == portfolio.tolist()


@pytest.fixture(scope="module")
def pool() -> Pool:
    """The cousin as the target of the other two: two forests and the analysis."""
    wide, cousin, narrow = tables(WIDE, COUSIN, NARROW)
    return make_pool(learn_sources([wide, narrow], COUSIN, seed=0), [wide, narrow], cousin)


def test_the_zero_shot_head_begins_with_what_the_sources_and_the_analysis_agree_on(pool: Pool) -> None:
    task = pool.tasks == pool.tasks[0]
    rows = np.flatnonzero(task)
    agreed = rows[agreement([replace(one, prediction=one.prediction[rows]) for one in pool.opinions()])]
    said = replace(pool, shares=replace(SHARES, agreed=0.9)).zero_shot()
    assert rows[np.argsort(-said[rows], kind="stable")][:9].tolist() == agreed[:9].tolist()
    assert (pool.zero_shot()[rows] != said[rows]).any(), "unless folds choose it, the portfolio alone"
    assert [each.tolist() for each in pool.zero_shots(0, [0.0, 0.9])] == [pool.zero_shot().tolist(), said.tolist()]


def test_folds_may_choose_it_and_a_saved_model_keeps_what_they_chose() -> None:
    wide, cousin, narrow = tables(WIDE, COUSIN, NARROW)
    assert CANDIDATES[0] == SHARES and SHARES.agreed == 0 and 0 < max(shares.agreed for shares in CANDIDATES) < 1
    scores = scores_on(cousin, [wide, narrow])
    assert len(scores) == len(CANDIDATES) and all(0 < score <= 1 for score in scores)
    kept = replace(SHARES, agreed=0.9)
    assert shares_of({"shares": asdict(kept)}) == kept
    old = {name: value for name, value in asdict(kept).items() if name != "agreed"}
    assert shares_of({"shares": old}) == SHARES, "files of before"
