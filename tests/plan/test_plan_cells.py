"""Plans over several dynamic axes: which kernels are kept, which cell has which, and that every shape has one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haotuner.hw_profiles.find import find_device
from haotuner.microkernels.index import families_for
from haotuner.plan.assign import PRICE, assign, assign_within
from haotuner.plan.cover import PENALTY, POWER
from haotuner.plan.table import MOST_CELLS, NARROW_CELLS, CostExtrapolator, cell_table
from haotuner.search.cost_extrapolation import extrapolated
from haotuner.search.task import Task
from haotuner.spec.composition import Composition
from haotuner.spec.family import Form
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from haotuner.spec.traffic import Traffic

WIDE, TALL = Composition.of("wide"), Composition.of("tall")


def objective(us: np.ndarray, shares: np.ndarray, chosen: tuple[int, ...]) -> float:
    return float((shares * (us[list(chosen)].min(axis=0) / us.min(axis=0)) ** POWER).sum() + PENALTY * len(chosen))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_the_kept_kernels_are_the_best_of_all_sets(seed: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    us, shares = np.exp(rng.normal(0, 0.3, (5, 6))), np.full(6, 1 / 6)
    chosen = assign(us, shares, most)
    every = [objective(us, shares, subset) for size in range(1, most + 1) for subset in combinations(range(5), size)]
    assert 1 <= len(chosen) <= most and objective(us, shares, tuple(chosen)) <= min(every) * (1 + 2e-4)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_memory_of_further_forms_of_the_weight_is_paid_for_once_each(seed: int) -> None:
    rng = np.random.default_rng(seed)
    us, shares = np.exp(rng.normal(0, 0.1, (5, 6))), np.full(6, 1 / 6)
    forms = [None, Form(2, 4.0), Form(2, 4.0), Form(4, 9.0), Form(1, 1.0)]

    def priced(chosen: tuple[int, ...]) -> float:
        return objective(us, shares, chosen) + PRICE * sum(
            form.size for form in {forms[at] for at in chosen} if form is not None
        )

    every = [priced(subset) for size in range(1, 6) for subset in combinations(range(5), size)]
    assert priced(tuple(assign(us, shares, 5, forms))) <= min(every) * (1 + 2e-4)


def test_a_form_of_many_times_the_weight_must_be_worth_it() -> None:
    """Eleven times the weight for 2 % of the time is not; for a tenth it is."""
    plain, shares, eleven = [1.0, 1.0], np.ones(2) / 2, [None, Form(6, 11.0)]
    assert assign(np.array([plain, [0.98, 0.98]]), shares) == [1]
    assert assign(np.array([plain, [0.98, 0.98]]), shares, forms=eleven) == [0]
    assert assign(np.array([plain, [0.90, 0.90]]), shares, forms=eleven) == [1]


def test_a_shape_that_nobody_serves_is_told() -> None:
    with pytest.raises(ValueError, match="1 of 2 shapes"):
        assign(np.array([[1.0, np.inf], [2.0, np.inf]]), np.ones(2) / 2)


def test_kernels_of_one_group_are_kept_that_together_lose_least() -> None:
    us = np.array([[1.0, 9.0], [9.0, 1.0], [1.5, 1.6]])
    assert assign_within("aab", us, np.ones(2) / 2) == [0, 1] and assign_within("abc", us, np.ones(2) / 2) == [2]


def times() -> dict[Shape, dict[Composition, float]]:
    """Wide is better where n is larger than m."""
    by_shape = {}
    for m in (1, 8, 64, 512):
        for n in (1, 8, 64, 512):
            by_shape[Shape.of(m=m, n=n)] = {WIDE: 1.0 + m, TALL: 1.0 + n}
    return by_shape


def test_each_cell_has_what_is_best_around_it() -> None:
    table = cell_table(1, ("m", "n"), times(), {shape: 1.0 for shape in times()})
    assert table.at(Shape.of(m=2, n=300)) == WIDE and table.at(Shape.of(m=300, n=2)) == TALL
    assert table.regret_mean <= table.regret_max < 0.02


@given(st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1))
def test_every_shape_has_an_entry(m: int, n: int) -> None:
    table = cell_table(1, ("m", "n"), times(), {})
    assert table.at(Shape.of(m=m, n=n)) in (WIDE, TALL)
    assert len(table.entries) == np.prod([len(bounds) for bounds in table.bounds.values()]) <= MOST_CELLS


def test_a_tie_goes_to_one_composition_everywhere() -> None:
    level = {shape: {WIDE: 1.0 + 0.005 * (shape["m"] % 2), TALL: 1.005} for shape in times()}
    assert set(cell_table(1, ("m", "n"), level, {}).entries) == {TALL}


def test_without_times_there_is_no_plan() -> None:
    with pytest.raises(ValueError, match="no shape was timed"):
        cell_table(1, ("m",), {}, {})


def test_one_axis_is_a_table_too() -> None:
    by_shape = {Shape.of(m=m): {WIDE: 1.0 + m, TALL: 10.0} for m in (1, 4, 16, 64, 256)}
    table = cell_table(2, ("m",), by_shape, {})
    assert [table.at(Shape.of(m=m)) for m in (1, 3, 100, 10**6)] == [WIDE, WIDE, TALL, TALL] and table.threads == 2


def whole_tiles(sizes: dict[Composition, int]) -> CostExtrapolator:
    """Times that follow the pixels which tiles of these sizes compute."""

    def expected(compositions: Sequence[Composition], shapes: Sequence[Shape]) -> np.ndarray:
        pixels = np.array([shape["b"] * shape["w"] for shape in shapes])
        return np.array([-(-pixels // sizes[composition]) * sizes[composition] * 1.0 for composition in compositions])

    return CostExtrapolator({"b": (1, 4), "w": (3, 200)}, expected)


def test_pixels_that_end_beyond_a_tile_are_known_where_nothing_was_timed() -> None:
    sizes = {WIDE: 48, TALL: 32}
    carried = whole_tiles(sizes)
    shapes = [Shape.of(b=b, w=w) for b, w in ((1, 48), (1, 192), (4, 24), (2, 120))]
    us = carried.expected([WIDE, TALL], shapes) * [[0.9], [1.0]]  # full tiles of the wide one are a tenth faster
    by_shape = {shape: dict(zip((WIDE, TALL), row, strict=True)) for shape, row in zip(shapes, us.T.tolist(), strict=True)}
    table = cell_table(1, ("b", "w"), by_shape, {}, carried=carried)
    assert [table.at(Shape.of(b=1, w=w)) for w in (30, 48, 60, 90)] == [TALL, WIDE, TALL, WIDE]
    assert len(table.entries) == np.prod([len(bounds) for bounds in table.bounds.values()]) <= NARROW_CELLS
    alone = {shape: {WIDE: times[WIDE]} for shape, times in by_shape.items()}
    assert cell_table(1, ("b", "w"), alone, {}, carried=carried).entries == (WIDE,)  # cells that nothing parts are one


def test_three_axes_have_more_cells_of_predictions_than_two() -> None:
    device = find_device("h200")
    cells = {}
    cases = (
        ("softmax:", Shape.of(m=8, n=64)),
        ("attention:d=64", Shape.of(b=2, t=9, s=30)),
        ("batch_matmul:layout=nn", Shape.of(b=2, m=9, n=30, k=8)),
    )
    for text, shape in cases:
        op = Op.parse(text)
        task = Task(op=op, traffic=Traffic.of([(shape, 1.0)]), budget_s=0.0)
        costs = extrapolated(task, device, families_for(op, "cuda"), None)
        assert costs is not None
        cells[text] = costs.cells
        assert all(len(position) == len(op.dynamic) for position in costs.positions)
    assert cells["attention:d=64"] >= 8**3 and cells["softmax:"] >= 8**2
    assert cells["batch_matmul:layout=nn"] == cells["attention:d=64"]
