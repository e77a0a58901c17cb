"""Crowding: trials whose threads shared a core are timed again, for a fair share of the time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from haotuner.backends.cpu import interference as module
from haotuner.backends.cpu.interference import (
    CROWDED,
    FIRST_S,
    MOST_S,
    SHARE,
    Answer,
    RetryPolicy,
    ThroughputProbe,
    core_contention,
    lost,
    undisturbed,
)
from haotuner.backends.cpu.timer_process import TimerProcess
from haotuner.records.codec import trial_of
from haotuner.spec.device import Device
from haotuner.spec.shape import Shape
from tests.backends.native_jobs import job, mutant_library

TRIAL_S = 0.02


def answer(ratio: float, us: float = 50.0) -> Answer:
    return {"samples_us": [us] * 3, "compute_us": [10.0, 10.0, 90.0], "together_us": [10.0 * ratio, 10.0 * ratio, 10.0]}


class Clock:
    """Time that only sleeping and trials take."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake_clock = Clock()
    monkeypatch.setattr(module, "time", fake_clock)
    return fake_clock


class Trials:
    """Answers one after the other; the last for ever."""

    def __init__(self, clock: Clock, *answers: Answer) -> None:
        self.clock, self.answers, self.asked = clock, answers, 0
        self._next: Iterator[Answer] = iter(answers)

    def __call__(self) -> Answer:
        self.asked += 1
        self.clock.now += TRIAL_S
        return next(self._next, self.answers[-1])


def test_the_ratio_is_of_medians_and_one_where_nothing_was_seen() -> None:
    assert core_contention(answer(1.6)) == pytest.approx(1.6)
    assert core_contention({"samples_us": [5.0], "compute_us": [10.0]}) == 1.0
    assert core_contention({"samples_us": [5.0], "compute_us": [10.0], "together_us": [0.0]}) == 1.0
    assert core_contention({"samples_us": [], "compute_us": [], "together_us": []}) == 1.0


def test_what_is_not_crowded_is_timed_once(clock: Clock) -> None:
    trials = Trials(clock, answer(1.05), answer(1.0))
    seen, crowded = RetryPolicy().least_crowded(trials)
    assert (seen, crowded, trials.asked, clock.slept) == (trials.answers[0], 1.0, 1, 0)


def patient(clock: Clock) -> RetryPolicy:
    """One that knows this machine gives threads cores of their own."""
    policy = RetryPolicy()
    policy.least_crowded(Trials(clock, answer(0.8)))  # noise: less than alone there is not
    policy.least_crowded(Trials(clock, answer(1.02)))
    clock.now = clock.slept = 0.0
    return policy


def test_a_crowded_trial_is_timed_until_it_is_not(clock: Clock) -> None:
    trials = Trials(clock, answer(1.9, 90.0), answer(1.5, 80.0), answer(CROWDED - 0.01, 50.0), answer(1.0, 1.0))
    seen, crowded = patient(clock).least_crowded(trials)
    assert seen["samples_us"] == [50.0] * 3 and crowded == pytest.approx(CROWDED - 0.01)
    assert trials.asked == 3 and clock.slept > 0


def test_of_a_trial_that_a_spell_came_into_the_samples_outside_of_it_count(clock: Clock) -> None:
    looks = [10.0, 10.0, 17.0, 17.0, 10.0, 10.0, 10.0]
    mixed = {"samples_us": [50.0, 51.0, 90.0, 95.0, 70.0, 52.0, 53.0], "compute_us": [10.0] * 7, "together_us": looks}
    trials = Trials(clock, mixed)
    seen, crowded = patient(clock).least_crowded(trials)
    assert (seen["samples_us"], crowded, trials.asked) == ([50.0, 51.0, 52.0, 53.0], 1.0, 1)
    few = {name: row[1:5] for name, row in mixed.items()}
    trials = Trials(clock, few, mixed)
    assert patient(clock).least_crowded(trials)[0]["samples_us"] == [50.0, 51.0, 52.0, 53.0] and trials.asked == 2


def test_patience_ends_and_the_least_crowded_answer_is_kept(clock: Clock) -> None:
    trials = Trials(clock, answer(1.9), answer(1.5, 70.0), answer(1.8))
    seen, crowded = patient(clock).least_crowded(trials)
    assert seen["samples_us"] == [70.0] * 3 and crowded == pytest.approx(1.5)
    assert FIRST_S < clock.now < FIRST_S + 0.3


def test_patience_does_not_add_up_for_ever(clock: Clock) -> None:
    """A budget's end is not looked for while a trial is waited for."""
    patience, quiet = patient(clock), Trials(clock, answer(1.0))
    for _ in range(10_000):
        patience.least_crowded(quiet)
    before = clock.now
    patience.least_crowded(Trials(clock, answer(1.9)))
    assert MOST_S < clock.now - before < MOST_S + 0.3


def test_in_a_long_spell_waiting_takes_a_share_of_the_time(clock: Clock) -> None:
    patience, trials = patient(clock), Trials(clock, answer(1.9))
    for _ in range(2000):
        patience.least_crowded(trials)
    assert clock.now == pytest.approx(2000 * TRIAL_S * (1 + SHARE) + FIRST_S, rel=0.02)


def test_where_cores_are_always_shared_nothing_is_crowded_once_that_is_known(clock: Clock) -> None:
    patience, trials = RetryPolicy(), Trials(clock, answer(1.7), answer(1.6), answer(1.65))
    assert patience.least_crowded(trials)[1] == 1.0
    assert FIRST_S < clock.now < FIRST_S + 0.3
    slept, trial_count = clock.slept, trials.asked
    assert [patience.least_crowded(trials)[1] for _ in range(3)] == pytest.approx([1.65 / 1.6] * 3)
    assert (trials.asked, clock.slept) == (trial_count + 3, slept)


def test_a_spell_in_which_the_first_trial_began_is_not_taken_for_the_machine(clock: Clock) -> None:
    patience, trials = (
        RetryPolicy(),
        Trials(clock, answer(1.7, 90.0), answer(1.7, 90.0), answer(1.0, 50.0), answer(1.6, 90.0)),
    )
    seen, crowded = patience.least_crowded(trials)
    assert (seen["samples_us"], crowded, trials.asked) == ([50.0] * 3, 1.0, 3)
    assert patience.least_crowded(trials)[1] == pytest.approx(1.6), "and later ones are told from it"


@pytest.mark.parametrize("weights, us, whole", [("hot", 195.0, 100.0), ("cold", 147.5, 100.0), ("cold", 40.0, 40.0)])
def test_a_shared_core_costs_arithmetic_and_no_memory(weights: str, us: float, whole: float) -> None:
    """The read of the weight takes 50 us."""
    device = Device(id="d", kind="cpu", name="d", arch="x86-64-v3", compute_units=2, wave_width=8, registers_per_thread=16,
                    memory_gbps=80.0)  # fmt: skip
    trial = trial_of(op="dense_n1000_k1000", kernel="k", shape=Shape.of(m=9), threads=2, weights=weights)
    few = replace(trial, shape=Shape.of(m=8))
    assert lost(few, device, us, 1.7) == (1.0 if weights == "cold" else pytest.approx(1.95))
    assert us / lost(trial, device, us, 1.7) == pytest.approx(whole)
    assert lost(trial, device, us, CROWDED) == 1.0
    gflops = 18e6 / (2 * 0.9 * us) / 1e3  # both threads reach it in 0.9 of the time
    assert us / lost(trial, replace(device, peak_gflops_unit=gflops), us, 1.7) == pytest.approx(max(0.9 * us, whole))
    assert lost(trial, replace(device, peak_gflops_unit=gflops / 2), us, 1.7) == 1.0
    assert 1.0 <= lost(trial, device, us, 1.4) <= lost(trial, device, us, 1.6) == lost(trial, device, us, 2.5)


def test_the_crowd_is_taken_out_before_the_drift() -> None:
    device = Device(id="d", kind="cpu", name="d", arch="x86-64-v3", compute_units=2, wave_width=8, registers_per_thread=16)
    trial = trial_of(op="dense_n1000_k1000", kernel="k", shape=Shape.of(m=8), threads=2, weights="hot")
    seen = {**answer(1.7, 195.0), "memory_us": [0.0] * 3}
    samples, factor = undisturbed(trial, device, seen, ThroughputProbe(memory_us=0.0, compute_us=10.0), 1.7)
    assert samples == pytest.approx((100.0,) * 3) and factor == pytest.approx(1.95)


def test_what_one_thread_computed_alone_is_not_put_right_nor_says_what_the_machine_gives(clock: Clock) -> None:
    patience, alone = RetryPolicy(), {**answer(1.0, 90.0), "together_us": [0.0] * 3}
    assert patience.least_crowded(Trials(clock, alone)) == (alone, 1.0)
    trials = Trials(clock, answer(1.7), answer(1.6))
    assert patience.least_crowded(trials)[1] == 1.0, "where cores are always shared that is still to be learnt"


def test_the_worker_looks_at_all_threads_at_once_where_they_share_a_call(tmp_path) -> None:
    library, timer = mutant_library(tmp_path), TimerProcess()
    assert not any(timer.time(job(library, threads=2, split=0))["together_us"]), "the caller's alone"
    seen = timer.time(job(library, threads=2, split=1, most=5, least=5))
    assert len(seen["together_us"]) == len(seen["samples_us"]) == 5
    assert min(seen["together_us"]) > min(seen["compute_us"]) / 2
    assert core_contention(seen) > 0.5
