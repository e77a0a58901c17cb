"""Compositions: every m covered exactly with at most three regions, at the least cost; curves that only rise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haotuner.plan.compose import BACK, BEHIND, Curve, alternatives, best_us, choose
from haotuner.spec.composition import MAX_REGIONS
from tests.plan.plan_examples import TIME, all_compositions_us, curve, curves

MR = {1: "mr1", 4: "mr4", 6: "mr6"}


@settings(max_examples=60, deadline=None)
@given(known=curves(highest=16), rows=st.lists(st.integers(1, 5000), min_size=1, max_size=20))
def test_every_m_is_covered_exactly_by_at_most_three_regions(known: list[Curve], rows: list[int]) -> None:
    height = {c.kernel: c.rows for c in known}
    for m, planned in zip(rows, choose(known, rows, "m"), strict=True):
        parts = planned.composition.parts
        assert sum(tiles * height[kernel] for kernel, tiles in parts) == m
        assert 1 <= len(parts) <= MAX_REGIONS and all(tiles >= 1 for _, tiles in parts)
        assert len({kernel for kernel, _ in parts}) == len(parts)
        assert np.isfinite(planned.us) and planned.us > 0
        assert planned.composition.share == "m"


@settings(max_examples=60, deadline=None)
@given(known=curves(most=4), m=st.integers(1, 60))
def test_the_cost_is_the_least_of_all_that_are_looked_at(known: list[Curve], m: int) -> None:
    (planned,) = choose(known, [m])
    assert planned.us == pytest.approx(all_compositions_us(known, m), rel=1e-9)
    assert best_us(known, np.array([m]))[0][0] == planned.us


@settings(max_examples=60, deadline=None)
@given(known=curves(most=4), m=st.integers(1, BACK + 1))
def test_small_shapes_have_the_least_cost_of_all_compositions(known: list[Curve], m: int) -> None:
    # A leader that gives up at most BACK of at most BACK+1 tiles has tried everything.
    assert choose(known, [m])[0].us == pytest.approx(all_compositions_us(known, m, back=None), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(known=curves(), m=st.integers(1, 400), count=st.integers(1, 8))
def test_alternatives_are_different_exact_and_sorted_and_begin_with_the_choice(
    known: list[Curve], m: int, count: int
) -> None:
    height = {c.kernel: c.rows for c in known}
    plans = alternatives(known, m, count)
    assert 1 <= len(plans) <= count
    assert len({planned.composition for planned in plans}) == len(plans)
    assert [c.us for c in plans] == sorted(c.us for c in plans)
    assert plans[0].us == pytest.approx(choose(known, [m])[0].us, rel=1e-12)
    assert all(sum(tiles * height[kernel] for kernel, tiles in p.composition.parts) == m for p in plans)


def test_a_worked_example() -> None:
    one_row, four_rows, six_rows = curve("mr1", 1, 3.0), curve("mr4", 4, 6.0), curve("mr6", 6, 8.0)
    chosen = choose([one_row, four_rows, six_rows], [1, 4, 10, 11, 16])
    parts = [{k.partition("__")[2]: t for k, t in planned.composition.parts} for planned in chosen]
    # 10 = 6 + 4; 11 = 6 + 4 + 1; 16 = 2 x 6 + 4
    assert parts == [{"mr1": 1}, {"mr4": 1}, {"mr6": 1, "mr4": 1}, {"mr6": 1, "mr4": 1, "mr1": 1}, {"mr6": 2, "mr4": 1}]
    assert [planned.us for planned in choose([one_row, four_rows, six_rows], [10, 11])] == [14.0, 17.0]


def test_the_leader_gives_up_tiles_when_that_is_cheaper() -> None:
    # 13 rows: 2 x 6 + 1 pays 20 for the last row, 6 + 7 as one tile of 7 pays 9.
    known = [curve("mr1", 1, 20.0), curve("mr6", 6, 8.0), curve("mr7", 7, 9.0)]
    (planned,) = choose(known, [13])
    assert planned.us == 17.0 and {tiles for _, tiles in planned.composition.parts} == {1}


def test_rows_that_no_tiles_add_up_to_are_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match=r"m=5 cannot be covered exactly by row tiles of \[4\]"):
        choose([curve("mr4", 4, 1.0)], [4, 5])
    assert alternatives([curve("mr4", 4, 1.0)], 5, 3) == []


def test_ties_are_broken_the_same_way_whatever_the_order_asked() -> None:
    known = [curve("mr1", 1, 1.0), curve("mr2", 2, 2.0), curve("mr4", 4, 4.0)]
    rows = list(range(1, 50))
    straight = choose(known, rows)
    assert straight == list(reversed(choose(known, rows[::-1])))


@settings(max_examples=100)
@given(points=st.dictionaries(st.integers(1, 300), TIME, min_size=1, max_size=8), follow=TIME)
def test_a_curve_never_falls_and_stays_under_its_points(points: dict[int, float], follow: float) -> None:
    curve = Curve.of("k", 4, points, follow)
    tiles = np.arange(1, 700)
    us = curve.lead(tiles)
    assert (np.diff(us) >= -1e-9).all() and (us > 0).all()
    assert (np.diff(curve.follow(tiles)) > 0).all()
    assert all(us[t - 1] <= point + 1e-9 for t, point in points.items())
    assert us[max(points) - 1] == pytest.approx(points[max(points)])  # the last point is never changed


def test_a_curve_never_goes_on_cheaper_than_a_following_tile() -> None:
    """Two noisy points said that 24 more tiles cost next to nothing."""
    curve = Curve.of("a", 4, {8: 99.0, 32: 100.0}, 10.0)
    more = curve.lead(np.array([32, 132]))
    assert more[0] == 100.0 and more[1] == pytest.approx(100.0 + 100 * BEHIND * 10.0)


def test_a_curve_through_rising_points_is_exact_straight_between_and_goes_on_with_its_last_slope() -> None:
    curve = Curve.of("k", 4, {2: 10.0, 4: 14.0, 8: 30.0}, 3.0)
    assert curve.lead(np.array([1, 2, 3, 4, 6, 8, 10])).tolist() == [10.0, 10.0, 12.0, 14.0, 22.0, 30.0, 38.0]
    assert Curve.of("k", 4, {2: 10.0}, 3.0).lead(np.array([1, 2, 4])).tolist() == [10.0, 10.0, 20.0]
    assert Curve.of("k", 4, {1: 9.0, 2: 5.0, 3: 7.0}, 1.0).lead_us == ((1, 5.0), (2, 5.0), (3, 7.0))
