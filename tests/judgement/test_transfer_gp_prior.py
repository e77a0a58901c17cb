"""Opinions on rows that nobody measured: put right by what is measured, trusted as they foretold it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haotuner.cost.model import Scores
from haotuner.transfer.device_table import Rows
from haotuner.transfer.gp_prior import GpPriors

ROWS = 60
APART = np.arange(float(ROWS))[:, np.newaxis] * 10  # places, none like another
ONE_TASK: Rows = np.zeros(ROWS, dtype=np.int64)


def drawn(seed: int, opinions: int = 3) -> tuple[list[Scores], Scores, Scores]:
    """Opinions, places and labels by chance."""
    rng = np.random.default_rng(seed)
    return [rng.normal(-1, 1, ROWS) for _ in range(opinions)], rng.normal(size=(ROWS, 4)), rng.normal(-1, 1, ROWS)


def beliefs(opinions: list[Scores], places: Scores = APART, tasks: Rows = ONE_TASK, spread: float = 1.0) -> GpPriors:
    return GpPriors(opinions, places, tasks, spread)


def test_before_any_measurement_all_are_trusted_alike_and_one_alone_names_its_best() -> None:
    opinions, places, _ = drawn(0)
    at_first = beliefs(opinions, places)
    assert at_first.probabilities() == pytest.approx(1 / 3)
    for place, said in enumerate(opinions):
        assert np.argmax(at_first.expected_improvement(place)) == np.argmax(at_first.prior(place)) == np.argmax(said)


@pytest.mark.parametrize("right", [0, 1])
def test_who_foretold_what_was_measured_is_trusted(right: int) -> None:
    labels = np.linspace(-4.0, 0.0, ROWS)
    found = beliefs([labels if place == right else labels[::-1] for place in range(2)])
    found.update([3, 40, 20], labels[[3, 40, 20]].tolist())
    assert found.probabilities()[right] > 0.9
    assert np.argmax(found.expected_improvement()) == ROWS - 1, "the best by the one that was right"


def test_one_very_bad_row_does_not_cost_an_opinion_all_trust() -> None:
    """W6600 of the public records: the analysis names the two best kernels and one a hundred times slower."""
    right = np.linspace(-2.0, 0.0, ROWS)
    labels, other = right.copy(), np.full(ROWS, -2.0)
    labels[50], other[50] = -9.0, -6.0
    found = beliefs([right, other])
    found.update([55, 57, 50], labels[[55, 57, 50]].tolist())
    assert found.probabilities()[0] > 0.6


def test_an_opinion_is_not_praised_for_rows_that_it_was_learnt_from() -> None:
    labels = np.linspace(-4.0, 0.0, ROWS)
    found = beliefs([labels, labels[::-1].copy()])
    found.update([3, 40, 20], labels[[3, 40, 20]].tolist(), judge=False)
    assert found.probabilities() == pytest.approx(0.5)


def test_an_opinion_that_is_off_by_a_level_loses_no_rank_by_it() -> None:
    """What is wrong with all rows alike is learnt from the first, and says nothing of the others."""
    labels = np.linspace(-4.0, 0.0, ROWS)
    found = beliefs([labels - 1.0, labels[::-1].copy()])
    found.update([3, 40, 20, 50], labels[[3, 40, 20, 50]].tolist())
    assert found.probabilities()[0] > 0.9


def test_a_bad_measurement_tells_of_programs_alike_and_of_no_others() -> None:
    places = np.array([[0.0], [0.02], [9.0], [-9.0]])
    said = np.array([0.0, -0.01, -0.1, -5.0])
    found = GpPriors([said], places, np.zeros(4, dtype=np.int64), 1.0)
    found.update([0, 3], [-2.0, -5.0])
    assert np.argmax(found.expected_improvement()) == 2, "not 1, which is as 0 was"
    assert found.prior(0)[1] == said[1], "bare opinions stay as they were given"


def test_measured_rows_are_out() -> None:
    opinions, places, labels = drawn(1)
    found = beliefs(opinions, places)
    found.update([5, 6], labels[[5, 6]].tolist())
    for worth in (found.expected_improvement(), found.expected_improvement(1), found.prior(2)):
        assert np.isneginf(worth[[5, 6]]).all() and np.isfinite(np.delete(worth, [5, 6])).all()


def test_each_task_has_its_own_best_to_beat() -> None:
    """A task whose kernels all reach less of the roofline would otherwise never be looked at."""
    said = np.array([0.0, -0.1, -3.0, -3.1])
    tasks = np.array([0, 0, 1, 1])
    found = GpPriors([said], np.arange(4.0)[:, np.newaxis] * 10, tasks, 1.0)
    found.update([0], [0.5])
    assert np.argmax(found.expected_improvement()) == 2


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([1e-3, 0.5, 40.0]), count=st.integers(1, 12))
def test_the_unit_of_labels_does_not_matter(seed: int, scale: float, count: int) -> None:
    opinions, places, labels = drawn(seed)
    rows = np.random.default_rng(seed).permutation(ROWS)[:count].tolist()
    plain, scaled = beliefs(opinions, places), beliefs([said * scale for said in opinions], places, spread=scale)
    plain.update(rows, labels[rows].tolist())
    scaled.update(rows, (labels[rows] * scale).tolist())
    assert scaled.probabilities() == pytest.approx(plain.probabilities(), rel=1e-5)
    free = np.delete(np.arange(ROWS), rows)
    assert scaled.expected_improvement()[free] == pytest.approx(
        plain.expected_improvement()[free] * scale, rel=1e-5, abs=scale * 1e-9
    )


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(2, 12))
def test_the_order_of_measurements_does_not_matter(seed: int, count: int) -> None:
    """The evidence is a likelihood, a chain of conditional ones, however it is cut. No row is very bad here."""
    opinions, places, labels = drawn(seed)
    rows = np.random.default_rng(seed).permutation(ROWS)[:count].tolist()
    forth, back = beliefs(opinions, places, spread=20.0), beliefs(opinions, places, spread=20.0)
    forth.update(rows, labels[rows].tolist())
    back.update(rows[::-1], labels[rows[::-1]].tolist())
    assert back.probabilities() == pytest.approx(forth.probabilities(), rel=1e-4, abs=1e-9)


def test_labels_that_are_all_alike_do_no_harm() -> None:
    found = beliefs([np.full(ROWS, -2.0)], np.zeros((ROWS, 1)), spread=0.0)
    found.update([0, 1], [-2.0, -2.0])
    assert np.isfinite(found.expected_improvement()[2:]).all() and found.probabilities() == pytest.approx(1.0)
