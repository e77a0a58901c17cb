from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.cost.model import Scores
from haotuner.cost.scores import pairwise_accuracy
from haotuner.errors import UsageError
from haotuner.transfer.device_table import NOTHING, DeviceTable, program_keys
from haotuner.transfer.portfolio import program_units
from haotuner.transfer.similarity import distance, joint_share, priors_of
from haotuner.transfer.sources import KnownPrograms, learn_sources
from tests.bench.transfer_study.calibrate import TargetScores
from tests.bench.transfer_study.modes import LEARNING, MODES, Pool, Sample, choose_mode, make_pool, rank
from tests.bench.transfer_study.residual import PENALTIES, PROOF, _proved_penalty, fit_stack
from tests.bench.transfer_study.simulate import unaided_batch
from tests.transfer.transfer_examples import COUSIN, NARROW, WIDE, tables

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def measured() -> list[DeviceTable]:
    return tables(WIDE, COUSIN, NARROW)


@pytest.fixture(scope="module")
def pool(measured: list[DeviceTable]) -> Pool:
    """The cousin as the target of the other two."""
    others = [measured[0], measured[2]]
    return make_pool(learn_sources(others, COUSIN, seed=0), others, measured[1])


def sample(table: DeviceTable, count: int, seed: int = 0) -> Sample:
    rows = np.random.default_rng(seed).permutation(len(table))[:count]
    return Sample(rows=rows, labels=table.labels[rows])


def reversed_pool(pool: Pool) -> Pool:
    """Sources that say the opposite of what they know."""
    return replace(pool, columns=-pool.columns, known=-pool.known)


# what every mode promises


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_scores_every_row(pool: Pool, measured: list[DeviceTable], mode: str) -> None:
    scores = rank(mode, pool, sample(measured[1], 24), 0)
    assert scores.shape == (len(pool.frame),) and np.isfinite(scores).all()
    assert (scores == rank(mode, pool, sample(measured[1], 24), 0)).all()


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_works_with_a_single_sample_or_says_it_needs_one(
    pool: Pool, measured: list[DeviceTable], mode: str
) -> None:
    assert np.isfinite(rank(mode, pool, sample(measured[1], 1), 0)).all()
    if mode in LEARNING:
        with pytest.raises(ValueError, match="needs target samples"):
            rank(mode, pool, None, 0)


def test_near_sources_beat_the_analysis_and_samples_help(pool: Pool, measured: list[DeviceTable]) -> None:
    scores = TargetScores.of(measured[1])
    analysis = scores.score(np.asarray(pool.frame["expected_log"]))["pairwise"]
    zero = scores.score(rank("zero-shot", pool, None, 0))["pairwise"]
    residual = scores.score(rank("residual", pool, sample(measured[1], 48), 0))["pairwise"]
    assert zero > analysis + 0.05
    assert residual > zero - 0.01


def test_a_device_learns_from_itself_exactly_what_it_measured(measured: list[DeviceTable]) -> None:
    table = measured[0]
    itself = make_pool(learn_sources([table], WIDE, seed=0), [table], table)
    assert itself.sources.zero_shot(itself.columns) == pytest.approx(table.labels, abs=1e-6)
    assert TargetScores.of(table).score(itself.zero_shot())["best@10"] == 1.0
    assert itself.copy() == pytest.approx(table.labels, abs=1e-9)


def test_no_source_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one other device"):
        learn_sources([], WIDE, seed=0)


# nearness


def test_the_nearest_profile_weighs_most_and_a_device_is_nearest_to_itself() -> None:
    assert distance(WIDE, WIDE) == 0 < distance(WIDE, COUSIN) < distance(WIDE, NARROW)
    priors = priors_of([NARROW, COUSIN, WIDE], WIDE)
    assert priors.sum() == pytest.approx(1) and (np.diff(priors) > 0).all()
    assert joint_share([WIDE], WIDE) == 0 and joint_share([COUSIN], WIDE) > joint_share([NARROW], WIDE) > 0


# programs that a source measured


def test_programs_have_one_key_on_every_device_and_different_ones_differ(measured: list[DeviceTable]) -> None:
    here, there = program_keys(measured[0].frame), program_keys(measured[2].frame)
    at = {trial: row for row, trial in enumerate(measured[2].trials)}
    assert (here == there[[at[trial] for trial in measured[0].trials]]).all()
    assert len(np.unique(here)) == len(np.unique(measured[0].frame[list(_program())].round(6), axis=0))


def test_known_programs_give_the_mean_of_their_rows_and_0_for_the_rest(measured: list[DeviceTable]) -> None:
    frame = measured[0].frame.iloc[[0, 0, 1]]
    known = KnownPrograms.of(frame, np.array([1.0, 3.0, 5.0]))
    assert known.find(program_keys(measured[0].frame.iloc[[1, 0, 60]])).tolist() == [5.0, 2.0, 0.0]
    assert KnownPrograms.of(frame.iloc[:0], np.zeros(0)).find(program_keys(frame)).tolist() == [0.0, 0.0, 0.0]


def _program() -> tuple[str, ...]:
    from haotuner.cost.features import PROGRAM_NAMES

    return PROGRAM_NAMES


# the stack of the sources


PRIOR = np.array([0.7, 0.3, 0.0])


def noise(seed: int, rows: int) -> tuple[Scores, Scores]:
    """What three sources say of 60 rows, and labels of the first of them that have nothing to do with it."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=(60, 3)), generator.normal(size=rows)


@given(seed=st.integers(0, 50), rows=st.integers(1, 40))
def test_predictions_from_noise_are_finite_and_do_not_turn_far_against_the_prior(seed: int, rows: int) -> None:
    columns, labels = noise(seed, rows)
    stack = fit_stack(columns, PRIOR, 1.0, np.arange(rows), labels)
    assert np.isfinite(stack.predict(columns)).all() and stack.penalty in PENALTIES
    assert stack.coefficients @ PRIOR >= -1.0


@pytest.mark.parametrize(("rows", "most"), [(8, 0.2), (16, 0.12), (32, 0.06)])
def test_noise_seldom_loosens_the_prior_and_the_less_the_more_rows_there_are(rows: int, most: float) -> None:
    stacks = [
        fit_stack(columns, PRIOR, 1.0, np.arange(rows), labels) for columns, labels in (noise(s, rows) for s in range(200))
    ]
    loosened = np.mean([stack.penalty != PENALTIES[0] for stack in stacks])
    assert loosened < most  # a proof of one standard error instead of two: 0.28, 0.19, 0.12


def test_a_source_that_is_right_takes_over_from_one_that_was_believed() -> None:
    generator = np.random.default_rng(0)
    columns = generator.normal(size=(64, 2))
    stack = fit_stack(columns, np.array([1.0, 0.0]), 0.5, np.arange(64), columns[:, 1])
    assert stack.coefficients[1] > 0.9 and abs(stack.coefficients[0]) < 0.1


def test_constant_columns_and_equal_labels_do_no_harm() -> None:
    stack = fit_stack(np.ones((10, 2)), np.array([0.5, 0.5]), 1.0, np.arange(10), np.full(10, -2.0))
    assert stack.predict(np.ones((3, 2))) == pytest.approx([-2.0] * 3)


def test_places_are_standard_units(pool: Pool) -> None:
    places = program_units(pool.frame)
    assert (places.std(axis=0) * np.sqrt(places.shape[1])) == pytest.approx(1.0)
    assert program_units(pool.frame.iloc[[0, 0]]).shape == (2, 1)


@pytest.mark.parametrize("rows", [3, 5, 24])
def test_the_penalty_is_the_one_that_leaving_out_each_row_in_turn_proves(rows: int) -> None:
    choices = set()
    for seed in range(20):
        columns, labels = noise(seed, rows)
        columns = columns[:rows]
        offset, rest = columns - columns.mean(axis=0), labels + columns[:, 0] * (seed % 3)
        rest = rest - rest.mean()
        errors = np.array([[left_out(offset, rest, row, penalty) for penalty in PENALTIES] for row in range(rows)])
        chosen = 0
        for at in range(1, len(PENALTIES)):
            gain = errors[:, chosen] - errors[:, at]
            chosen = at if gain.mean() > PROOF * gain.std() / np.sqrt(rows) else chosen
        assert _proved_penalty(offset, rest) == PENALTIES[chosen]
        choices.add(chosen)
    assert len(choices) > 1


def left_out(offset: Scores, rest: Scores, row: int, penalty: float) -> float:
    """Squared error on a row of the ridge regression, with an intercept, of all other rows."""
    others = np.arange(len(rest)) != row
    centre, level = offset[others].mean(axis=0), rest[others].mean()
    x, y = offset[others] - centre, rest[others] - level
    solved = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y)
    return float(rest[row] - level - (offset[row] - centre) @ solved) ** 2


# the choice of a mode


def test_without_samples_the_preferred_mode_is_chosen(pool: Pool, measured: list[DeviceTable]) -> None:
    assert choose_mode(pool, None, 0).mode == "zero-shot" and choose_mode(pool, None, 0).accuracy is None
    assert choose_mode(pool, sample(measured[1], 3), 0).mode == "residual"


def test_good_sources_are_trusted_and_misleading_ones_are_called_so(pool: Pool, measured: list[DeviceTable]) -> None:
    trusted = choose_mode(pool, sample(measured[1], 64), 0)
    assert trusted.mode == "residual" and trusted.accuracy is not None and trusted.accuracy > 0.8 and not trusted.note
    misled = choose_mode(reversed_pool(pool), sample(measured[1], 64), 0)
    assert "mislead" in misled.note and misled.mode not in ("zero-shot", "copy")


def test_misleading_sources_cost_little_once_there_are_samples(pool: Pool, measured: list[DeviceTable]) -> None:
    scores, seen = TargetScores.of(measured[1]), sample(measured[1], 96)
    against = reversed_pool(pool)
    choice = choose_mode(against, seen, 0)
    own = scores.score(rank("from-scratch", against, seen, 0), seen.rows)["pairwise"]
    assert scores.score(rank(choice.mode, against, seen, 0), seen.rows)["pairwise"] > own - 0.03
    assert scores.score(rank("zero-shot", against, None, 0))["pairwise"] < 0.5


def test_copy_puts_what_no_source_measured_last(measured: list[DeviceTable]) -> None:
    part = measured[0].take(np.arange(100))
    half = make_pool(learn_sources([part], COUSIN, seed=0), [part], measured[1])
    scores, unknown = half.copy(), np.isnan(half.known).all(axis=1)
    assert unknown.sum() == len(measured[1]) - 100
    assert scores[unknown].max() < scores[~unknown].min()
    ranked = half.sources.blend(half.columns)[unknown]
    assert pairwise_accuracy(scores[unknown], ranked) == 1.0


def test_a_search_that_nobody_helps_starts_by_chance_and_goes_on_by_its_own_model() -> None:
    predictions = np.arange(100.0)  # the model of the samples: later rows are better
    first, other = (
        unaided_batch(opinions=[], taken=NOTHING, count=16, rows=100, rng=np.random.default_rng(seed)) for seed in (0, 1)
    )
    assert len(set(first.tolist())) == 16 and set(first.tolist()) != set(other.tolist())
    more = unaided_batch(opinions=[predictions], taken=first, count=16, rows=100, rng=np.random.default_rng(2))
    left = sorted(set(range(100)) - set(first.tolist()), reverse=True)
    assert more[:10].tolist() == left[:10] and len(set(more.tolist())) == 16 and not set(more.tolist()) & set(first.tolist())
    measured = np.concatenate([first, more])
    rest = unaided_batch(opinions=[predictions], taken=measured, count=500, rows=100, rng=np.random.default_rng(3))
    assert sorted(np.concatenate([measured, rest]).tolist()) == list(range(100)), "no more than there are"
