"""A tuned plan is not slower than one without measurements, whatever noise there is: true times of a known surface."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from haotuner.plan.table import RowTable
from haotuner.search.failures import FailedKernels
from haotuner.search.observations import BETWEEN, combined, shrunk, variance_of
from haotuner.search.row_cover_search import WHOLE_UP_TO
from haotuner.search.task import Selections
from haotuner.spec.composition import Composition
from haotuner.spec.record import Failed, Outcome, Record, Timed, Trial
from haotuner.spec.shape import Shape
from haotuner.tuning.strategies import tune
from tests.search.fake_lab import CORE, FAMILY, TASK, FakeLab

SELECTIONS = Selections()  # made once: noise comes after it
ROWS = [shape["m"] for shape in TASK.traffic.shapes()]
NOISE, SPELLS = 0.1, 0.15  # log units of a process and of a sample; share of trials that a spell of other work slowed


class Noisy(FakeLab):
    """Processes that differ, samples that differ, and spells of other work that slow most samples of a trial."""

    def _outcome(self, trial: Trial) -> Outcome:
        if not isinstance(super()._outcome(trial), Timed):
            raise AssertionError("nothing fails here")
        draw = np.random.default_rng(zlib.crc32(f"{self.seed} {trial.key()}".encode()))
        us = self.true_us(trial) * np.exp(NOISE * (draw.standard_normal() + draw.standard_normal(5)))
        us[: draw.integers(3, 6)] *= 1.5 if draw.random() < SPELLS else 1.0
        return Timed(samples_us=tuple(us))


class Nothing(FakeLab):
    def measure(self, *_: object) -> list[Record]:
        return []


def true_us(table: RowTable) -> NDArray[np.float64]:
    lab = FakeLab(CORE)
    planned = [(m, table.entries[m - 1].composition) for m in ROWS]
    return np.array(
        [lab.true_us(Trial.of(TASK.op, composition, Shape.of(m=m), cache=TASK.cache)) for m, composition in planned]
    )


@pytest.fixture(scope="module")
def unmeasured() -> NDArray[np.float64]:
    task = replace(TASK, selections=SELECTIONS, budget_s=0.0)
    return true_us(tune(task, Nothing(CORE).as_lab(), FAMILY).row_tables[0])


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_a_tuned_plan_is_no_slower_than_one_without_measurements(seed: int, unmeasured: NDArray[np.float64]) -> None:
    lab = Noisy(CORE, seed=seed)
    tuned = tune(replace(TASK, selections=SELECTIONS), lab.as_lab(), FAMILY)
    ratios = true_us(tuned.row_tables[0]) / unmeasured
    small = ratios[np.array(ROWS) <= WHOLE_UP_TO]
    assert np.exp(np.log(ratios).mean()) < 1.005 and np.exp(np.log(small).mean()) < 1.02
    assert ratios.max() < 1 + NOISE, f"m={ROWS[int(ratios.argmax())]}"
    timed = {trial.shape["m"] for trial in lab.measured if len(trial.composition.parts) == 1}
    heights = {candidate.kernel["mr"] for candidate in tuned.funnel.candidates}
    assert timed >= {m for m in ROWS if m <= WHOLE_UP_TO and m in heights}, "a tile of each small height is timed"


class Starved(FakeLab):
    """Other programs have the cores: every trial times out but those of one kernel, if any."""

    lone = ""

    def _outcome(self, trial: Trial) -> Outcome:
        if {part.kernel for part in trial.composition.parts} == {self.lone}:
            return super()._outcome(trial)
        return Failed(stage="verify", reason="timeout", detail="scripted")


@pytest.mark.parametrize("budget_s", [0.0, TASK.budget_s])
@pytest.mark.parametrize("has_time", [True, False])
def test_time_outs_of_a_crowded_host_are_no_evidence(
    budget_s: float, has_time: bool, unmeasured: NDArray[np.float64]
) -> None:
    lab, task = Starved(CORE), replace(TASK, selections=SELECTIONS, budget_s=budget_s)
    if has_time:
        candidates = tune(replace(task, budget_s=0.0), Nothing(CORE).as_lab(), FAMILY).funnel.candidates
        lab.lone = next(candidate.kernel.name for candidate in candidates if candidate.kernel["mr"] == 1)
    tuned = tune(task, lab.as_lab(), FAMILY)
    ratios = true_us(tuned.row_tables[0]) / unmeasured
    assert np.exp(np.log(ratios).mean()) < 1.05 and ratios.max() < 1.5
    assert tuned.measured == (has_time and budget_s > 0)


def test_a_lone_time_out_counts_against_its_kernel() -> None:
    failed = FailedKernels()
    for name, stage, reason in (("a", "run", "timeout"), ("b", "build", "timeout"), ("c", "verify", "crash")):
        failed.note(name, record_of(Failed(stage=stage, reason=reason)))
    assert failed == {"a", "b", "c"} and not failed.forget_timeouts(1) and failed == {"a", "b", "c"}
    assert failed.forget_timeouts(0) and failed == {"b", "c"}


def record_of(outcome: Outcome) -> Record:
    trial = Trial.of(TASK.op, Composition.of("cpu_dense_fp32__mr1"), Shape.of(m=1))
    return Record(trial=trial, outcome=outcome, device_id="fake", fingerprint="", session="", when=0.0)


def test_times_are_drawn_to_what_is_expected_as_far_as_their_repeats_disagree() -> None:
    draw = np.random.default_rng(0)
    expected = np.exp(draw.uniform(0, 5, 400))
    truth = 3.0 * expected * np.exp(0.15 * draw.standard_normal(400))
    for noise in (0.01, 0.1, 0.4):
        us = truth * np.exp(noise * draw.standard_normal(400))
        shrunk_us = shrunk(us, np.full(400, noise**2), list(expected))
        before, after = (float(np.square(np.log(times / truth)).mean()) for times in (us, shrunk_us))
        assert after <= before * 1.02, noise
        assert (after < 0.6 * before) == (noise > 0.3)
    few = truth[:5]
    assert shrunk(few, np.full(5, 0.1), list(expected[:5])) is few


def test_two_processes_that_disagree_are_trusted_less() -> None:
    calm = Timed(samples_us=(10.0,) * 5)
    assert variance_of(calm) == pytest.approx(BETWEEN**2)
    assert variance_of(Timed(samples_us=(10.0, 14.0, 9.0, 10.5, 12.0))) > 4 * BETWEEN**2
    near, far = combined(10.0, BETWEEN**2, 10.1), combined(10.0, BETWEEN**2, 15.0)
    assert near[0] == pytest.approx(10.05) and near[1] < BETWEEN**2 < far[1]
