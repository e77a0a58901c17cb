"""The tuning loop from end to end on a fake lab: it converges, repeats itself, stops when told, and says what failed."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from haotuner.errors import HaotunerError, UsageError
from haotuner.plan.compose import Curve, best_us
from haotuner.plan.cover import MAX_KEPT
from haotuner.plan.table import RowTable
from haotuner.records.codec import trial_of
from haotuner.search.probes import probe
from haotuner.search.propose import FIRST_BATCH
from haotuner.search.task import Selections
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Outcome, Record, Trial
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.tuning.strategies import Effort, Tuned, tune
from tests.search.fake_lab import CORE, FAMILY, OP, TASK, FakeLab

KNOWN = replace(TASK, selections=Selections())  # for tests of what follows the selection: it is made once for them


@pytest.fixture(scope="module")
def lab() -> FakeLab:
    return FakeLab(CORE)


@pytest.fixture(scope="module")
def tuned(lab: FakeLab) -> Tuned:
    return tune(replace(TASK, threads=(1, 2)), lab.as_lab(), FAMILY)


@pytest.mark.long
def test_it_converges_long_before_the_budget_and_the_candidates_are_used_up(tuned: Tuned) -> None:
    assert tuned.stopped == "converged" and tuned.seconds < TASK.budget_s
    assert FIRST_BATCH <= tuned.measured < len(tuned.funnel.candidates)
    assert 1 <= len(tuned.kernels) <= MAX_KEPT and len({kernel["pw"] for kernel in tuned.kernels}) == 1
    assert {kernel.name for kernel in tuned.kernels} <= {c.kernel.name for c in tuned.funnel.candidates}


def test_what_it_found_is_close_to_the_best_that_selection_kept(tuned: Tuned, lab: FakeLab) -> None:
    rows = np.array([shape["m"] for shape in TASK.traffic.shapes()])
    weights = np.array([weight for _, weight in TASK.traffic])
    layouts: dict[int, list[Curve]] = {}
    for candidate in tuned.funnel.candidates:
        layouts.setdefault(candidate.kernel["pw"], []).append(true_curve(lab, candidate.kernel))
    best = np.min([best_us(curves, rows)[0] for curves in layouts.values()], axis=0)
    own = best_us([true_curve(lab, kernel) for kernel in tuned.kernels], rows)[0]
    assert float(weights @ (own / best)) < 1.05


def test_the_tables_cover_every_m_exactly_for_every_thread_count(tuned: Tuned) -> None:
    assert [table.threads for table in tuned.row_tables] == [1, 2]
    tile_rows = {kernel.name: kernel["mr"] for kernel in tuned.kernels}
    for table in tuned.row_tables:
        assert len(table.entries) == 256
        for m, entry in enumerate(table.entries, 1):
            assert sum(tiles * tile_rows[kernel] for kernel, tiles in entry.composition.parts) == m
            assert entry.composition.share in (("serial",) if table.threads == 1 else ("serial", "n", "m"))
            assert np.isfinite(entry.us) and entry.us > 0
        assert table.measured and 0 <= table.regret_mean <= table.regret_max < 0.1


def test_two_threads_are_used_where_they_pay_and_not_where_they_do_not(tuned: Tuned) -> None:
    serial, threaded = tuned.row_tables
    assert threaded.entries[255].composition.share in ("n", "m") and threaded.entries[255].us < serial.entries[255].us
    assert sum(entry.composition.share == "serial" for entry in threaded.entries) < 256


def test_a_plan_is_never_worse_than_what_was_measured_beside_it(tuned: Tuned) -> None:
    for table in tuned.row_tables:
        for m, times in table.measured.items():
            assert times[table.at(Shape.of(m=m)).composition] <= min(times.values()) * 1.02 + 1e-9


def test_the_model_is_scored_on_kernels_it_has_not_seen(tuned: Tuned) -> None:
    assert {"pairwise", "best@1", "best@10"} == set(tuned.model)
    assert tuned.model["pairwise"] > 0.7 and 0.8 < tuned.model["best@10"] <= 1


def test_the_same_seed_on_the_same_surface_gives_the_same_result(tuned: Tuned, lab: FakeLab) -> None:
    again = FakeLab(CORE)
    result = tune(replace(TASK, threads=(1, 2)), again.as_lab(), FAMILY)
    assert again.measured == lab.measured
    assert result.kernels == tuned.kernels
    assert [table.entries for table in result.row_tables] == [table.entries for table in tuned.row_tables]
    assert result.model == tuned.model


def test_known_records_are_not_measured_again(tuned: Tuned, lab: FakeLab) -> None:
    again = FakeLab(CORE)
    again.store = dict(lab.store)
    result = tune(replace(KNOWN, threads=(1, 2)), again.as_lab(), FAMILY)
    assert again.measured == [] and result.kernels == tuned.kernels
    kernel_names = [kernel.name for kernel in tuned.kernels]
    assert set(again.prepared) <= set(kernel_names)  # what needs no measurement needs no build


def test_what_is_recorded_counts_however_short_the_time_is(tuned: Tuned, lab: FakeLab) -> None:
    again = FakeLab(CORE)
    again.store = dict(lab.store)
    result = tune(replace(TASK, threads=(1, 2), budget_s=1e-3), again.as_lab(), FAMILY)
    assert result.measured == tuned.measured and again.measured == []
    # Models fitted in another order of rows differ a little, so near ties between micro-kernels may fall otherwise.
    ours, theirs = (sum(entry.us for entry in tuning.row_tables[0].entries) for tuning in (result, tuned))
    assert ours == pytest.approx(theirs, rel=0.01)


def test_no_thread_count_is_a_search_without_a_plan(tuned: Tuned, lab: FakeLab) -> None:
    """What replays of searches ask for (tests/bench/transfer_use.py)."""
    alone = tune(replace(KNOWN, threads=()), lab.as_lab(), FAMILY)
    assert alone.row_tables == () and alone.measured == tuned.measured


def test_kernels_that_fail_are_left_out(lab: FakeLab) -> None:
    broken = FakeLab(CORE, fails=lambda kernel: kernel["mr"] > 1 and kernel["mr"] % 2 == 0)
    result = tune(KNOWN, broken.as_lab(), FAMILY)
    assert broken.failures["crash"] > 0
    assert all(kernel["mr"] == 1 or kernel["mr"] % 2 for kernel in result.kernels)


def few(tuned: Tuned) -> tuple[MicroKernel, ...]:
    """A tenth of what selection kept, kernels of one row among them: a search that tries all of them is a short one."""
    kernels = tuple(candidate.kernel for candidate in tuned.funnel.candidates[::10])
    assert any(kernel["mr"] == 1 for kernel in kernels) and any(kernel["mr"] > 1 for kernel in kernels)
    return kernels


def test_all_candidates_failing_is_an_error_that_says_what_was_seen(tuned: Tuned) -> None:
    broken = FakeLab(CORE, fails=lambda _: True)
    with pytest.raises(HaotunerError, match=r"dense_n512_k256: every candidate failed \([0-9]+ crash\).*haotuner doctor"):
        tune(replace(TASK, among=few(tuned)), broken.as_lab(), FAMILY)


def test_one_row_kernels_all_failing_is_an_error_that_says_so(tuned: Tuned) -> None:
    broken = FakeLab(CORE, fails=lambda kernel: kernel["mr"] == 1)
    with pytest.raises(HaotunerError, match="one row"):
        tune(replace(TASK, among=few(tuned)), broken.as_lab(), FAMILY)


def test_a_signal_before_anything_was_measured_gives_a_plan_from_predictions() -> None:
    fake = FakeLab(CORE)
    result = tune(KNOWN, fake.as_lab(), FAMILY, watch=lambda *_: False)
    assert (result.stopped, result.measured, fake.measured) == ("signal", 0, [])
    check_served(result.row_tables[0])


def test_a_signal_in_the_middle_ends_it_after_the_measurement_in_flight() -> None:
    fake, records = FakeLab(CORE), []

    def watch(phase: str, record: Record | None) -> bool:
        records.append(record)
        return sum(r is not None for r in records) < 30

    result = tune(KNOWN, fake.as_lab(), FAMILY, watch)
    assert result.stopped == "signal" and len(fake.measured) == 30 and 0 < result.measured <= 30
    check_served(result.row_tables[0])


def test_a_signal_while_planning_is_reported_as_one() -> None:
    fake = FakeLab(CORE)
    result = tune(KNOWN, fake.as_lab(), FAMILY, watch=lambda phase, _: phase == "search")
    assert result.stopped == "signal" and result.measured > 0
    check_served(result.row_tables[0])


class Otherwise(FakeLab):
    """Kernels are faster or slower than the surface has them, each by a factor of its own: no prediction knows it."""

    def _region_us(self, kernel: MicroKernel, n: int, k: int, tiles: int | None, m: int) -> float:
        own = np.random.default_rng(zlib.crc32(kernel.name.encode())).normal(scale=0.3)
        return super()._region_us(kernel, n, k, tiles, m) * float(np.exp(own))


@pytest.mark.parametrize("after", [1, 30, *(pytest.param(count, marks=pytest.mark.long) for count in (15, 90))])
def test_a_search_however_short_is_no_worse_than_none(after: int) -> None:
    """It times what a plan without measurements keeps before anything else; what it did not come to stays in the plan."""

    def truly(until: int) -> NDArray[np.float64]:
        fake, records = Otherwise(CORE, noise=0.0), []

        def watch(phase: str, record: Record | None) -> bool:
            records.append(record)
            return sum(r is not None for r in records) < until

        table = tune(KNOWN, fake.as_lab(), FAMILY, watch if until else lambda *_: False).row_tables[0]
        shapes = [shape for shape, _ in TASK.traffic]
        return np.array([fake.true_us(Trial.of(OP, table.at(s).composition, s, cache="cold")) for s in shapes])

    slower = truly(after) / truly(0)
    assert slower.mean() < 1.02
    assert after < 90 or slower.max() < 1.02, "by then every kernel of that plan has its times"


def test_no_measurement_starts_after_the_deadline_but_those_of_one_kernel() -> None:
    fake = FakeLab(CORE, pause_s=0.01)
    begin = time.monotonic()
    result = tune(replace(TASK, budget_s=2.0), fake.as_lab(), FAMILY)
    least = 5  # of the probe of the kernel that is measured in any case
    late = [moment for moment in fake.started[least:] if moment > begin + 2.0]
    assert len(late) <= 1, "one may have been allowed in time and then held up"
    assert result.stopped == "budget"
    check_served(result.row_tables[0])


class Ticking(FakeLab):
    """Every measurement takes ten milliseconds of the lab's own clock, and nothing else takes any."""

    now = 0.0

    def _outcome(self, trial: Trial) -> Outcome:
        self.now += 0.01
        return super()._outcome(trial)


def test_a_short_budget_is_shared_by_the_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first plan does not use up what the second needs."""
    lab = Ticking(CORE)
    monkeypatch.setattr("haotuner.search.task.time", SimpleNamespace(monotonic=lambda: lab.now))
    result = tune(replace(TASK, threads=(1, 2), budget_s=6.0), lab.as_lab(), FAMILY)
    assert result.stopped == "budget" and lab.now < 6.0
    timed = Counter(trial.threads for trial in lab.measured)
    assert timed[2] > 2 * len(result.kernels)


def test_what_is_kept_was_timed_once_more(tuned: Tuned, lab: FakeLab) -> None:
    """The exact program may keep others than the sketch that was confirmed first."""
    again = {trial.kernel.partition("*")[0] for trial in lab.measured if "*" in trial.kernel and trial.repeat == 1}
    assert {kernel.name for kernel in tuned.kernels} <= again


def test_a_following_region_pays_for_whole_tiles() -> None:
    """The runtime computes the tile that reaches past n in full."""
    kernel = FAMILY.kernel(4, 32, 32, 4, 16)
    whole, narrow = (probe(kernel, Op.parse(f"dense:n={n},k=256"), FAMILY, CORE, 256, cache="cold") for n in (64, 33))
    assert narrow.follow.op == whole.follow.op and narrow.follow_scale == whole.follow_scale


@pytest.mark.parametrize("least", [1, 4])
def test_a_budget_of_nothing_measures_one_kernel(least: int) -> None:
    fake = FakeLab(CORE)
    result = tune(replace(TASK, budget_s=0.0, effort=Effort(least_kernels=least)), fake.as_lab(), FAMILY)
    assert result.stopped == "budget" and result.measured == len({trial.kernel for trial in fake.measured}) == 1
    assert len(set(fake.prepared)) <= least
    check_served(result.row_tables[0])


def test_an_op_whose_time_others_took_is_planned_from_predictions() -> None:
    fake = FakeLab(CORE)
    result = tune(replace(TASK, budget_s=0.0, effort=Effort(least_kernels=0)), fake.as_lab(), FAMILY)
    assert result.stopped == "budget" and result.measured == 0 and not fake.measured and not fake.prepared
    check_served(result.row_tables[0])


@pytest.mark.parametrize(
    "shapes", ["m=1", "m=3,50", *(pytest.param(text, marks=pytest.mark.long) for text in ("m=7", "m=2048"))]
)
def test_small_and_single_shapes_are_planned(shapes: str) -> None:
    fake = FakeLab(CORE)
    result = tune(replace(TASK, traffic=Traffic.of_range(ShapeRange.parse(shapes))), fake.as_lab(), FAMILY)
    assert len(result.row_tables[0].entries) == max(s["m"] for s in result.task.traffic.shapes())
    check_served(result.row_tables[0])


def test_an_op_that_no_strategy_suits_is_refused_in_words() -> None:
    two = replace(TASK, op=Op.parse("dense:n=512"), traffic=Traffic.of([(Shape.of(m=1, k=256), 1.0)]))
    with pytest.raises(
        UsageError, match="no strategy tunes an op of the dynamic axes m, k with cpu_dense_fp32; known are rows"
    ):
        tune(two, FakeLab(CORE).as_lab(), FAMILY)


def test_the_effort_of_a_task_decides_how_long_is_searched(tuned: Tuned) -> None:
    assert tuned.strategy == "rows" and tuned.task.effort == Effort()
    hasty = tune(replace(KNOWN, effort=Effort(quiet_rounds=1)), FakeLab(CORE).as_lab(), FAMILY)
    assert hasty.stopped == "converged" and hasty.timings < tuned.timings


def check_served(table: RowTable) -> None:
    """Every m of the table has a composition that covers it."""
    for m, entry in enumerate(table.entries, 1):
        assert sum(tiles * MicroKernel.parse(kernel)["mr"] for kernel, tiles in entry.composition.parts) == m


def true_curve(lab: FakeLab, kernel: MicroKernel) -> Curve:
    """The curve of a kernel on the surface without noise."""
    curve_probe = probe(kernel, OP, FAMILY, CORE, 256, cache="cold", rows=(1, 4, 16, 64, 256))
    points = {tiles: lab.true_us(trial) for tiles, trial in curve_probe.lead}
    return Curve.of(kernel.name, kernel["mr"], points, lab.true_us(curve_probe.follow) * curve_probe.follow_scale)


def test_the_surface_itself_prefers_register_tiles_to_single_rows(lab: FakeLab) -> None:
    def us(mr: int, nr: int, m: int) -> float:
        name = FAMILY.kernel(mr, nr, nr, 4, 16).name
        return lab.true_us(trial_of(op=OP.name, kernel=name, shape=Shape.of(m=m)))

    assert us(6, 64, 96) < us(1, 64, 96) / 1.5 and us(1, 128, 1) < us(1, 16, 1)
