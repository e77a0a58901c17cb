import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from haotuner.cost.scores import best_at, group_splits, pairwise_accuracy

VALUES = arrays(np.float64, st.integers(2, 30), elements=st.floats(0.125, 1e6, width=32), unique=True)


@given(values=VALUES)
def test_the_truth_scores_one_and_its_reverse_zero(values: np.ndarray) -> None:
    assert pairwise_accuracy(values, values) == 1.0
    assert pairwise_accuracy(-values, values) == 0.0
    assert best_at(values, values, 1) == 1.0
    assert best_at(-values, values, 1) == pytest.approx(values.min() / values.max())
    assert best_at(-values, values, len(values)) == 1.0


@given(values=VALUES, seed=st.integers(0, 100))
def test_only_the_order_of_predictions_matters(values: np.ndarray, seed: int) -> None:
    guess = np.random.default_rng(seed).permutation(len(values)).astype(float)
    stretched = 3.0 * guess**3 - 5.0
    assert pairwise_accuracy(guess, values) == pairwise_accuracy(stretched, values)
    assert best_at(guess, values, 2) == best_at(stretched, values, 2)


def test_a_model_that_says_nothing_scores_one_half() -> None:
    assert pairwise_accuracy(np.zeros(10), np.arange(10.0)) == 0.5


def test_equal_measurements_do_not_count() -> None:
    assert pairwise_accuracy([0, 1, 2], [1, 1, 2]) == 1.0
    assert pairwise_accuracy([0, 1], [5, 5]) == 1.0


def test_many_rows_are_sampled_close_to_the_exact_value() -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(size=6000)
    guess = truth + generator.normal(size=6000)
    halves = [pairwise_accuracy(guess[i::3], truth[i::3]) for i in range(3)]  # 2,000 rows each: exact
    assert pairwise_accuracy(guess, truth) == pytest.approx(np.mean(halves), abs=0.01)


def test_no_group_is_on_both_sides_of_a_split() -> None:
    groups = np.repeat(np.arange(7), 5)
    seen = []
    for train, held_out in group_splits(groups, 3):
        assert not set(groups[train]) & set(groups[held_out])
        seen += list(held_out)
    assert sorted(seen) == list(range(35))
    with pytest.raises(ValueError, match="two groups"):
        list(group_splits(np.zeros(5), 3))


@pytest.mark.parametrize("guess, truth", [([], []), ([1.0], [1.0, 2.0]), ([np.nan, 1.0], [1.0, 2.0])])
def test_scores_refuse_nothing_mismatch_and_nan(guess, truth) -> None:
    with pytest.raises(ValueError):
        pairwise_accuracy(guess, truth)
    with pytest.raises(ValueError):
        best_at(guess, truth, 1)
