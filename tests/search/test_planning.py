"""Plans of kept kernels on a fake lab: ways to share the work, contests of compositions, and who wins them."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.backends.cpu.backend import rows_of
from haotuner.measure.measurer import GoesOn
from haotuner.plan.compose import Curve
from haotuner.plan.table import RowTable
from haotuner.records.codec import trial_of
from haotuner.search.planning import (
    CLOSE,
    REPEATS,
    Timings,
    _spread,
    _with_curves,
    again,
    curves,
    decide,
    foretold,
    time_candidates,
    worth_sharing,
)
from haotuner.spec.composition import Composition
from haotuner.spec.op import Op
from haotuner.spec.record import Timed, Trial
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.tuning.strategies import tune
from tests.search.fake_lab import CORE, FAMILY, OP, TASK, FakeLab

Searched = tuple[FakeLab, Sequence[Curve]]  # a lab after a search, and the kernels that were kept: tests measure on a copy


def table_of(
    lab: FakeLab, cover_curves: Sequence[Curve], threads: int, cache: str, goes_on: GoesOn = lambda _: True
) -> RowTable:
    """The plan table of these kernels for one thread count."""
    task = replace(TASK, threads=(threads,), cache=cache)
    timings = curves(lab.as_lab(), task, FAMILY, cover_curves, goes_on)
    timings = time_candidates(lab.as_lab(), timings, goes_on)
    return decide(*again(lab.as_lab(), timings, goes_on))


def kept_of(lab: FakeLab) -> Sequence[Curve]:
    """Kernels that a search keeps."""
    cover = tune(TASK, lab.as_lab(), FAMILY).cover
    assert cover is not None
    return cover.curves


@pytest.fixture(scope="module")
def kept_curves() -> Sequence[Curve]:
    """Kernels that a search kept_curves."""
    return kept_of(FakeLab(CORE))


class Sharing(FakeLab):
    """Two threads take 1.3 times as long as if they shared perfectly."""

    def true_us(self, trial: Trial) -> float:
        return super().true_us(trial) * (1.3 if trial.threads > 1 else 1.0)


@pytest.fixture(scope="module")
def sharing() -> Searched:
    lab = Sharing(CORE)
    return lab, kept_of(lab)


@pytest.mark.long
@pytest.mark.parametrize("time_for", [10, 25, 80])
def test_out_of_time_a_way_to_share_that_was_not_timed_looks_no_better_than_one_that_was(
    sharing: Searched, time_for: int
) -> None:
    """Curves of one thread foretell that all share perfectly."""
    searched, cover_curves = sharing
    lab = searched.copied()
    before = len(lab.measured)
    table = table_of(lab, cover_curves, 2, "cold", lambda _: len(lab.measured) < before + time_for)
    assert len(lab.measured) <= before + time_for and table.measured
    for m, entry in enumerate(table.entries, 1):
        share = entry.composition.share
        trial = trial_of(op=OP.name, kernel=entry.composition.text, shape=Shape.of(m=m), threads=2, split=share)
        assert entry.us > 0.9 * lab.true_us(trial), (m, entry)
    truth = {curve.kernel: curve for curve in cover_curves}
    for m in (64, 128, 256):  # no kernel looks flat because its last points are missing
        entry = table.at(Shape.of(m=m))
        (first, tiles), *_ = entry.composition.parts
        assert entry.us > 0.5 * float(truth[first].lead(np.array([tiles]))[0])


def test_a_long_call_is_shared_even_where_one_thread_looked_faster() -> None:
    """As it does while another process holds the other core."""

    class Crowded(FakeLab):
        def true_us(self, trial: Trial) -> float:
            return super().true_us(trial) * (3.0 * trial.threads if trial.threads > 1 else 1.0)

    small = Op.parse("dense_n256_k256")  # one row of it takes 10 us
    result = tune(replace(TASK, op=small, threads=(2,)), Crowded(CORE).as_lab(), FAMILY)
    entries = result.row_tables[0].entries
    alone = [entry.composition.share == "serial" for entry in entries]
    assert alone[0], "a short call is faster alone, and is left alone"
    assert not alone[255], "a seventh of a millisecond is shared"
    assert all(np.isfinite(entry.us) for entry in entries)
    assert result.row_tables[0].regret_max < 0.1


class Narrow(FakeLab):
    """Columns and rows cannot be shared there, terms can: an output of one tile."""

    def true_us(self, trial: Trial) -> float:
        alone = replace(trial, threads=1)
        return super().true_us(trial if trial.split == "k" else alone) + (2.0 if trial.threads > 1 else 0.0)


def test_terms_are_shared_where_the_output_is_too_narrow_for_the_threads() -> None:
    task = replace(TASK, op=Op.parse("dense_n32_k4096"), threads=(1, 2))
    single, two = tune(task, Narrow(CORE).as_lab(), FAMILY).row_tables
    assert {entry.composition.share for entry in single.entries} == {"serial"}
    assert {entry.composition.share for entry in two.entries[7:]} == {"k"}
    assert all(two.entries[m].us < 0.7 * single.entries[m].us for m in (15, 63, 255))


def test_terms_are_shared_only_for_as_many_rows_as_the_runtime_has_room_for() -> None:
    task = replace(TASK, op=Op.parse("dense_n96_k4096"), threads=(2,))
    entries = tune(task, Narrow(CORE).as_lab(), FAMILY).row_tables[0].entries
    most = rows_of("k", task.op, 2, 256)
    assert most < 256 and entries[most - 1].composition.share == "k"
    assert "k" not in {entry.composition.share for entry in entries[most:]}


def test_a_batch_invariant_pack_sums_in_one_order() -> None:
    task = replace(TASK, op=Op.parse("dense_n32_k4096"), threads=(2,), one_order=True)
    lab = Narrow(CORE)
    entries = tune(task, lab.as_lab(), FAMILY).row_tables[0].entries
    assert "k" not in {entry.composition.share for entry in entries}
    assert "k" not in {trial.split for trial in lab.measured}


@pytest.mark.parametrize(("times", "best"), [((104.0, 96.0), "a*2"), ((104.0, 60.0), "b*1"), ((96.0, 104.0), "a*2")])
def test_a_lucky_time_does_not_overrule_the_curves_and_a_clear_one_does(times: tuple[float, float], best: str) -> None:
    curves = [Curve.of("a", 4, {1: 60.0, 2: 100.0}, 40.0), Curve.of("b", 8, {1: 110.0, 2: 200.0}, 100.0)]
    two, one_tile = Composition.parse("a*2@serial"), Composition.parse("b*1@serial")
    judged = _with_curves({two: times[0], one_tile: times[1]}, foretold({"serial": curves}, 8), 8)
    assert min(judged, key=lambda composition: judged[composition]).text == best
    if len(judged) == 2:
        assert np.prod(list(judged.values())) == pytest.approx(np.prod(times)), "at the level of the times"
    else:
        assert judged == {one_tile: pytest.approx(60.0)}, "far behind, whatever the curves say"


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
def test_a_shape_whose_contest_was_cut_short_is_left_out(kept_curves: Sequence[Curve], time_for: int) -> None:
    """What was timed first would win without the others."""
    lab = FakeLab(CORE)
    timings = curves(lab.as_lab(), replace(TASK, threads=(2,), cache="hot"), FAMILY, kept_curves, lambda _: True)
    before = len(lab.measured)
    (cut,) = time_candidates(lab.as_lab(), timings, lambda _: len(lab.measured) < before + time_for)
    (whole,) = time_candidates(lab.as_lab(), timings, lambda _: True)
    assert len(cut.measured) <= time_for / 2 < len(whole.measured) and list(cut.measured) == sorted(cut.measured)
    assert all(times == whole.measured[m] for m, times in cut.measured.items())
    assert time_candidates(lab.as_lab(), [cut], lambda _: True) == [whole], "what is missing is made up for"


@pytest.fixture(scope="module")
def moody() -> tuple[Moody, Sequence[Curve]]:
    lab = Moody(CORE, noise=0.3)
    return lab, kept_of(lab)


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 2])
def test_close_compositions_of_small_shapes_are_timed_in_more_processes(
    moody: tuple[Moody, Sequence[Curve]], threads: int
) -> None:
    searched, cover_curves = moody
    lab = searched.copied()
    lab.moody = True
    table = table_of(lab, cover_curves, threads, "hot")
    assert lab.processes == REPEATS == 2
    seen = Counter[str]()
    for m, times in table.measured.items():
        us: dict[Composition, list[float]] = {composition: [] for composition in times}
        for composition, repeat in product(times, range(REPEATS + 1)):
            trial = Trial.of(OP, composition, Shape.of(m=m), threads=threads, cache="hot", repeat=repeat)
            record = lab.store.get(trial.key())
            if record is not None and isinstance(record.outcome, Timed):
                us[composition].append(record.outcome.median_us)
        chosen_from = us if threads == 1 else worth_sharing({composition: samples[0] for composition, samples in us.items()})
        best = min(us[composition][0] for composition in chosen_from)
        for composition, samples in us.items():
            assert times[composition] == pytest.approx(np.prod(samples) ** (1 / len(samples)))
            if m > 64:
                assert len(samples) == 1
            elif composition in chosen_from and samples[0] <= best * CLOSE:
                assert len(samples) >= 2
                seen["fell behind" if len(samples) == 2 else "to the end"] += 1
            else:
                seen["came up" if len(samples) > 1 else "far"] += 1
    assert min(seen[what] for what in ("fell behind", "to the end", "far", "came up")) > 0, seen
    again = len(lab.measured)
    table_of(lab, cover_curves, threads, "hot")
    assert len(lab.measured) == again and lab.processes == 2, "what is recorded is not timed once more"


def test_a_table_is_of_the_axis_that_is_dynamic() -> None:
    """Here n: eight of its columns are two tiles of four or one of eight."""
    op = Op.parse("dense:m=64,k=256")
    curves_by_share = {
        "serial": [Curve.of("a", 1, {1: 5.0}, 5.0), Curve.of("b", 4, {1: 6.0}, 6.0), Curve.of("c", 8, {1: 7.0}, 7.0)]
    }
    task = replace(TASK, op=op, traffic=Traffic.of_range(ShapeRange.parse("n=1..8")))
    table = decide(Timings(task=task, threads=1, rows={"serial": 8}, curves=curves_by_share, limit=8, measured={}))
    assert table.axis == "n" and table.at(Shape.of(n=8)).composition.label == "c*1@serial"
    with pytest.raises(IndexError, match=r"n=9 is not in the table's 1\.\.8"):
        table.at(Shape.of(n=9))
