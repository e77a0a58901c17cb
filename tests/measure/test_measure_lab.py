"""The lab: trials in, records out; failures stay with the kernel that failed; nothing is measured twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from haotuner.backends.cpu.backend import CpuBackend
from haotuner.backends.cpu.interference import ThroughputProbe
from haotuner.backends.cpu.timer import CpuTimer
from haotuner.backends.fingerprint import Policy
from haotuner.hw_profiles.find import find_device
from haotuner.isolate.answers import Job, TimedOut
from haotuner.isolate.child import Child
from haotuner.measure.device_measurer import BATCH, FIRST_BATCH, DeviceMeasurer, _batches
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.records import MemoryStore, RecordStore
from haotuner.records.codec import trial_of
from haotuner.spec.device import Device
from haotuner.spec.record import Failed, Record, Timed, Trial
from haotuner.spec.shape import Shape
from tests.backends.native_jobs import ENVIRONMENT

OP = "dense_n100_k33"
QUICK = Policy(sample_us=5, limit_us=50, least=3, most=4)


@pytest.fixture(scope="module")
def device() -> Device:
    """This host's, with a small last-level cache: each timer fills four of them, 1.2 GB beside the largest."""
    return replace(find_device("cpu", measure=False), l3_bytes=8 << 20)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(scope="module")
def lab(device: Device, store: MemoryStore) -> Iterator[DeviceMeasurer]:
    measurer = new_lab(device, store)
    yield measurer
    measurer.close()


def timer_of(lab: DeviceMeasurer) -> CpuTimer:
    timer = lab._timer
    assert isinstance(timer, CpuTimer)
    return timer


def new_lab(device: Device, store: RecordStore, *, resume: bool = False, policy: Policy = QUICK) -> DeviceMeasurer:
    return DeviceMeasurer(device, store, environment=ENVIRONMENT, policy=policy, builders=1, resume=resume)


def name(device: Device, mr: int, vectors: int = 1, ku: int = 1) -> str:
    lanes = device.wave_width
    return CpuDense().kernel(mr, vectors * lanes, lanes, ku, lanes).name


def trial(kernel: str, m: int, *, threads: int = 1, split: str = "n") -> Trial:
    return trial_of(op=OP, kernel=kernel, shape=Shape.of(m=m), threads=threads, weights="hot", split=split)


def test_a_kernel_that_does_not_build_fails_alone(lab: DeviceMeasurer, device: Device) -> None:
    good, bad = [name(device, mr) for mr in (1, 2, 3)], name(device, 2, ku=0)  # k // 0 does not compile
    lab.prepare([good[0], bad, *good[1:]])
    records = lab.measure([trial(good[0], 5), trial(bad, 4), trial(good[1], 6), trial(good[2], 9)])
    kinds = [record.outcome for record in records]
    assert [isinstance(outcome, Timed) for outcome in kinds] == [True, False, True, True]
    assert isinstance(kinds[1], Failed) and (kinds[1].stage, kinds[1].reason) == ("build", "compile_error")
    assert kinds[1].detail and lab.failures["compile_error"] >= 1


@pytest.mark.parametrize("builders", [1, 2])
@pytest.mark.parametrize("count", [1, 2, 5, 38, 100])
def test_what_a_turn_builds_first_is_little(builders: int, count: int) -> None:
    names = [str(index) for index in range(count)]
    batches = _batches(names, builders, BATCH)
    assert [name for batch in batches for name in batch] == names
    assert max(map(len, batches[:builders])) <= FIRST_BATCH
    assert max(map(len, batches)) <= BATCH and len(batches) <= count / BATCH + 3 * builders
    assert len(batches) >= min(count, builders), "no builder is idle while another has several"
    assert all(len(batch) == 1 for batch in _batches(names, builders, 1))


def test_a_composition_of_kernels_built_apart_is_measured(lab: DeviceMeasurer, device: Device) -> None:
    one_row, four_rows = name(device, 1), name(device, 4, vectors=2)
    lab.prepare([one_row])
    lab.prepare([four_rows])
    records = lab.measure(
        [
            trial(f"{four_rows}*2+{one_row}*3", 11),
            trial(f"{four_rows}*2+{one_row}*3", 11, threads=2, split="m"),
            trial(four_rows, 8),
        ]
    )
    assert all(isinstance(record.outcome, Timed) for record in records)


def test_gathered_kernels_lie_in_one_library(lab: DeviceMeasurer, device: Device) -> None:
    kernels = [name(device, mr, vectors=3) for mr in (1, 2, 3)]
    lab.prepare(kernels[:1])
    lab.gather([*kernels, name(device, 2, ku=0)])
    lab.gather(kernels)
    assert len({lab._slots[kernel].library for kernel in kernels}) == 1
    assert isinstance(lab.measure([trial("+".join(f"{k}*1" for k in kernels), 6)])[0].outcome, Timed)


def test_a_record_says_what_drift_was_taken_out_of_it(lab: DeviceMeasurer, device: Device) -> None:
    """One look at the machine serves all processes that time: their times stay comparable."""
    (first,) = lab.measure([trial(name(device, 1), 60)])
    quiet = timer_of(lab)._quiet
    assert quiet is not None and quiet.compute_us > 0
    lab.anew()
    (again,) = lab.measure([trial(name(device, 1), 60)])
    assert timer_of(lab)._quiet is quiet
    assert all(0 < float(record.facts["drift"]) < 16 for record in (first, again))


@pytest.mark.long
def test_a_record_of_several_threads_says_whether_they_shared_a_core(device: Device) -> None:
    """What is usual for one thread count is not for another: four threads on two cores always share them."""
    lab = new_lab(device, MemoryStore())
    try:
        serial, two, four = lab.measure([trial(name(device, 1), 60, threads=threads) for threads in (1, 2, 4)])
        assert "crowding" not in serial.facts and set(timer_of(lab)._patience) == {2, 4}
        assert all(0 < float(record.facts["crowding"]) <= 1.0 for record in (two, four)), "the first of its kind is usual"
    finally:
        lab.close()


@pytest.mark.long
def test_a_large_call_gets_time_in_proportion(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    lab, limits = new_lab(device, MemoryStore()), {}

    def hangs(job: Job, limit_s: float) -> Job:
        limits[int(job["m"])] = limit_s
        raise TimedOut("no answer")

    kernel = name(device, 1)
    try:
        (known,) = lab.measure([trial(kernel, 61)])  # built, verified and looked at: what is left is the time
        monkeypatch.setattr(timer_of(lab)._process, "ask", hangs)
        small, large = lab.measure([trial(kernel, 62), trial(kernel, 400_000_000)])
    finally:
        lab.close()
    assert isinstance(known.outcome, Timed) and isinstance(small.outcome, Failed) and isinstance(large.outcome, Failed)
    assert (large.outcome.stage, large.outcome.reason) == ("time", "timeout")
    assert limits[62] == pytest.approx(20.0, rel=0.01)
    calls_s = (limits[400_000_000] - 20.0) / 5  # the bare call, one to size the batch, three samples
    assert calls_s == pytest.approx(2 * 100 * 33 * 4e8 / 5e9), "at the five GFLOP/s of the slowest kernel"


def test_a_composition_that_does_not_cover_m_is_a_failed_record(lab: DeviceMeasurer, device: Device) -> None:
    (record,) = lab.measure([trial(f"{name(device, 2)}*2", 5)])
    assert isinstance(record.outcome, Failed) and (record.outcome.stage, record.outcome.reason) == ("run", "error")
    assert "cover" in record.outcome.detail


def test_a_record_is_stored_before_anyone_is_told(lab: DeviceMeasurer, store: MemoryStore, device: Device) -> None:
    seen = []

    def goes_on(record: Record | None) -> bool:
        if record is not None:
            seen.append(record.id in {r.id for r in store.records(session=lab.session.id)})
        return True

    lab.measure([trial(name(device, mr), 2 * mr, split="m") for mr in (1, 2)], goes_on)
    assert seen == [True, True]


def test_the_list_ends_when_told_and_nothing_is_built_in_vain(lab: DeviceMeasurer, device: Device) -> None:
    fresh = name(device, 5)
    assert lab.measure([trial(fresh, 5)], lambda _: False) == []
    assert fresh not in lab._slots
    known = trial(name(device, 1), 50)
    lab.measure([known])
    left = iter([True, True])
    several = [known, *(trial(name(device, 1), m) for m in (51, 52, 53))]
    records = lab.measure(several, lambda record: record is not None or next(left, False))
    assert [record.trial for record in records] == several[:2]  # asked before the build, then before each


def test_resume_measures_nothing_again(device: Device, store: MemoryStore, lab: DeviceMeasurer) -> None:
    lab.measure([trial(name(device, 1), 7), trial(name(device, 2, ku=0), 2)])
    before = list(store.records(session=lab.session.id))
    again = new_lab(device, store, resume=True)
    try:
        assert again.session.id == lab.session.id and again.reused == len({r.trial.key() for r in before})
        records = again.measure([r.trial for r in before], lambda record: record is not None)  # no to anything new
        assert [r.trial for r in records] == [r.trial for r in before]
        assert list(store.records(session=lab.session.id)) == before
        assert timer_of(again)._process.pid is None and not again._slots  # nothing was built or timed
    finally:
        again.close()


def test_only_the_kernels_whose_code_has_changed_are_measured_again(
    device: Device, store: MemoryStore, lab: DeviceMeasurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    same, changed = trial(name(device, 1), 8), trial(name(device, 2), 8)
    lab.measure([same, changed])
    again = new_lab(device, store, resume=True)
    try:
        again._code[changed.kernel] = "another"
        assert again.known(same) == lab.known(same) and again.known(changed) is None
        (record,) = again.measure([changed])
        before = lab.known(changed)
        assert before is not None and record.session == lab.session.id and record.fingerprint != before.fingerprint
    finally:
        again.close()
    monkeypatch.setattr(CpuBackend, "code_request", lambda *_: {"do": "no such verb"})
    unknown = new_lab(device, store, resume=True)
    try:
        assert unknown.known(same) is None, "where nobody can say what code is, nothing counts"
    finally:
        unknown.close()


@pytest.mark.long
def test_a_resumed_session_keeps_the_pace_of_its_first_look(device: Device, store: MemoryStore, lab: DeviceMeasurer) -> None:
    """Times of both runs are divided by what was lost since the same moment."""
    (first,) = lab.measure([trial(name(device, 1), 61)])
    again = new_lab(device, store, resume=True)
    try:
        (more,) = again.measure([trial(name(device, 1), 62)])
    finally:
        again.close()
    assert (
        ThroughputProbe.from_facts(first.facts) == ThroughputProbe.from_facts(more.facts) == timer_of(lab)._quiet is not None
    )


def test_without_resume_or_under_another_policy_nothing_is_reused(
    device: Device, store: MemoryStore, lab: DeviceMeasurer
) -> None:
    for other in (new_lab(device, store), new_lab(device, store, resume=True, policy=replace(QUICK, most=5))):
        assert other.reused == 0 and other.session.id != lab.session.id
        other.close()


@pytest.mark.long
def test_closing_stops_the_processes_and_removes_the_files(device: Device) -> None:
    own = new_lab(device, MemoryStore())
    own.measure([trial("no_family__mr1_nr16_pw16_ku1_vl16", 1)])
    builder = own._builders[0]
    assert isinstance(builder, Child)
    scratch, pid = own._scratch, builder.pid
    assert scratch.is_dir() and pid is not None
    own.close()
    own.close()
    assert not scratch.exists() and not Path(f"/proc/{pid}").exists()
