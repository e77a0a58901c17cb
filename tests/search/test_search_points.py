"""Which times a started search takes next: those its best plan rests on, and near rivals of what it knows."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from haotuner.cost.model import Analytic, CostModel, Scores
from haotuner.plan.cover import sketch
from haotuner.search.observations import ObservationTable
from haotuner.search.probes import probe
from haotuner.search.propose import FEW, OPTIMISM, POINTS, next_points, rests_on
from haotuner.search.row_cover_search import patience
from haotuner.search.task import Effort
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.record import Record, Timed, Trial
from tests.search.fake_lab import CORE, FAMILY, TASK, FakeLab

EFFORT = Effort()
ROWS = np.array([shape["m"] for shape in TASK.traffic.shapes()], np.int64)
SHARES = np.array([weight for _, weight in TASK.traffic], np.float64)
KERNELS = [kernel for kernel in FAMILY.points(TASK.op, CORE) if kernel["pw"] == 32][:40]
NAMES = [kernel.name for kernel in KERNELS]
TWO = [k for width in (16, 32) for k in [k for k in FAMILY.points(TASK.op, CORE) if k["pw"] == width][::46]]
TWO_NAMES = [kernel.name for kernel in TWO]


class Sure(Analytic):
    """The analytic rule, given out as known to within a fixed spread."""

    def __init__(self, spread: float) -> None:
        self._spread = spread

    def spread(self, frame: pd.DataFrame) -> Scores:
        return np.full(len(frame), self._spread)

    def fit(self, frame: pd.DataFrame, log_efficiency: ArrayLike, weights: ArrayLike | None = None) -> Sure:
        return self


def book(model: CostModel | None, kernels: Sequence[MicroKernel] = KERNELS) -> ObservationTable:
    probes = [probe(kernel, TASK.op, FAMILY, CORE, 256, cache="cold") for kernel in kernels]
    return ObservationTable(TASK.op, FAMILY, CORE, probes, cache="cold", seed=0, model=model)


def take(known: ObservationTable, trials: Sequence[Trial], slower: float = 1.0) -> None:
    """Time trials as predicted, or so many times slower."""
    leads = {name: [t for _, t in known.probes[name].lead] for name in {trial.kernel for trial in trials}}
    at = {t.key(): us for name, lead in leads.items() for t, us in zip(lead, said(known, name), strict=True)}
    for trial in trials:
        outcome = Timed(samples_us=(at[trial.key()] * slower,))
        known.note(Record(trial=trial, outcome=outcome, device_id=CORE.id, fingerprint="f", session="s", when=0.0))


def said(known: ObservationTable, name: str) -> list[float]:
    """What the model says of the leading trials, whatever was measured."""
    fresh = copy.copy(known)
    fresh.us = {}
    [curve] = fresh.curves([name])
    return [us for _, us in curve.lead_us]


def asked_until_quiet(known: ObservationTable, most: int = 200) -> int:
    """How many trials it asks for until it asks for none, every one as fast as predicted."""
    count = 0
    while batch := next_points(known, NAMES, ROWS, SHARES):
        take(known, [trial for trials in batch.values() for trial in trials])
        count += sum(map(len, batch.values()))
        assert count <= most
    return count


def open_at(known: ObservationTable, optimism: float) -> list[Trial]:
    """What the best plan rests on and nobody timed."""
    return known.open(rests_on(sketch(known.layouts(NAMES, -optimism), ROWS, SHARES), known.probes, ROWS, SHARES))


@given(st.sets(st.sampled_from(range(1, len(KERNELS))), max_size=12))
def test_a_plan_rests_on_leading_trials_of_its_kernels_with_all_of_the_traffic(chosen: set[int]) -> None:
    known = book(None)
    names = [next(k.name for k in KERNELS if k["mr"] == 1), *(NAMES[i] for i in sorted(chosen))]
    curves = known.curves(list(dict.fromkeys(names)))
    shares = rests_on(curves, known.probes, ROWS, SHARES)
    assert sum(shares.values()) == pytest.approx(SHARES.sum())
    leads = {trial for curve in curves for _, trial in known.probes[curve.kernel].lead}
    assert set(shares) <= leads and min(shares.values()) > 0


def test_between_two_points_of_a_curve_the_nearer_counts_more() -> None:
    known = book(None)
    name = next(k.name for k in KERNELS if k["mr"] == 1)
    curves = known.curves([name])
    at = [tiles for tiles, _ in known.probes[name].lead]
    low, high = at[1], at[2]
    row = np.array([low + (high - low) // 4])
    shares = {trial.shape["m"]: share for trial, share in rests_on(curves, known.probes, row, np.array([1.0])).items()}
    assert set(shares) == {low, high} and shares[low] > 0.7 and shares[high] == pytest.approx(1 - shares[low])


def test_a_round_is_small_and_begins_with_a_kernel_of_one_row() -> None:
    known = book(Sure(0.1))
    batch = next_points(known, NAMES, ROWS, SHARES)
    assert 0 < sum(map(len, batch.values())) <= POINTS
    assert known.probes[next(iter(batch))].kernel["mr"] == 1
    assert all(trial.key() not in known.us for trials in batch.values() for trial in trials)


def test_a_kernel_is_timed_where_the_plan_would_use_it_and_not_at_its_whole_probe() -> None:
    known = book(Sure(0.02))
    asked_until_quiet(known)
    timed = {
        name: len(leads) - len(known.open(leads)) for name in NAMES for leads in [[t for _, t in known.probes[name].lead]]
    }
    assert any(0 < count < len(known.probes[name].lead) for name, count in timed.items())
    assert not any(known.probes[name].follow.key() in known.us for name in NAMES)


def test_the_less_sure_the_model_is_the_more_rivals_are_tried() -> None:
    counts = [asked_until_quiet(book(Sure(spread)), most=4 * len(NAMES)) for spread in (0.0, 0.02, 0.1)]
    assert 0 < counts[0] < counts[1] < counts[2]


def test_once_the_plan_is_nearly_measured_bolder_rivals_are_tried() -> None:
    known, before = book(Sure(0.1)), 0
    while len(left := open_at(known, OPTIMISM)) >= FEW:
        take(known, [trial for trials in next_points(known, NAMES, ROWS, SHARES).values() for trial in trials])
        assert len(known.us) > before
        before = len(known.us)
    proposed = {trial for trials in next_points(known, NAMES, ROWS, SHARES).values() for trial in trials}
    assert set(left) < proposed and len(proposed) <= POINTS


def widths(known: ObservationTable, names: Sequence[str]) -> set[int]:
    """Panel widths of kernels."""
    return {known.probes[name].kernel["pw"] for name in names}


def test_a_layout_is_chosen_by_what_is_expected_and_its_kernels_by_what_may_be() -> None:
    known = book(Sure(0.4), TWO)
    batch = next_points(known, TWO_NAMES, ROWS, SHARES)
    [first] = widths(known, list(batch))
    take(known, [trial for trials in batch.values() for trial in trials])
    hoped = sketch(known.layouts(TWO_NAMES, -OPTIMISM), ROWS, SHARES)
    assert widths(known, [c.kernel for c in hoped]) != {first}, "hope would leave the layout that was as fast as predicted"
    batch = next_points(known, TWO_NAMES, ROWS, SHARES)
    assert widths(known, list(batch)) == {first} and sum(map(len, batch.values())) >= FEW


def test_a_layout_that_disappoints_is_left() -> None:
    known = book(Sure(0.1), TWO)
    batch = next_points(known, TWO_NAMES, ROWS, SHARES)
    first = widths(known, list(batch))
    for name in (name for name in TWO_NAMES if widths(known, [name]) == first):
        take(known, [trial for _, trial in known.probes[name].lead], slower=1.5)
    assert widths(known, list(next_points(known, TWO_NAMES, ROWS, SHARES))).isdisjoint(first)


def test_no_layout_is_forgotten_once_the_expected_one_is_nearly_measured() -> None:
    known = book(Sure(0.3), TWO)
    seen: set[int] = set()
    while (batch := next_points(known, TWO_NAMES, ROWS, SHARES)) and len(seen) < 2:
        seen |= widths(known, list(batch))
        take(known, [trial for trials in batch.values() for trial in trials])
    assert seen == {16, 32}


def test_a_sure_model_that_was_right_asks_for_nothing_once_its_plan_has_its_times() -> None:
    known = book(Sure(0.0))
    asked_until_quiet(known)
    curves = sketch(known.layouts(NAMES), ROWS, SHARES)
    assert all(trial.key() in known.us for trial in rests_on(curves, known.probes, ROWS, SHARES))


def test_what_was_measured_is_not_doubted() -> None:
    known = book(Sure(0.3))
    name = NAMES[0]
    take(known, [trial for _, trial in known.probes[name].lead])
    by_doubt = [known.curves([name], doubt)[0].lead_us for doubt in (-1.0, 0.0, EFFORT.caution)]
    assert by_doubt[0] == by_doubt[1] == by_doubt[2]
    other = [known.curves([NAMES[1]], doubt)[0].lead_us[0][1] for doubt in (-1.0, 0.0, EFFORT.caution)]
    assert other[0] < other[1] < other[2]


def test_a_model_without_a_spread_is_taken_at_its_word() -> None:
    known = book(None)
    assert known.curves(NAMES, -1.0) == known.curves(NAMES) == known.curves(NAMES, EFFORT.caution)


def test_kernels_without_a_one_row_tile_ask_for_nothing() -> None:
    known = book(Sure(0.1))
    assert next_points(known, [k.name for k in KERNELS if k["mr"] > 1], ROWS, SHARES) == {}


def test_a_failed_kernel_is_not_asked_for_again() -> None:
    lab = FakeLab(CORE, fails=lambda kernel: kernel["mr"] == 4)
    known = book(Sure(0.2))
    for _ in range(30):
        batch = next_points(known, NAMES, ROWS, SHARES)
        assert not set(batch) & known.failed
        for trials in batch.values():
            for record in lab.measure(trials):
                known.note(record)


def test_the_further_off_a_start_may_be_the_longer_its_search_is_patient() -> None:
    near, usual, far = (patience(book(Sure(spread)), EFFORT) for spread in (0.05, 0.15, 0.3))
    assert patience(book(None), EFFORT) == EFFORT.quiet_rounds < near == usual
    assert far == 4 * usual and patience(book(Analytic()), EFFORT) == usual, "a model that does not say is taken at its word"
