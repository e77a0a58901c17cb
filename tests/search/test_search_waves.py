"""The search by waves on a fake GPU whose surface is known: the plan against brute force, failures, stops, resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import cast

import numpy as np
import pytest

from haotuner.errors import HaotunerError
from haotuner.plan.grids import MOST_CELLS, Grid, alone, bounds, pairs
from haotuner.plan.table import CellTable
from haotuner.search.cell_planning import way_of, weighed
from haotuner.search.latency_table import Floats, Key, LatencyTable
from haotuner.spec.composition import SERIAL, Composition, sum_parts
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.shape import ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.tuning.strategies import Tuned, tune
from tests.search.fake_gpu_lab import FAMILIES, GPU, OP, TASK, FakeGpuLab, true_us

PARTS = (1, 2, 3, 4, 6, 8, 12, 16)
MMA = tuple(family for family in FAMILIES if "mma" in family.name)
SMALL = replace(TASK, traffic=Traffic.of_range(ShapeRange.parse("m=1..192"), samples=12))


@cache
def run() -> tuple[Tuned, FakeGpuLab]:
    lab = FakeGpuLab()
    return tune(TASK, lab.as_lab(), FAMILIES), lab


def the_table(tuned: Tuned) -> CellTable:
    (table,) = tuned.tables
    assert isinstance(table, CellTable)
    return table


@pytest.mark.long
def test_one_search_looks_at_all_families_and_the_plan_is_near_brute_force() -> None:
    tuned, lab = run()
    assert tuned.strategy == "waves" and len(FAMILIES) >= 2
    assert {MicroKernel.parse(trial.composition.parts[0].kernel).family for trial in lab.measured} == {
        f.name for f in FAMILIES
    }
    table = the_table(tuned)
    grids = [
        Grid.of(c.kernel, next(f for f in FAMILIES if f.name == c.kernel.family), OP, GPU) for c in tuned.funnel.candidates
    ]
    slower = []
    for shape, share in TASK.traffic:
        m = shape["m"]
        every = [true_us(OP, composition, m) for grid in grids for composition in alone(grid, m, PARTS)]
        slower.append((true_us(OP, table.at(shape), m) / min(every), share))
    mean = float(np.exp(sum(np.log(ratio) * share for ratio, share in slower)))
    assert mean <= 1.03, f"{mean:.4f}, worst {max(slower)}"
    assert tuned.measured < 0.6 * len(tuned.funnel.candidates), "the search measured as much as brute force would"


def test_parts_of_the_sum_are_used_where_the_grid_is_short_and_every_way_is_shown() -> None:
    table = the_table(run()[0])
    small = [entry for end, entry in zip(table.bounds["m"], table.entries, strict=True) if end <= 256]
    assert any(sum_parts(entry.share) > 1 for entry in small)
    assert len(table.considered) == len(table.entries)
    for entry, considered in zip(table.entries, table.considered, strict=True):
        assert considered[0].composition == entry
        assert len({candidate.way for candidate in considered}) == len(considered)
    assert any(candidate.measured for considered in table.considered for candidate in considered)


def test_batch_invariance_keeps_the_sum_whole() -> None:
    tuned = tune(replace(SMALL, one_order=True), FakeGpuLab().as_lab(), MMA)
    assert all(entry.share == SERIAL for entry in the_table(tuned).entries)


def test_failed_kernels_are_left_out_and_the_run_goes_on() -> None:
    lab = FakeGpuLab(fails=lambda kernel: "mma" in kernel.family and kernel["bm"] >= 64)
    tuned = tune(SMALL, lab.as_lab(), MMA)
    used = {part.kernel for entry in the_table(tuned).entries for part in entry.parts}
    assert lab.failures["crash"] > 0 and used
    assert not any("mma" in name and MicroKernel.parse(name)["bm"] >= 64 for name in used)
    broken = FakeGpuLab(fails=lambda _: True)
    with pytest.raises(HaotunerError, match="every candidate failed"):
        tune(SMALL, broken.as_lab(), MMA)


@pytest.mark.long
def test_a_run_without_time_still_plans_and_one_that_is_resumed_measures_nothing_twice() -> None:
    hasty = tune(replace(SMALL, budget_s=0.0), FakeGpuLab().as_lab(), MMA)
    assert hasty.stopped == "budget" and 0 < hasty.measured <= TASK.effort.least_kernels and the_table(hasty).entries
    lab, again = FakeGpuLab(), FakeGpuLab()
    first = tune(SMALL, lab.as_lab(), MMA)
    again.store = dict(lab.store)
    repeated = tune(SMALL, again.as_lab(), MMA)
    assert not again.measured
    assert the_table(repeated).entries == the_table(first).entries


def test_a_given_up_run_ends_with_a_plan() -> None:
    seen = iter(range(10**9))
    stopped = tune(SMALL, FakeGpuLab().as_lab(), MMA, lambda phase, record: next(seen) < 40)
    assert stopped.stopped == "signal" and the_table(stopped).entries


def test_cells_end_where_some_grid_grows_and_cover_the_traffic() -> None:
    grids = [
        Grid(kernel="a__x1", rows=64, across=12, slots=108, steps=16),
        Grid(kernel="b__x1", rows=16, across=12, slots=216, steps=16),
    ]
    ends = bounds(grids, 1, 700)
    assert ends[-1] == 700 and list(ends) == sorted(set(ends)) and {16, 64, 128, 192} <= set(ends)
    assert len(bounds([replace(grids[0], rows=1)], 1, 100_000)) <= MOST_CELLS + 1
    for low, high in zip((0, *ends), ends, strict=False):
        assert all(grid.tiles(low + 1) == grid.tiles(high) for grid in grids)


def test_compositions_cover_every_extent_once() -> None:
    grids = [
        Grid(kernel="a__x1", rows=64, across=12, slots=108, steps=16),
        Grid(kernel="b__x1", rows=16, across=12, slots=216, steps=16),
    ]
    for m in (1, 15, 16, 63, 64, 65, 576, 577, 1000):
        for composition in (*alone(grids[0], m, PARTS), *pairs(grids, m)):
            boxes = composition.boxes({"a__x1": 64, "b__x1": 16}.__getitem__, {"m": m})
            spans = [box.box["m"] for box in boxes]
            assert (
                spans[0][0] == 0 and spans[-1][1] == m and all(a[1] == b[0] for a, b in zip(spans, spans[1:], strict=False))
            )
            assert all(first < last for first, last in spans)
            assert Composition.parse(composition.label) == composition and way_of(composition) in (
                "one region",
                "two regions",
                "sum in parts",
            )


def test_two_regions_are_expected_to_take_what_both_take_with_the_launch_that_is_in_each() -> None:
    class Flat:
        def times(self, keys: Sequence[Key]) -> Floats:
            assert {key[3] for key in keys} == {"cold"}, "each region reads the weight from memory"
            return np.full(len(keys), 10.0)

    grids = [
        Grid(kernel="a__x1", rows=64, across=12, slots=108, steps=16),
        Grid(kernel="b__x1", rows=16, across=12, slots=216, steps=16),
    ]
    expected = weighed(70, grids, cast(LatencyTable, Flat()), (1,), "cold").expected
    assert {way_of(composition): us for composition, us in expected.items()} == {"one region": 10.0, "two regions": 20.0}
