"""The tuning loop with a model learnt elsewhere: single shapes are timed, and what is kept is timed whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from haotuner.cost.features import features
from haotuner.cost.forest import Forest
from haotuner.cost.model import Scores
from haotuner.cost.roofline import roofline_us
from haotuner.errors import HaotunerError
from haotuner.plan.compose import best_us, mean_us
from haotuner.search.probes import probe
from haotuner.search.task import Selections
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.record import Record, Timed, Trial
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.transfer.warm_start import Started
from haotuner.tuning.strategies import Tuned, tune
from tests.search.fake_lab import CORE, FAMILY, TASK, FakeLab
from tests.search.test_tuning import check_served, few, true_curve

pytestmark = pytest.mark.long

SMALL = replace(TASK, traffic=Traffic.of_range(ShapeRange.parse("m=1..96"), samples=16))
# With `start`, for tests of what follows the selection: it is made once for each.
STARTED, SMALL_STARTED = (replace(task, selections=Selections()) for task in (TASK, SMALL))


@pytest.fixture(scope="module")
def cold_lab() -> FakeLab:
    return FakeLab(CORE)


@pytest.fixture(scope="module")
def cold(cold_lab: FakeLab) -> Tuned:
    return tune(SMALL, cold_lab.as_lab(), FAMILY)


@pytest.fixture(scope="module")
def start(cold: Tuned) -> Forest:
    """A model of the device, from a third of the kernels."""
    lab = FakeLab(CORE)
    leads = [
        t for c in cold.funnel.candidates[::3] for _, t in probe(c.kernel, TASK.op, FAMILY, CORE, 256, cache="cold").lead
    ]
    pairs = [(MicroKernel.parse(trial.kernel), trial.shape) for trial in leads]
    least = roofline_us(CORE.with_units(1), TASK.op, [trial.shape for trial in leads])
    labels = np.log(least / np.array([lab.true_us(trial) for trial in leads]))
    return Forest().fit(features(CORE.with_units(1), FAMILY, TASK.op, pairs), labels)


@pytest.fixture(scope="module")
def warm_lab() -> FakeLab:
    return FakeLab(CORE)


@pytest.fixture(scope="module")
def warm(start: Forest, warm_lab: FakeLab) -> Tuned:
    return tune(SMALL_STARTED, warm_lab.as_lab(), FAMILY, model=Started(start))


class Backwards:
    """Says of every kernel how far it is from the mean, the wrong way round."""

    def __init__(self, right: Forest) -> None:
        self._right = right

    def predict(self, frame: pd.DataFrame) -> Scores:
        scores = self._right.predict(frame)
        return np.asarray(2 * scores.mean() - scores)


def quality(tuned: Tuned, lab: FakeLab) -> float:
    rows = np.array([shape["m"] for shape in SMALL.traffic.shapes()])
    weights = np.array([weight for _, weight in SMALL.traffic])
    return mean_us(best_us([true_curve(lab, kernel) for kernel in tuned.kernels], rows)[0], weights)


def foreseen(start: Forest) -> set[str]:
    """The kernels of a plan without any measurement."""
    return {
        kernel.name for kernel in tune(STARTED, FakeLab(CORE).as_lab(), FAMILY, lambda *_: False, Started(start)).kernels
    }


def probes_of(lab: FakeLab) -> dict[str, set[Trial]]:
    """What was timed of each kernel by itself."""
    trials: dict[str, set[Trial]] = {}
    for trial in lab.measured:
        if trial.threads == 1 and "*" not in trial.kernel:
            trials.setdefault(trial.kernel, set()).add(trial)
    return trials


def test_it_needs_fewer_measurements_than_from_cold(cold: Tuned, cold_lab: FakeLab, warm: Tuned) -> None:
    assert warm.stopped == "converged" and warm.timings < cold.timings, (warm.timings, cold.timings)
    assert quality(warm, cold_lab) <= quality(cold, cold_lab) * 1.03


def test_a_start_that_is_far_off_is_searched_for_longer_and_ends_as_well(
    start: Forest, cold: Tuned, cold_lab: FakeLab, warm: Tuned
) -> None:
    far = tune(SMALL, FakeLab(CORE).as_lab(), FAMILY, model=Started(Backwards(start)))
    assert far.timings > warm.timings
    assert quality(far, cold_lab) <= quality(cold, cold_lab) * 1.05


def test_most_kernels_are_timed_at_some_shapes_and_the_kept_ones_at_all(warm: Tuned, warm_lab: FakeLab) -> None:
    timed = probes_of(warm_lab)
    whole = {n: set(probe(MicroKernel.parse(n), TASK.op, FAMILY, CORE, 96, cache="cold").trials()) for n in timed}
    assert len([name for name, trials in timed.items() if not whole[name] <= trials]) > len(timed) / 2
    for kernel in warm.kernels:
        assert whole[kernel.name] <= timed[kernel.name]
    assert warm.measured == len(timed)


def test_the_same_seed_on_the_same_surface_gives_the_same_result(start: Forest, warm: Tuned, warm_lab: FakeLab) -> None:
    again = FakeLab(CORE)
    result = tune(SMALL, again.as_lab(), FAMILY, model=Started(start))
    assert again.measured == warm_lab.measured and result.kernels == warm.kernels and result.model == warm.model


def test_a_run_taken_up_again_asks_the_same_and_measures_nothing(start: Forest, warm: Tuned, warm_lab: FakeLab) -> None:
    again = FakeLab(CORE)
    again.store = dict(warm_lab.store)
    result = tune(SMALL_STARTED, again.as_lab(), FAMILY, model=Started(start))
    assert again.measured == [] and result.kernels == warm.kernels and result.timings == warm.timings
    assert set(again.prepared) <= {kernel.name for kernel in warm.kernels}


def test_what_is_recorded_counts_however_short_the_time_is(start: Forest, warm: Tuned, warm_lab: FakeLab) -> None:
    again = FakeLab(CORE)
    again.store = dict(warm_lab.store)
    result = tune(replace(SMALL, budget_s=1e-3), again.as_lab(), FAMILY, model=Started(start))
    assert again.measured == [] and result.measured == warm.measured
    assert quality(result, again) <= quality(warm, again) * 1.02


def test_what_is_kept_is_compared_with_all_that_was_measured(warm: Tuned, warm_lab: FakeLab) -> None:
    """Only what is kept is timed whole; compared with whole kernels alone, nothing would seem lost by keeping few."""
    shapes = list(SMALL.traffic)
    assert warm.cover is not None and warm.regret == warm.cover.regret
    cover_us = best_us(warm.cover.curves, np.array([shape["m"] for shape, _ in shapes]))[0]
    assert float(cover_us @ [weight for _, weight in shapes]) == pytest.approx(warm.cover.objective_us)
    least = {shape["m"]: us for (shape, _), us in zip(shapes, cover_us.tolist(), strict=True)}
    mine = {kernel.name for kernel in warm.kernels}
    for name, trials in probes_of(warm_lab).items():
        for trial in trials if name not in mine else ():
            outcome, m = warm_lab.store[trial.key()].outcome, trial.shape["m"]
            if isinstance(outcome, Timed) and trial.weights == "cold" and m in least:
                least[m] = min(least[m], outcome.median_us)
    assert warm.cover.unlimited_us <= sum(weight * least[shape["m"]] for shape, weight in shapes) + 1e-9
    assert 0 <= warm.regret < 0.1


@pytest.mark.parametrize("after", [1, 5, 30])
def test_a_signal_in_the_middle_ends_it_with_a_plan_of_what_is_known(start: Forest, after: int) -> None:
    fake, records = FakeLab(CORE), []

    def watch(phase: str, record: Record | None) -> bool:
        records.append(record)
        return sum(r is not None for r in records) < after

    result = tune(STARTED, fake.as_lab(), FAMILY, watch, model=Started(start))
    assert result.stopped == "signal" and len(fake.measured) == after and result.measured > 0
    check_served(result.row_tables[0])
    known = {trial.kernel for trial in fake.measured}
    assert {kernel.name for kernel in result.kernels} <= known | foreseen(start)


def test_a_plan_of_a_run_without_time_rests_on_one_whole_kernel(start: Forest) -> None:
    fake = FakeLab(CORE)
    result = tune(replace(TASK, budget_s=1e-3), fake.as_lab(), FAMILY, model=Started(start))
    assert result.stopped == "budget" and result.measured == 1
    assert {kernel.name for kernel in result.kernels} <= set(probes_of(fake)) | foreseen(start)
    check_served(result.row_tables[0])


def test_kernels_that_fail_are_left_out(start: Forest) -> None:
    broken = FakeLab(CORE, fails=lambda kernel: kernel["mr"] > 1 and kernel["mr"] % 2 == 0)
    result = tune(STARTED, broken.as_lab(), FAMILY, model=Started(start))
    assert broken.failures["crash"] > 0
    assert all(kernel["mr"] == 1 or kernel["mr"] % 2 for kernel in result.kernels)


def test_all_candidates_failing_is_an_error_that_says_what_was_seen(start: Forest, cold: Tuned) -> None:
    broken = FakeLab(CORE, fails=lambda _: True)
    with pytest.raises(HaotunerError, match=r"every candidate failed \([0-9]+ crash\).*haotuner doctor"):
        tune(replace(TASK, among=few(cold)), broken.as_lab(), FAMILY, model=Started(start))


def test_without_a_measurement_times_are_as_the_model_predicts_them(start: Forest) -> None:
    """Caution is for comparing measured with predicted; where all is predicted it would only make every time longer."""
    result = tune(SMALL_STARTED, FakeLab(CORE).as_lab(), FAMILY, watch=lambda *_: False, model=Started(start))
    assert result.measured == 0 and result.cover is not None
    frame = features(CORE.with_units(1), FAMILY, TASK.op, [(k, Shape.of(m=k["mr"])) for k in result.kernels])
    least = roofline_us(CORE.with_units(1), TASK.op, [Shape.of(m=k["mr"]) for k in result.kernels])
    alone = {curve.kernel: curve.lead_us[0][1] for curve in result.cover.curves}
    for kernel, us in zip(result.kernels, least / np.exp(start.predict(frame)), strict=True):
        assert alone[kernel.name] <= us * 1.001, "a curve may be pulled down by a later point, never up"
