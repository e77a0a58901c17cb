"""The race itself, with made-up contenders: every row is raced, whoever misbehaves is left out of it, and load is seen."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from haotuner.bench import race
from haotuner.bench.contender import MACHINE, OURS, OURS_AGAIN
from haotuner.bench.contest import Budget, Contest
from haotuner.bench.field import HOST
from haotuner.bench.machine_load import CONTENDED_CORES, Reading, ScatteredPages, foreign_cores, read
from haotuner.bench.race import Row, _rotated, run
from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.racing import bench_fakes as fakes

pytestmark = pytest.mark.long

OP = Op.parse("dense_n8_k4")


@pytest.fixture(autouse=True)
def pages(request, monkeypatch, tmp_path):
    """Scattered pages, a second's work for up to an eighth of memory, are taken by the race of numpy alone."""
    if "numpy" not in request.node.name:
        monkeypatch.setattr(race, "ScatteredPages", lambda: ScatteredPages(tmp_path / "no such table"))


def contest(ms=(2,), **changes) -> Contest:
    settings = {
        "pack": None,
        "ops": (OP,),
        "shapes": tuple(Shape.of(m=m) for m in ms),
        "peers": {"slow": fakes.spec(fakes.Slow)},
        "environment": dict(os.environ),
        "ours": fakes.spec(fakes.Right),
        "seconds_per_row": 0.01,
        "block_s": 0.01,
        "cache_bytes": 256,  # 128 bytes a weight: eight of them are cold
        "noise_floor": False,
    }
    return Contest(**{**settings, **changes})


def test_every_contender_is_timed_once_a_round_at_every_shape_and_state():
    seen = []
    outcome = run(
        contest(ms=(1, 5), weights=("cold", "hot"), noise_floor=True), lambda row, done, rows: seen.append((done, rows))
    )
    assert [(row.shape["m"], row.weights) for row in outcome.rows] == [(1, "cold"), (5, "cold"), (1, "hot"), (5, "hot")]
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    for row in outcome.rows:
        assert set(row.blocks_us) == {OURS, OURS_AGAIN, "slow"}
        assert {len(times) for times in row.blocks_us.values()} == {5}
        assert min(row.blocks_us[OURS]) >= 100 and min(row.blocks_us["slow"]) >= 400
        assert row.failed == {}


@pytest.mark.parametrize("threads", [1, 2])
def test_the_machine_takes_part_with_multiply_adds_of_its_own(threads):
    (row,) = run(contest(machine=True, threads=(threads,))).rows
    assert set(row.blocks_us) == {OURS, "slow", MACHINE} and row.failed == {}
    assert row.machine_flops is not None and row.machine_flops >= 5e7 * threads
    rate = row.machine_flops / min(row.blocks_us[MACHINE]) / 1e3
    assert rate > 1, "GFLOP/s: any x86-64 core does more, however busy"


@pytest.mark.parametrize("threads", [1, 2])
def test_the_machine_reads_cold_weights_where_rows_are_few(threads):
    wide = {"ops": (Op.parse("dense_n512_k512"),), "cache_bytes": 1 << 20, "threads": (threads,), "machine": True}
    few, more = run(contest(ms=(8, 9), **wide)).rows
    assert few.machine_flops is None and few.machine_bytes is not None
    assert 0.8 * 2**20 < few.machine_bytes <= 2**20, "the weight less what streams leave out"
    assert min(few.blocks_us[MACHINE]) > 0
    assert more.machine_bytes is None and more.machine_flops is not None
    (hot,) = run(contest(ms=(8,), weights=("hot",), **wide)).rows
    assert hot.machine_bytes is None


def test_a_machine_without_a_compiler_is_raced_without_its_peak():
    outcome = run(contest(machine=True, environment={**os.environ, "PATH": "/nowhere"}))
    assert set(outcome.rows[0].blocks_us) == {OURS, "slow"} and outcome.missing == {}
    assert outcome.rows[0].machine_flops is None


def test_a_graph_of_many_layers_is_charged_for_one():
    (row,) = run(contest(peers={"graph": fakes.spec(fakes.Graph)})).rows
    assert 100 <= min(row.blocks_us["graph"]) < 400, "eight weights in a call, each 100 us"


@pytest.mark.parametrize("peer, reason", [(fakes.Wrong, "wrong"), (fakes.Crashing, "crash"), (fakes.Hanging, "timeout")])
def test_who_misbehaves_at_a_shape_is_left_out_there_and_nowhere_else(peer, reason):
    peers = {"bad": fakes.spec(peer), "slow": fakes.spec(fakes.Slow)}
    outcome = run(contest(ms=(2, fakes.BAD_M, 4), peers=peers, weights=("hot",), hang_limit_s=5.0, least_rounds=8))
    assert [set(row.blocks_us) for row in outcome.rows] == [{OURS, "bad", "slow"}, {OURS, "slow"}, {OURS, "bad", "slow"}]
    assert [{name: failed.reason for name, failed in row.failed.items()} for row in outcome.rows] == [
        {},
        {"bad": reason},
        {},
    ]


def test_a_contender_must_use_each_of_its_weights():
    outcome = run(contest(peers={"bad": fakes.spec(fakes.WrongWeight)}, weights=("cold", "hot")))
    assert [set(row.failed) for row in outcome.rows] == [{"bad"}, set()]


def test_missing_peers_are_named_and_the_race_goes_on_without_them():
    outcome = run(contest(peers={"absent": fakes.spec(fakes.Absent), "slow": fakes.spec(fakes.Slow)}))
    assert list(outcome.missing) == ["absent"] and "no_such_library" in outcome.missing["absent"]
    assert set(outcome.rows[0].blocks_us) == {OURS, "slow"} and outcome.rows[0].failed == {}


def test_if_ours_fails_the_row_says_so():
    (row,) = run(contest(ours=fakes.spec(fakes.Raising))).rows
    assert set(row.blocks_us) == {"slow"}
    assert "cannot pack this" in row.failed[OURS].detail


def test_a_row_taken_under_other_load_is_contended():
    code = "import time; print(1, flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout is not None and busy.stdout.readline()
            (row,) = run(contest(seconds_per_row=0.5)).rows
        finally:
            busy.kill()
    assert row.foreign_cores > 0.2, "not our child as the race sees it: that of the test"
    assert row.contended


def test_foreign_load_is_busy_time_less_our_own():
    before = Reading(wall_s=10, busy_s=100, own_s=50)
    assert foreign_cores(before, Reading(wall_s=12, busy_s=103, own_s=52)) == pytest.approx(0.5)
    assert foreign_cores(before, Reading(wall_s=12, busy_s=101.9, own_s=52)) == 0, "ticks are coarser than our own clock"
    row = Row.empty(OP, Shape.of(m=1), 1, "hot", {})
    assert not row.contended and CONTENDED_CORES > 0


def test_our_own_work_is_not_foreign():
    before = read([])
    until = time.process_time() + 0.3
    while time.process_time() < until:
        continue
    after = read([])
    assert after.own_s - before.own_s >= 0.3
    assert after.busy_s - before.busy_s >= 0.2


def test_every_round_has_everybody_once_and_nobody_always_follows_the_same_one():
    order = ["a", "b", "c", "d"]
    rounds = [_rotated(order, turn) for turn in range(8)]
    assert all(sorted(sequence) == order for sequence in rounds)
    assert {sequence[0] for sequence in rounds} == set(order)
    followed = {name: {sequence[i - 1] for sequence in rounds for i in range(1, 4) if sequence[i] == name} for name in order}
    assert all(len(names) > 1 for names in followed.values())
    assert _rotated([], 3) == []


def test_a_race_with_little_time_skips_later_shapes_but_no_op():
    other = Op.parse("dense_n4_k4")
    outcome = run(contest(ms=(1, 2, 5), ops=(OP, other), seconds=0.001, weights=("hot",)))
    assert [(row.op, row.shape["m"]) for row in outcome.rows] == [(OP, 1), (other, 1)]
    assert outcome.skipped == 4


def test_time_is_shared_among_what_is_left():
    budget = Budget(contest(ms=(1, 2), weights=("cold", "hot"), seconds=100.0))
    budget.next_group()
    assert budget.row_seconds(2) == pytest.approx(25, abs=5)
    budget.next_group()
    assert budget.row_seconds(2) == pytest.approx(50, abs=5), "the first group took none of its time"
    assert Budget(contest(seconds_per_row=7.0)).row_seconds(1) == 7.0


def test_a_race_stopped_half_way_keeps_its_rows_and_one_stopped_at_once_has_none():
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    outcome = run(contest(ms=(1, 2)), stop)
    assert outcome.stopped and len(outcome.rows) == 1
    with pytest.raises(ZeroDivisionError):
        run(contest(ms=(1, 2)), lambda *_: 1 // 0)  # type: ignore[arg-type]


def test_numpy_against_itself_through_the_whole_race():
    numpy = HOST.named(["numpy"])
    (row,) = run(contest(ms=(7,), peers=numpy, ours=numpy["numpy"], ops=(Op.parse("dense_n48_k32"),))).rows
    assert row.failed == {}
    assert all(us > 0 for us in row.blocks_us["numpy"])


def test_unknown_peers_are_refused_by_name():
    with pytest.raises(UsageError, match="cublas.*torch"):
        HOST.named(["numpy", "cublas"])
    assert list(HOST.named(["numpy", "torch", "numpy"])) == ["numpy", "torch"]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"ops": (Op.parse("grouped_n8_k4_g2"),)}, "grouped_n8_k4_g2 cannot be raced"),
        ({"ops": ()}, "at least one op"),
        ({"shapes": (Shape.of(m=1, n=2),)}, "exactly m"),
        ({"weights": ("warm",)}, "warm; known states are cold, hot"),
        ({"weights": ()}, "known states"),
        ({"threads": (0,)}, "thread count of 1 or more"),
        ({"seconds_per_row": float("nan")}, "must be positive"),
        ({"isa": "neon"}, "neon; known limits are avx2, sse"),
    ],
)
def test_a_contest_that_makes_no_sense_is_refused_before_it_starts(changes, words):
    with pytest.raises(UsageError, match=words):
        contest(**changes)


def test_weights_that_cannot_fit_in_memory_are_refused_before_it_starts():
    with pytest.raises(EnvironmentMissing, match=r"GB.*--peers"):
        run(contest(ops=(Op.parse("dense:n=262144,k=262144"),)))  # 3.3 TB
