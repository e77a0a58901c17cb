"""The cover: the best few kernels of one layout, checked against looking at every subset."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from haotuner.plan.compose import Curve, best_us, covers_every
from haotuner.plan.cover import MAX_KEPT, PENALTY, cover
from tests.plan.plan_examples import curve, curves

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def objective(chosen: Sequence[Curve], everything: Sequence[Sequence[Curve]], rows: Ints, weights: Floats) -> float:
    unlimited = np.min([best_us(layout, rows)[0] for layout in everything], axis=0)
    return float(weights @ (best_us(chosen, rows)[0] / unlimited) ** 2) + PENALTY * len(chosen)


def best_subset(layouts: Sequence[Sequence[Curve]], rows: Ints, weights: Floats) -> float:
    """The least objective over every subset of at most MAX_KEPT kernels of one layout."""
    return min(
        objective(subset, layouts, rows, weights)
        for layout in layouts
        for size in range(1, MAX_KEPT + 1)
        for subset in combinations(layout, size)
        if any(covers_every(c) for c in subset)
    )


_ODD = [
    Curve.of("cpu_dense_fp32__mr1_id0", 1, {1: 1.0}, 1.0),
    Curve.of("cpu_dense_fp32__mr3_id1", 3, {1: 1.0}, 1.0),
    Curve.of("cpu_dense_fp32__mr5_id2", 5, {1: 2.0}, 1.0),
    Curve.of("cpu_dense_fp32__mr6_id3", 6, {1: 2.0}, 1.0),
]
# Five rows: two tiles of the third before three of the first. The third is best nowhere else, alone, in bulk or behind.
_MIDDLING = [
    Curve.of("cpu_dense_fp32__mr1_id0", 1, {1: 1.0, 2: 3.0, 3: 3.0}, 0.5),
    Curve.of("cpu_dense_fp32__mr1_id1", 1, {1: 2.0, 3: 3.0}, 1.0),
    Curve.of("cpu_dense_fp32__mr1_id2", 1, {1: 1.0}, 1.0),
    Curve.of("cpu_dense_fp32__mr1_id3", 1, {1: 0.5}, 2.0),
]


@settings(max_examples=25, deadline=None)
@example(first=_MIDDLING, second=_ODD[:1], rows=[5])
@example(first=_ODD, second=_ODD[:1], rows=[1, 28])  # six rows once, twice more, five twice: no region as long as it can be
@given(
    first=curves(least=2, most=5),
    second=curves(most=4),
    rows=st.lists(st.integers(1, 64), min_size=1, max_size=8, unique=True),
)
def test_no_subset_of_any_layout_is_better(first: list[Curve], second: list[Curve], rows: list[int]) -> None:
    m, weights = np.array(sorted(rows)), np.full(len(rows), 1 / len(rows))
    chosen = cover({(32,): first, (64,): second}, m, weights)
    assert any(set(chosen.curves) <= set(layout) for layout in (first, second))
    assert any(covers_every(c) for c in chosen.curves)
    own = objective(chosen.curves, [first, second], m, weights)
    assert own <= best_subset([first, second], m, weights) * (1 + 1e-3)  # the gap of the solver and of its shortlists
    assert chosen.objective_us == pytest.approx(float(weights @ best_us(chosen.curves, m)[0]))
    assert chosen.unlimited_us <= chosen.objective_us * (1 + 1e-12) and chosen.regret >= -1e-12


def test_a_kernel_that_gains_less_than_its_price_is_left_out() -> None:
    rows, weights = np.arange(1, 65), np.full(64, 1 / 64)
    one_row, four_rows = curve("mr1", 1, 3.0), curve("mr4", 4, 4.0)
    eight_rows = curve("mr8", 8, 7.999)  # gains 0.0125 % where two tiles of four also fit
    chosen = cover({(16,): [one_row, four_rows, eight_rows]}, rows, weights)
    assert {c.rows for c in chosen.curves} == {1, 4}
    worth_it = curve("mr8", 8, 7.0)
    assert {c.rows for c in cover({(16,): [one_row, four_rows, worth_it]}, rows, weights).curves} == {1, 4, 8}


def test_one_shape_far_behind_is_worse_than_all_a_little_behind() -> None:
    rows, weights = np.array([2, 4]), np.array([0.5, 0.5])
    least = Curve.of("cpu_dense_fp32__mr2", 2, {1: 1.0, 2: 1.0}, 9.0)
    uneven = Curve.of("cpu_dense_fp32__mr1", 1, {1: 1.0, 2: 1.0, 4: 1.25}, 9.0)
    even = Curve.of("cpu_dense_fp32__mr1_id2", 1, {1: 1.0, 2: 1.13, 4: 1.13}, 9.0)  # 13 % behind in the mean, not 12.5
    assert cover({(16,): [least], (32,): [uneven], (64,): [even]}, rows, weights).curves == (even,)


def test_equal_kernels_are_kept_once() -> None:
    rows, weights = np.arange(1, 33), np.full(32, 1 / 32)
    same = [curve(f"mr4_id{i}", 4, 4.0) for i in range(3)]
    chosen = cover({(16,): [curve("mr1", 1, 3.0), *same]}, rows, weights)
    assert sorted(c.rows for c in chosen.curves) == [1, 4]


def test_a_layout_without_a_one_row_kernel_is_not_chosen_but_counts_for_the_regret() -> None:
    rows, weights = np.array([4, 8]), np.array([0.5, 0.5])
    fast = [curve("mr4", 4, 1.0)]
    slow = [curve("mr1", 1, 3.0), curve("mr4_id2", 4, 4.0)]
    chosen = cover({(16,): fast, (32,): slow}, rows, weights)
    assert set(chosen.curves) == set(slow)  # the one row is never needed here, but any m must be served
    assert chosen.regret > 0


def test_no_layout_that_covers_every_m_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="a one-row kernel is needed"):
        cover({(16,): [curve("mr4", 4, 1.0)], (32,): []}, np.array([3]), np.array([1.0]))


def test_no_more_than_the_limit_is_kept_and_small_shapes_are_not_drowned() -> None:
    rows = np.unique(np.geomspace(1, 2048, 60).astype(np.int64))
    weights = np.full(len(rows), 1 / len(rows))
    layout = [curve(f"mr{mr}", mr, 2.0 + mr * (1.0 - 0.02 * mr)) for mr in range(1, 25)]
    chosen = cover({(16,): layout}, rows, weights)
    assert len(chosen.curves) <= MAX_KEPT < len(layout)
    slow_down = best_us(chosen.curves, rows)[0] / best_us(layout, rows)[0]
    assert slow_down.max() < 1.5 and float(np.mean(slow_down)) < 1.06  # all kernels would be 1
    assert slow_down[rows >= 512].max() < 1.01


def test_the_answer_does_not_depend_on_the_order_of_kernels() -> None:
    rows, weights = np.arange(1, 40), np.full(39, 1 / 39)
    layout = [curve(f"mr{mr}", mr, 2.0 + mr * (1.0 - 0.03 * mr)) for mr in range(1, 9)]
    assert set(cover({(16,): layout}, rows, weights).curves) == set(cover({(16,): layout[::-1]}, rows, weights).curves)
