"""The tuning loop from end to end on a fake lab: it converges, repeats itself, stops when told, and says what failed."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.device import Device
from haotuner.errors import HaotunerError
from haotuner.kernel import MicroKernel
from haotuner.measure.lab import GoesOn, parts_of
from haotuner.microkernels.cpu_dense import CpuDense
from haotuner.op import Op
from haotuner.plan.compose import best_us
from haotuner.plan.cover import MAX_KEPT
from haotuner.plan.curves import Curve
from haotuner.plan.sharing import rows_of
from haotuner.record import Outcome, Record, Timed, Trial
from haotuner.search.contenders import ALONE_US, CLOSE, REPEATS, _spread, again, contend, curves
from haotuner.search.planning import Table, _with_curves, decide
from haotuner.search.probes import probe
from haotuner.search.propose import FIRST_BATCH
from haotuner.shape import Shape, ShapeRange, Traffic
from haotuner.tuning import LEAST_KERNELS, Task, Tuned, tune
from tests.work.fake_lab import FakeLab

FAMILY = CpuDense()
OP = Op.parse("dense:n=512,k=256")
CORE = Device(
    id="fake-core", kind="cpu", name="fake", arch="x86-64-v4", compute_units=2, wave_width=16, registers_per_thread=32,
    fma_pipes=2, l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20, memory_gbps=20.0, memory_gbps_unit=20.0,
    clock_mhz=3000, peak_gflops=384.0,
)  # fmt: skip
TASK = Task(op=OP, traffic=Traffic.of_range(ShapeRange.parse("m=1..256"), samples=40), budget_s=3600.0)


def table_of(lab: FakeLab, kept: Sequence[Curve], threads: int, weights: str, goes_on: GoesOn = lambda _: True) -> Table:
    """The plan table of these kernels for one thread count."""
    timings = [curves(lab.as_lab(), OP, kept, TASK.traffic, threads, weights, goes_on)]
    timings = contend(lab.as_lab(), timings, TASK.traffic, weights, goes_on)
    return decide(*again(lab.as_lab(), timings, weights, goes_on))


@pytest.fixture(scope="module")
def lab() -> FakeLab:
    return FakeLab(CORE)


@pytest.fixture(scope="module")
def tuned(lab: FakeLab) -> Tuned:
    return tune(replace(TASK, threads=(1, 2)), lab.as_lab(), FAMILY)


def test_it_converges_long_before_the_budget_and_the_candidates_are_used_up(tuned: Tuned) -> None:
    assert tuned.stopped == "converged" and tuned.seconds < TASK.budget_s
    assert FIRST_BATCH <= tuned.measured < len(tuned.funnel.kept)
    assert 1 <= len(tuned.kernels) <= MAX_KEPT and len({kernel["pw"] for kernel in tuned.kernels}) == 1
    assert {kernel.name for kernel in tuned.kernels} <= {c.kernel.name for c in tuned.funnel.kept}


def test_what_it_found_is_close_to_the_best_that_selection_kept(tuned: Tuned, lab: FakeLab) -> None:
    rows = np.array([shape["m"] for shape in TASK.traffic.shapes()])
    weights = np.array([weight for _, weight in TASK.traffic])
    layouts: dict[int, list[Curve]] = {}
    for candidate in tuned.funnel.kept:
        layouts.setdefault(candidate.kernel["pw"], []).append(true_curve(lab, candidate.kernel))
    best = np.min([best_us(curves, rows)[0] for curves in layouts.values()], axis=0)
    own = best_us([true_curve(lab, kernel) for kernel in tuned.kernels], rows)[0]
    assert float(weights @ (own / best)) < 1.05


def test_the_tables_cover_every_m_exactly_for_every_thread_count(tuned: Tuned) -> None:
    assert [table.threads for table in tuned.tables] == [1, 2]
    kept = {kernel.name: kernel["mr"] for kernel in tuned.kernels}
    for table in tuned.tables:
        assert len(table.entries) == 256
        for m, (choice, split) in enumerate(table.entries, 1):
            assert sum(tiles * kept[kernel] for kernel, tiles in choice.parts) == m
            assert split in (("serial",) if table.threads == 1 else ("serial", "n", "m"))
            assert np.isfinite(choice.us) and choice.us > 0
        assert table.measured and 0 <= table.plan.regret_mean <= table.plan.regret_max < 0.1


def test_two_threads_are_used_where_they_pay_and_not_where_they_do_not(tuned: Tuned) -> None:
    one, two = tuned.tables
    assert two.entries[255][1] in ("n", "m") and two.entries[255][0].us < one.entries[255][0].us
    assert sum(split == "serial" for _, split in two.entries) < 256


def test_a_plan_is_never_worse_than_what_was_measured_beside_it(tuned: Tuned) -> None:
    for table in tuned.tables:
        for m, times in table.measured.items():
            choice, split = table.entries[m - 1]
            assert times[f"{choice.name}@{split}"] <= min(times.values()) * 1.02 + 1e-9


def test_the_model_is_scored_on_kernels_it_has_not_seen(tuned: Tuned) -> None:
    assert {"pairwise", "best@1", "best@10"} == set(tuned.model)
    assert tuned.model["pairwise"] > 0.7 and 0.8 < tuned.model["best@10"] <= 1


def test_the_same_seed_on_the_same_surface_gives_the_same_result(tuned: Tuned, lab: FakeLab) -> None:
    again = FakeLab(CORE)
    result = tune(replace(TASK, threads=(1, 2)), again.as_lab(), FAMILY)
    assert again.measured == lab.measured
    assert result.kernels == tuned.kernels
    assert [table.entries for table in result.tables] == [table.entries for table in tuned.tables]
    assert result.model == tuned.model


def test_known_records_are_not_measured_again(tuned: Tuned, lab: FakeLab) -> None:
    again = FakeLab(CORE)
    again.store = dict(lab.store)
    result = tune(replace(TASK, threads=(1, 2)), again.as_lab(), FAMILY)
    assert again.measured == [] and result.kernels == tuned.kernels
    kept = [kernel.name for kernel in tuned.kernels]
    assert set(again.prepared) <= set(kept)  # what needs no measurement needs no build


def test_what_is_recorded_counts_however_short_the_time_is(tuned: Tuned, lab: FakeLab) -> None:
    again = FakeLab(CORE)
    again.store = dict(lab.store)
    result = tune(replace(TASK, threads=(1, 2), budget_s=1e-3), again.as_lab(), FAMILY)
    assert result.measured == tuned.measured and result.kernels == tuned.kernels
    assert again.measured == []


def test_kernels_that_fail_are_left_out(lab: FakeLab) -> None:
    broken = FakeLab(CORE, fails=lambda kernel: kernel["mr"] > 1 and kernel["mr"] % 2 == 0)
    result = tune(TASK, broken.as_lab(), FAMILY)
    assert broken.failures["crash"] > 0
    assert all(kernel["mr"] == 1 or kernel["mr"] % 2 for kernel in result.kernels)


def test_all_candidates_failing_is_an_error_that_says_what_was_seen() -> None:
    broken = FakeLab(CORE, fails=lambda _: True)
    with pytest.raises(HaotunerError, match=r"dense_n512_k256: every candidate failed \([0-9]+ crash\).*haotuner doctor"):
        tune(TASK, broken.as_lab(), FAMILY)


def test_one_row_kernels_all_failing_is_an_error_that_says_so() -> None:
    broken = FakeLab(CORE, fails=lambda kernel: kernel["mr"] == 1)
    with pytest.raises(HaotunerError, match="one row"):
        tune(replace(TASK, budget_s=20.0), broken.as_lab(), FAMILY)


def test_a_signal_before_anything_was_measured_gives_a_plan_from_predictions() -> None:
    fake = FakeLab(CORE)
    result = tune(TASK, fake.as_lab(), FAMILY, watch=lambda *_: False)
    assert (result.stopped, result.measured, fake.measured) == ("signal", 0, [])
    check_served(result.tables[0])


def test_a_signal_in_the_middle_ends_it_after_the_measurement_in_flight() -> None:
    fake, told = FakeLab(CORE), []

    def watch(phase: str, record: Record | None) -> bool:
        told.append(record)
        return sum(r is not None for r in told) < 30

    result = tune(TASK, fake.as_lab(), FAMILY, watch)
    assert result.stopped == "signal" and len(fake.measured) == 30 and 0 < result.measured <= 30
    check_served(result.tables[0])


def test_a_signal_while_planning_is_reported_as_one() -> None:
    fake = FakeLab(CORE)
    result = tune(TASK, fake.as_lab(), FAMILY, watch=lambda phase, _: phase == "search")
    assert result.stopped == "signal" and result.measured > 0
    check_served(result.tables[0])


def test_no_measurement_starts_after_the_deadline_but_the_least_that_a_plan_needs() -> None:
    fake = FakeLab(CORE, pause_s=0.01)
    begin = time.monotonic()
    result = tune(replace(TASK, budget_s=2.0), fake.as_lab(), FAMILY)
    least = LEAST_KERNELS * 5  # probes of the kernels that are measured in any case
    late = [moment for moment in fake.started[least:] if moment > begin + 2.0]
    assert len(late) <= 1, "one may have been allowed in time and then held up"
    assert result.stopped == "budget"
    check_served(result.tables[0])


class Ticking(FakeLab):
    """Every measurement takes ten milliseconds of the lab's own clock, and nothing else takes any."""

    now = 0.0

    def _outcome(self, trial: Trial) -> Outcome:
        self.now += 0.01
        return super()._outcome(trial)


def test_a_short_budget_is_shared_by_the_thread_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first plan does not use up what the second needs."""
    lab = Ticking(CORE)
    monkeypatch.setattr("haotuner.tuning.time", SimpleNamespace(monotonic=lambda: lab.now))
    result = tune(replace(TASK, threads=(1, 2), budget_s=6.0), lab.as_lab(), FAMILY)
    assert result.stopped == "budget" and lab.now < 6.0
    timed = Counter(trial.threads for trial in lab.measured)
    assert timed[2] > 50


@pytest.mark.parametrize("time_for", [10, 25])
def test_out_of_time_no_way_to_share_is_chosen_that_was_not_measured(time_for: int) -> None:
    """Unmeasured it would look as if it shared perfectly; here columns take 1.3 times that."""

    class Sharing(FakeLab):
        def true_us(self, trial: Trial) -> float:
            return super().true_us(trial) * (1.3 if trial.threads > 1 else 1.0)

    lab = Sharing(CORE)
    kept = tune(TASK, lab.as_lab(), FAMILY).cover.kept
    before = len(lab.measured)
    table = table_of(lab, kept, 2, "cold", lambda _: len(lab.measured) < before + time_for)
    seen = {trial.split for trial in lab.measured[before:]}
    assert seen == {"n"} and {split for _, split in table.entries} == {"n"}
    truth = {curve.kernel: curve for curve in kept}
    for m in (64, 128, 256):  # no kernel looks flat because its last points are missing
        choice, _ = table.entries[m - 1]
        (first, tiles), *_ = choice.parts
        assert choice.us > 0.5 * float(truth[first].lead(np.array([tiles]))[0])


def test_what_is_kept_was_timed_once_more(tuned: Tuned, lab: FakeLab) -> None:
    """The exact program may keep others than the sketch that was confirmed first."""
    again = {trial.kernel.partition("*")[0] for trial in lab.measured if "*" in trial.kernel and trial.repeat == 1}
    assert {kernel.name for kernel in tuned.kernels} <= again


def test_a_following_region_pays_for_whole_tiles() -> None:
    """The runtime computes the tile that reaches past n in full."""
    kernel = FAMILY.kernel(4, 32, 32, 4, 16)
    whole, narrow = (probe(kernel, Op.parse(f"dense:n={n},k=256"), CORE, 256, weights="cold") for n in (64, 33))
    assert narrow.follow.op == whole.follow.op and narrow.follow_scale == whole.follow_scale


def test_a_budget_of_nothing_measures_only_the_least() -> None:
    fake = FakeLab(CORE)
    result = tune(replace(TASK, budget_s=0.0), fake.as_lab(), FAMILY)
    assert result.stopped == "budget" and len(fake.measured) <= LEAST_KERNELS * 5
    assert len(set(fake.prepared)) <= LEAST_KERNELS
    check_served(result.tables[0])


@pytest.mark.parametrize("shapes", ["m=1", "m=7", "m=3,50", "m=2048"])
def test_small_and_single_shapes_are_planned(shapes: str) -> None:
    fake = FakeLab(CORE)
    result = tune(replace(TASK, traffic=Traffic.of_range(ShapeRange.parse(shapes))), fake.as_lab(), FAMILY)
    assert len(result.tables[0].entries) == max(s["m"] for s in result.task.traffic.shapes())
    check_served(result.tables[0])


def check_served(table: Table) -> None:
    """Every m of the table has a composition that covers it."""
    for m, (choice, _) in enumerate(table.entries, 1):
        assert sum(tiles * MicroKernel.parse(kernel)["mr"] for kernel, tiles in choice.parts) == m


def true_curve(lab: FakeLab, kernel: MicroKernel) -> Curve:
    """The curve of a kernel on the surface without noise."""
    wanted = probe(kernel, OP, CORE, 256, weights="cold", rows=(1, 4, 16, 64, 256))
    points = {tiles: lab.true_us(trial) for tiles, trial in wanted.lead}
    return Curve.of(kernel.name, kernel["mr"], points, lab.true_us(wanted.follow) * wanted.follow_scale)


def test_the_surface_itself_prefers_register_tiles_to_single_rows(lab: FakeLab) -> None:
    def us(mr: int, nr: int, m: int) -> float:
        name = FAMILY.kernel(mr, nr, nr, 4, 16).name
        return lab.true_us(Trial(op=OP.name, kernel=name, shape=Shape.of(m=m)))

    assert us(6, 64, 96) < us(1, 64, 96) / 1.5 and us(1, 128, 1) < us(1, 16, 1)


def test_a_long_call_is_shared_even_where_one_thread_looked_faster() -> None:
    """As it does while another process holds the other core."""

    class Crowded(FakeLab):
        def true_us(self, trial: Trial) -> float:
            return super().true_us(trial) * (3.0 * trial.threads if trial.threads > 1 else 1.0)

    small = Op.parse("dense_n256_k256")  # one row of it takes 10 us
    result = tune(replace(TASK, op=small, threads=(2,)), Crowded(CORE).as_lab(), FAMILY)
    entries = result.tables[0].entries
    alone = [split == "serial" for choice, split in entries]
    assert alone[0], "a short call is faster alone, and is left alone"
    assert not alone[255], "a seventh of a millisecond is shared"
    assert all(np.isfinite(choice.us) for choice, _ in entries)
    assert result.tables[0].plan.regret_max < 0.1


def test_rows_are_no_way_to_share_a_single_tile() -> None:
    """One thread computes it all, and looks faster while something else holds the other core."""

    class Busy(FakeLab):
        def true_us(self, trial: Trial) -> float:
            single = sum(tiles or 1 for _, tiles in parts_of(trial.kernel)) == 1
            if trial.split == "m" and single:
                return super().true_us(replace(trial, threads=1))
            return super().true_us(trial) * (3.0 if trial.threads > 1 else 1.0)

    entries = tune(replace(TASK, threads=(2,)), Busy(CORE).as_lab(), FAMILY).tables[0].entries
    assert all(np.isfinite(choice.us) for choice, _ in entries)
    for choice, split in entries:
        tiles = sum(tiles for _, tiles in choice.parts)
        assert split == "n" or tiles > 1 or choice.us <= ALONE_US, (choice, split)


class Narrow(FakeLab):
    """Columns and rows cannot be shared there, terms can: an output of one tile."""

    def true_us(self, trial: Trial) -> float:
        alone = replace(trial, threads=1)
        return super().true_us(trial if trial.split == "k" else alone) + (2.0 if trial.threads > 1 else 0.0)


def test_terms_are_shared_where_the_output_is_too_narrow_for_the_threads() -> None:
    task = replace(TASK, op=Op.parse("dense_n32_k4096"), threads=(1, 2))
    one, two = tune(task, Narrow(CORE).as_lab(), FAMILY).tables
    assert {split for _, split in one.entries} == {"serial"}
    assert {split for _, split in two.entries[7:]} == {"k"}
    assert all(two.entries[m][0].us < 0.7 * one.entries[m][0].us for m in (15, 63, 255))


def test_terms_are_shared_only_for_as_many_rows_as_the_runtime_has_room_for() -> None:
    task = replace(TASK, op=Op.parse("dense_n96_k4096"), threads=(2,))
    entries = tune(task, Narrow(CORE).as_lab(), FAMILY).tables[0].entries
    most = rows_of("k", task.op, 2, 256)
    assert most < 256 and entries[most - 1][1] == "k"
    assert "k" not in {split for _, split in entries[most:]}


def test_a_batch_invariant_pack_sums_in_one_order() -> None:
    task = replace(TASK, op=Op.parse("dense_n32_k4096"), threads=(2,), one_order=True)
    lab = Narrow(CORE)
    assert "k" not in {split for _, split in tune(task, lab.as_lab(), FAMILY).tables[0].entries}
    assert "k" not in {trial.split for trial in lab.measured}


@pytest.mark.parametrize(("times", "best"), [((104.0, 96.0), "a*2"), ((104.0, 60.0), "b*1"), ((96.0, 104.0), "a*2")])
def test_a_lucky_time_does_not_overrule_the_curves_and_a_clear_one_does(times: tuple[float, float], best: str) -> None:
    curves = [Curve.of("a", 4, {1: 60.0, 2: 100.0}, 40.0), Curve.of("b", 8, {1: 110.0, 2: 200.0}, 100.0)]
    judged = _with_curves({"a*2@serial": times[0], "b*1@serial": times[1]}, curves, 8)
    assert min(judged, key=lambda name: judged[name]) == f"{best}@serial"
    if len(judged) == 2:
        assert np.prod(list(judged.values())) == pytest.approx(np.prod(times)), "at the level of the times"
    else:
        assert judged == {"b*1@serial": pytest.approx(60.0)}, "far behind, whatever the curves say"


class Moody(FakeLab):
    """From the next process on half of the compositions are half as slow again at small shapes, once ``moody`` is set."""

    moody, processes = False, 0

    def renew(self) -> None:
        self.processes += self.moody

    def true_us(self, trial: Trial) -> float:
        return super().true_us(trial) * (1.5 if self.processes and trial.shape["m"] <= 64 and unlucky(trial.kernel) else 1.0)


def unlucky(composition: str) -> bool:
    return zlib.crc32(composition.encode()) % 2 == 0


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=100, unique=True))
def test_shapes_are_timed_in_an_order_that_may_stop_anywhere(shapes: list[int]) -> None:
    order = _spread(shapes)
    assert sorted(order) == sorted(shapes)
    for count in (2, 4, 8, 16, 32, 64):
        places = sorted(shapes.index(shape) for shape in order[:count])
        gaps = [b - a for a, b in zip(places, [*places[1:], len(shapes)], strict=True)]
        assert places[0] == 0 and max(gaps) <= 2 * -(-len(shapes) // min(count, len(shapes))), (count, places)


@pytest.mark.parametrize("time_for", [0, 1, 30, 31, 32, 33])
def test_a_shape_whose_contest_was_cut_short_is_left_out(tuned: Tuned, time_for: int) -> None:
    """What was timed first would win without the others."""
    lab = FakeLab(CORE)
    timings = [curves(lab.as_lab(), OP, tuned.cover.kept, TASK.traffic, 2, "hot", lambda _: True)]
    before = len(lab.measured)
    (cut,) = contend(lab.as_lab(), timings, TASK.traffic, "hot", lambda _: len(lab.measured) < before + time_for)
    (whole,) = contend(lab.as_lab(), timings, TASK.traffic, "hot", lambda _: True)
    assert len(cut.measured) <= time_for / 2 < len(whole.measured) and list(cut.measured) == sorted(cut.measured)
    assert all(found == whole.measured[m] for m, found in cut.measured.items())
    assert contend(lab.as_lab(), [cut], TASK.traffic, "hot", lambda _: True) == [whole], "what is missing is made up for"


def test_close_compositions_of_small_shapes_are_timed_in_more_processes() -> None:
    lab = Moody(CORE, noise=0.3)
    kept = tune(TASK, lab.as_lab(), FAMILY).cover.kept
    lab.moody = True
    table = table_of(lab, kept, 1, "hot")
    assert lab.processes == REPEATS == 2
    seen = Counter[str]()
    for m, times in table.measured.items():
        us: dict[str, list[float]] = {name: [] for name in times}
        for name, repeat in product(times, range(REPEATS + 1)):
            trial = Trial(op=OP.name, kernel=name.partition("@")[0], shape=Shape.of(m=m), weights="hot", repeat=repeat)
            record = lab.store.get(trial.key())
            if record is not None and isinstance(record.outcome, Timed):
                us[name].append(record.outcome.median_us)
        best = min(found[0] for found in us.values())
        for name, found in us.items():
            assert times[name] == pytest.approx(np.prod(found) ** (1 / len(found)))
            if m > 64:
                assert len(found) == 1
            elif found[0] <= best * CLOSE:
                assert len(found) >= 2
                seen["fell behind" if len(found) == 2 else "to the end"] += 1
            else:
                seen["came up" if len(found) > 1 else "far"] += 1
    assert min(seen[what] for what in ("fell behind", "to the end", "far", "came up")) > 0, seen
    again = len(lab.measured)
    table_of(lab, kept, 1, "hot")
    assert len(lab.measured) == again and lab.processes == 2, "what is recorded is not timed once more"
