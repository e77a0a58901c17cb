"""Times of several units in one file, or against what the store has: refused, and nothing legitimate with them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haotuner.errors import UsageError
from haotuner.records import MemoryStore
from haotuner.records.importing import Imported, load_kernel_tuner
from haotuner.spec.record import Failed, Timed
from tests.records.test_records_import import cache, find, gemm_row

TILES = tuple(itertools.product((16, 32, 64, 128), (16, 32, 64, 128), (1, 2, 4, 8)))  # 64 configurations


def rows(times: list[float], **more: object) -> list[dict[str, object]]:
    """One row a time, each of another configuration."""
    return [
        gemm_row(time, MWG=mwg, NWG=nwg, VWM=vwm, **more)
        for time, (mwg, nwg, vwm) in zip(times, itertools.cycle(TILES), strict=False)
    ]


def spread(count: int, slowest: float = 180.0) -> list[float]:
    """Times in ms from 12 up, evenly in log scale; the published files reach up to 180 times their fastest."""
    return [12.0 * slowest ** (i / (count - 1)) for i in range(count)]


@pytest.fixture
def imported(tmp_path: Path):
    def done(content: list[dict[str, object]], store: MemoryStore | None = None, **head: Any) -> Imported:
        path = tmp_path / "cache.json"
        path.write_text(json.dumps(cache(content, **head)), encoding="utf-8")
        return load_kernel_tuner(path, find_device=find).into(store or MemoryStore())

    return done


@pytest.mark.parametrize("count, slowest", [(64, 180.0), (64, 5000.0), (2, 180.0), (3, 90.0), (8, 600.0)])
def test_a_wide_range_alone_is_no_reason(imported, count, slowest):
    done = imported(rows(spread(count, slowest)))
    assert (done.timed, done.refused) == (count, {})


@pytest.mark.parametrize("slowest", [10.0, 90.0, 180.0])
@pytest.mark.parametrize("wrong", [7, 32, 57])
def test_a_file_of_two_units_is_refused_and_told_apart(imported, tmp_path, slowest, wrong):
    times = spread(64, slowest)
    mixed = [time * 1000 if (i * 37) % 64 < wrong else time for i, time in enumerate(times)]
    store = MemoryStore()
    with pytest.raises(UsageError, match=r"cache\.json: mixed units\? dense_n4096_k4096 on titan-rtx has") as caught:
        imported(rows(mixed), store)
    assert f"{64 - wrong} times of" in str(caught.value) and f"{wrong} times of" in str(caught.value)
    assert "a file of their own; nothing was stored" in str(caught.value)
    assert list(store.records()) == []


def test_one_row_of_another_unit_among_many_is_left_out_alone(imported):
    times = spread(64, 20.0)
    times[5] *= 1000
    done = imported(rows(times))
    assert (done.timed, done.refused) == (63, {"63 times away from every other time: mixed units?": 1})
    with pytest.raises(UsageError, match="mixed units"):  # of two, nobody knows which
        imported(rows([12.0, 13.0 * 1000]))


def test_problems_are_held_against_their_own_kind_only(imported):
    """Half precision is another op: its times say nothing about single precision."""
    done = imported([*rows(spread(32, 3.0)), *rows([t * 1000 for t in spread(32, 3.0)], PRECISION=16)])
    assert (done.timed, done.refused) == (64, {})


def test_one_configuration_measured_twice_must_agree(imported):
    twice = rows(spread(32, 80.0)) + [{**gemm_row(12.0 * 101, MWG=16, NWG=16, VWM=1)}]
    done = imported(twice)
    assert done.timed == 31, "neither of the two is known to be right"
    assert done.refused == {"the same configuration was measured more than 100 times apart: mixed units?": 2}
    assert imported(rows([12.0, 12.0 * 80]) + rows([12.0 * 80])).timed == 3


def test_what_the_store_has_of_a_configuration_must_agree(imported):
    store = MemoryStore()
    times = spread(64, 5.0)
    assert imported(rows(times), store).new == 64
    other = [times[0] * 150, *times[1:10]]
    other[3] += 0.5
    done = imported(rows(other), store)
    assert done.refused == {"more than 100 times away from what the store has of the same configuration: mixed units?": 1}
    assert (done.timed, done.new) == (9, 1)
    with pytest.raises(UsageError, match="not one usable timed row: more than 100 times away"):
        imported(rows([time * 1000 for time in times]), store)
    assert len(list(store.records())) == 65
    assert imported(rows(times), store).new == 0, "what is stored is no contradiction to itself"


def test_what_the_store_has_already_is_not_refused(imported):
    """A store from before this was checked may hold both."""
    store = MemoryStore()
    imported(rows([12.0, 13.0]), store)
    store.append([replace(r, outcome=Timed(samples_us=(3e6,))) for r in store.records()])
    done = imported(rows([12.0, 13.0]), store)
    assert (done.timed, done.new, done.refused) == (2, 0, {})


def test_a_failure_contradicts_no_time(imported):
    store = MemoryStore()
    imported(rows([12.0, 13.0]), store)
    assert imported([gemm_row("RuntimeFailedConfig", MWG=16, NWG=16, VWM=1)], store).failed == 1
    assert any(isinstance(record.outcome, Failed) for record in store.records())


def test_samples_that_take_longer_than_all_of_measuring_are_not_milliseconds(imported):
    """Without a column GFLOP/s, the wall clock around the samples is what tells a file in microseconds."""
    wall = {"benchmark_time": 12.5 * 2 / 0.98}
    odd = gemm_row(12500.0, MWG=128, **wall)
    done = imported([gemm_row(12.5, **wall), odd, gemm_row(14.0, NWG=128, benchmark_time=0)])
    assert (done.timed, done.refused) == (2, {"the times add up to more than benchmark_time: not milliseconds": 1})
    with pytest.raises(UsageError, match="not one usable row: the times add up to more than benchmark_time"):
        imported([odd])
