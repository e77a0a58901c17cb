"""Statistics of a store, held against the same sums in plain Python."""

from __future__ import annotations

import math
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haotuner.records import SqliteStore
from haotuner.records.statistics import CURVE_POINTS, LOGS, Statistics
from haotuner.spec.record import Failed, Record, Timed
from tests.contract.record_examples import record

FAILURE = Failed(stage="build", reason="compile_error", detail="</script> no such register")
_TIMES = st.floats(1.0, 99.0) | st.none()
_ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(("cpu", "gpu")), st.integers(1, 3), _TIMES), max_size=40)


def records(rows: list[tuple[str, str, int, float | None]]) -> list[Record]:
    return [
        record(
            m, op=f"dense_n8_k{ord(op)}", device_id=device, us=us or 1.0, session=str(at), outcome=None if us else FAILURE
        )
        for at, (op, device, m, us) in enumerate(rows)
    ]


def filled(folder: Path, every: list[Record]) -> Path:
    path = folder / "r.db"
    with closing(SqliteStore(path)) as store:
        store.append(every)
    return path


@given(rows=_ROWS)
@settings(max_examples=25)
def test_sums_are_those_of_the_records(rows: list[tuple[str, str, int, float | None]]) -> None:
    every = records(rows)
    with tempfile.TemporaryDirectory() as folder, closing(SqliteStore(filled(Path(folder), every), write=False)) as store:
        statistics = Statistics(store)
        timed = Counter((r.device_id, r.trial.op.name) for r in every if isinstance(r.outcome, Timed))
        failed = Counter((r.device_id, r.trial.op.name) for r in every if isinstance(r.outcome, Failed))
        assert {(c.device, c.op): (c.timed, c.failed) for c in statistics.summary.counts} == {
            key: (timed[key], failed[key]) for key in {*timed, *failed}
        }
        least: dict[tuple[str, str, str], float] = {}
        for r in every:
            if isinstance(r.outcome, Timed):
                key = r.device_id, r.trial.op.name, f'{{"m":{r.trial.shape["m"]}}}'
                least[key] = min(least.get(key, math.inf), r.outcome.median_us)
        assert {(b.device, b.op, b.shape): b.us for b in statistics.summary.best} == least
        assert sum(failure.failures for failure in statistics.summary.failures) == sum(failed.values())
        curves = statistics.summary.improvements
        assert curves.keys() == timed.keys()
        for points in curves.values():
            behind = [value for _, value in points]
            assert behind == sorted(behind, reverse=True), "the best so far never gets worse"
            assert behind[-1] == pytest.approx(1.0)
            assert [turn for turn, _ in points] == sorted({turn for turn, _ in points})


def test_a_curve_says_how_far_the_first_times_were_behind(tmp_path: Path) -> None:
    every = [record(1, us=8.0), record(2, us=10.0), record(1, us=2.0, session="t"), record(1, us=4.0, session="u")]
    with closing(SqliteStore(filled(tmp_path, every), write=False)) as store:
        (points,) = Statistics(store).summary.improvements.values()
    assert [turn for turn, _ in points] == [1, 2, 3], "what is no improvement has no point"
    medians = [r.outcome.median_us for r in every if isinstance(r.outcome, Timed)]
    first = math.sqrt(medians[0] / medians[2])
    assert [value for _, value in points] == pytest.approx([first, first, 1.0])


def test_a_session_alone_is_looked_at(tmp_path: Path) -> None:
    with closing(SqliteStore(filled(tmp_path, [record(1), record(2, session="other")]), write=False)) as store:
        (count,) = Statistics(store, "other").summary.counts
        assert (count.timed, count.failed) == (1, 0)
        assert Statistics(store, "none").summary.counts == []


def test_failures_have_the_latest_texts(tmp_path: Path) -> None:
    every = [record(m, outcome=Failed(stage="run", reason="crash", detail=f"signal {m}")) for m in range(1, 9)]
    with closing(SqliteStore(filled(tmp_path, [*every, record(9, outcome=FAILURE)]), write=False)) as store:
        crash, build = Statistics(store).summary.failures
    assert (crash.stage, crash.reason, crash.failures, build.failures) == ("run", "crash", 8, 1)
    assert [log[3] for log in crash.logs] == [f"signal {m}" for m in range(8, 8 - LOGS, -1)]


def test_what_others_put_into_columns_ends_no_report(tmp_path: Path) -> None:
    path = filled(tmp_path, [record(1), record(2, outcome=FAILURE)])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE record SET outcome = x'00ff', op = x'00ff', measured_at = 'then' WHERE seq = 2")
        db.execute("INSERT INTO claim VALUES ('s', 'no key', 'no owner', 1.0)")
    with closing(SqliteStore(path, write=False)) as store:
        statistics = Statistics(store)
        assert sum(count.failed for count in statistics.summary.counts) == 1
        (failure,) = statistics.summary.failures
        assert (failure.stage, failure.failures) == ("?", 1) and "JSON" in failure.logs[0][3]
        (claim,) = statistics.claims()
        assert claim.alive and claim.expired


def test_long_curves_are_thinned(tmp_path: Path) -> None:
    every = [record(1, us=1000.0 - at, session=f"s{at}") for at in range(2 * CURVE_POINTS)]
    with closing(SqliteStore(filled(tmp_path, every), write=False)) as store:
        (points,) = Statistics(store).summary.improvements.values()
    assert len(points) == CURVE_POINTS and points[0][0] == 1 and points[-1] == (2 * CURVE_POINTS, 1.0)


def test_statistics_are_not_read_beside_writing(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "r.db")) as store, pytest.raises(ValueError, match="write=False"):
        assert Statistics(store).summary
