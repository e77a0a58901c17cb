"""Trials, outcomes and records: what they refuse, and ids that never move."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.records.codec import trial_of
from haotuner.spec.composition import SERIAL, Composition
from haotuner.spec.op import Op
from haotuner.spec.record import REASONS, STAGES, Failed, OpName, Record, Timed, Trial
from haotuner.spec.shape import Shape
from tests.contract.record_examples import record
from tests.contract.record_strategies import records

positive = st.floats(min_value=1e-6, max_value=1e9)


@pytest.mark.parametrize("samples", [(), (0.0,), (-1.0,), (math.nan,), (math.inf,), (1.0, 0.0), (1.0, math.nan)])
def test_samples_that_are_no_times_are_refused(samples):
    with pytest.raises(ValueError, match="positive and finite"):
        Timed(samples_us=samples)


@given(st.lists(positive, min_size=1, max_size=20))
def test_median_and_spread_do_not_depend_on_order(samples):
    timed, turned = Timed(samples_us=tuple(samples)), Timed(samples_us=tuple(reversed(samples)))
    assert timed.median_us == turned.median_us
    assert min(samples) <= timed.median_us <= max(samples)
    assert timed.spread == turned.spread
    assert timed.spread >= 0
    if len(set(samples)) == 1:
        assert timed.spread == 0


@pytest.mark.parametrize("stage, reason", [("lunch", "crash"), ("run", "bored"), ("", ""), ("Run", "crash")])
def test_a_failure_uses_the_known_words(stage, reason):
    with pytest.raises(ValueError, match="must be one of"):
        Failed(stage=stage, reason=reason)


def test_every_known_failure_can_be_written_down():
    assert all(Failed(stage=stage, reason=reason).detail == "" for stage in STAGES for reason in REASONS)


def test_an_id_is_the_same_in_every_version():
    """The ids of stored records; a change here orphans every database in the world."""
    assert record(1).id == "b809fded494e2e242b95c467aa774a47"
    assert (
        record(2, outcome=Failed(stage="run", reason="crash", detail="signal 11")).id == "57e593542c21b712b5e26e59871ecca1"
    )
    trial = trial_of(op="dense_n8_k8", kernel="a__mr1", shape=Shape.of(n=2, m=1), threads=4, weights="hot", split="m")
    assert trial.key() == '["dense_n8_k8","a__mr1",{"m":1,"n":2},4,"hot","m"]'
    assert dataclasses.replace(trial, repeat=2).key() == '["dense_n8_k8","a__mr1",{"m":1,"n":2},4,"hot","m",2]'


@pytest.mark.parametrize("op", ["dense_n8_k8", "dense:n=8,k=8", "conv2d_w4_fw3", "no extents", "loops_0a1b", ""])
@pytest.mark.parametrize("kernel", ["a__mr1", "a__mr1*3+b__mr2*1", "a*", "a@n", "a*03", "+", ""])
@pytest.mark.parametrize("threads, split", [(1, "n"), (1, "m"), (1, "k4"), (2, "n"), (2, "m")])
def test_a_trial_of_any_texts_writes_them_again(op: str, kernel: str, threads: int, split: str) -> None:
    trial = trial_of(op, kernel, Shape.of(m=1), threads=threads, split=split)
    assert (trial.op.name, trial.kernel, trial.threads, trial.split) == (op, kernel, threads, split)
    assert trial.key() == json.dumps([op, kernel, {"m": 1}, threads, "cold", split], separators=(",", ":"))


def test_an_op_that_is_known_is_a_value_and_of_another_the_name_says_what_to_do() -> None:
    assert trial_of("dense_n8_k8", "a__mr1", Shape.of(m=1)).known_op == Op.parse("dense:n=8,k=8")
    with pytest.raises(ValueError, match="trial of 'loops_0a1b': this process knows no such operator; install"):
        _ = trial_of("loops_0a1b", "c_loops__v1", Shape.of(m=1)).known_op


def test_one_thread_shares_nothing_whatever_its_composition_says() -> None:
    trial = Trial(op=OpName("op"), composition=Composition.of("a__mr1", share="n"), shape=Shape.of(m=1))
    assert trial.composition.share == SERIAL and trial.split == "n"
    assert trial == trial_of("op", "a__mr1", Shape.of(m=1)) and hash(trial) == hash(trial_of("op", "a__mr1", Shape.of(m=1)))


@pytest.mark.parametrize("repeat", [-1, 2**63])
def test_a_repeat_that_no_database_can_hold_is_refused(repeat):
    with pytest.raises(ValueError, match=f"repeat {repeat} must be in"):
        dataclasses.replace(record(1).trial, repeat=repeat)


@given(records)
def test_an_id_depends_on_what_was_seen_and_not_on_what_was_noted_beside_it(record):
    assert len(record.id) == 32
    assert dataclasses.replace(record, facts={"more": 1.0}, seed=record.seed ^ 1).id == record.id
    for change in (
        {"device_id": "other"},
        {"fingerprint": "other"},
        {"session": "other"},
        {"when": record.when + 1},
        {"trial": dataclasses.replace(record.trial, threads=record.trial.threads + 1)},
        {"outcome": Failed(stage="run", reason="crash", detail="x" * 50)},
    ):
        assert dataclasses.replace(record, **change).id != record.id


def test_whole_and_floating_numbers_of_one_value_give_one_id():
    whole = dataclasses.replace(record(1), when=1_700_000_000, outcome=Timed(samples_us=(5, 6)))
    floating = dataclasses.replace(record(1), when=1_700_000_000.0, outcome=Timed(samples_us=(5.0, 6.0)))
    assert whole.id == floating.id


@pytest.mark.parametrize(
    "change, match",
    [
        ({"when": math.nan}, "when is nan"),
        ({"when": math.inf}, "when is inf"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 2**63}, "seed"),
        ({"facts": {"clock_mhz": math.nan}}, "fact clock_mhz"),
        ({"facts": {"clock_mhz": math.inf}}, "fact clock_mhz"),
    ],
)
def test_a_record_checks_itself(change, match):
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(record(1), **change)


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        record(1).seed = 3  # type: ignore[misc]
    assert Record.__slots__
