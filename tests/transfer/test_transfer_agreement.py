"""Measurements that cannot all be right: throttled halves, two devices under one name, sources in opposite orders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from haotuner.cost.series import contradiction, in_time
from haotuner.errors import UsageError
from haotuner.spec.record import Record, Timed
from haotuner.transfer.fit import fit_model
from haotuner.transfer.reading import DeviceTables, read_records
from haotuner.transfer.sources import opposite_orders
from tests.transfer.transfer_examples import COUSIN, NARROW, WIDE, find_device, records, tables

FAMILY = "cpu_dense_fp32"


def us(record: Record) -> float:
    assert isinstance(record.outcome, Timed)
    return record.outcome.median_us


def timed(record: Record, factor: float, **other: object) -> Record:
    return replace(record, outcome=Timed(samples_us=(us(record) * factor,)), **other)  # type: ignore[arg-type]


def twice(factor: float, order: int = 1) -> list[Record]:
    """Records of a device in a random order, then a part of them once more, ``factor`` slower from the second time on."""
    rows = records(WIDE)
    rng = np.random.default_rng(0)
    first = [replace(rows[at], when=100.0 + turn) for turn, at in enumerate(rng.permutation(len(rows)).tolist())]
    again = [timed(first[at], factor, when=1000.0 + turn) for turn, at in enumerate(range(len(rows) - 1, 0, -4))]
    return [*first, *again][::order]


@pytest.mark.parametrize("order", [1, -1])
def test_the_throttled_part_of_a_series_is_left_out_whatever_the_order_of_the_store(order: int) -> None:
    whole, result = read_records(records(WIDE), find_device), read_records(twice(1.5, order), find_device)
    (reason,) = result.left_out
    assert "throttled half-way" in reason and "on wide" in reason and abs(result.left_out[reason] - 70) <= 12
    assert np.allclose(np.sort(result.tables[0].labels), np.sort(whole.tables[0].labels), atol=0.2)


def test_a_second_measurement_at_the_same_pace_stays() -> None:
    assert not read_records(twice(1.0), find_device).left_out


def test_rows_whose_clock_was_read_low_are_left_out() -> None:
    rows = [
        replace(row, facts={"clock_mhz": 1200.0 if at % 5 == 0 else 1980.0, "throttled": "no"})
        for at, row in enumerate(records(WIDE))
    ]
    result = read_records(rows, find_device)
    (reason,) = result.left_out
    assert "as low as 1200 MHz" in reason and result.left_out[reason] == len(rows) // 5
    assert len(result.tables[0]) == len(rows) - len(rows) // 5


def test_one_time_of_day_for_all_records_is_no_order() -> None:
    rows = records(WIDE)
    assert in_time([replace(row, when=5.0) for row in rows]) == []
    assert in_time(rows) == rows, "without any, a file's order is that of time"


def test_two_devices_under_one_name_are_told_by_pace_and_by_order() -> None:
    rng = np.random.default_rng(1)
    times = {row.trial: [us(row)] for row in records(WIDE)}
    assert contradiction({"a": times, "b": {trial: [value[0] * 1.3] for trial, value in times.items()}}, alone=True) is None
    slower = {trial: [value[0] * 1.6] for trial, value in times.items()}
    assert "1.6 times apart" in str(contradiction({"a": times, "b": slower}, alone=True))
    assert contradiction({"a": times, "b": slower}, alone=False) is None, "a host that others use slows for a session"
    shuffled = dict(zip(times, rng.permutation(np.array(list(times.values()))).tolist(), strict=True))
    assert "in other orders" in str(contradiction({"a": times, "b": shuffled}, alone=False))
    other = [timed(row, 4.0, session="other") for row in records(WIDE)]
    result = read_records([*records(WIDE), *other, *records(COUSIN)], find_device)
    assert [table.device.id for table in result.tables] == ["cousin"]
    (reason,) = result.left_out
    assert "two devices under one name" in reason and "on wide" in reason and result.left_out[reason] == len(records(WIDE))


def test_sources_that_contradict_each_other_are_named() -> None:
    wide, cousin, narrow = tables(WIDE, COUSIN, NARROW)
    assert not list(opposite_orders([wide, cousin, narrow]))
    wrong = replace(cousin, labels=-cousin.labels)
    (words,) = opposite_orders([wide, wrong])
    assert "cousin and wide contradict each other" in words and "280 programs" in words
    fitted = fit_model(DeviceTables(tables=[wide, wrong]), NARROW)
    assert "contradict each other" in fitted.note


def test_a_store_of_contradictions_alone_says_which() -> None:
    other = [timed(row, 4.0, session="other") for row in records(WIDE)]
    with pytest.raises(UsageError, match="two devices under one name"):
        read_records([*records(WIDE), *other], find_device)
