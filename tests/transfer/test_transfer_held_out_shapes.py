"""Shapes held out on one device: folds by shape, a table's answer, what is refused, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.records.address import open_store
from haotuner.records.codec import trial_of
from haotuner.spec.record import Record, Timed
from haotuner.spec.shape import Shape
from haotuner.transfer.reading import read_records
from tests.bench.transfer_study.__main__ import main
from tests.bench.transfer_study.held_out_shapes import ANALYTIC, FOLDS, LEARNED, TABLE, evaluate_held_out
from tests.transfer.transfer_examples import KERNELS, OP, WIDE, record, records, times_us
from tests.transfer.transfer_examples import find_device as find_made_up


def many_shapes(heights: tuple[int, ...] = tuple(range(1, 41, 2))) -> list[Record]:
    kernels = KERNELS[::2]
    return [
        record(trial_of(op=OP, kernel=k.name, shape=Shape.of(m=m)), Timed(samples_us=(float(us),)), WIDE.id)
        for m in heights
        for k, us in zip(kernels, times_us(WIDE, kernels, Shape.of(m=m), seed=m), strict=True)
    ]


def test_a_forest_chooses_kernels_of_held_out_shapes_better_than_the_analysis() -> None:
    document = evaluate_held_out(read_records(many_shapes(), find_made_up).tables)
    (table,) = document["tables"].values()
    assert (table["shapes"], table["tasks"], document["folds"]) == (20, 20, FOLDS)
    scores = table["rankings"]
    assert scores[LEARNED]["mean"] > scores[ANALYTIC]["mean"]
    for way in (TABLE, LEARNED, ANALYTIC):
        assert 0.0 < scores[way]["least"] <= scores[way]["p10"] <= 1.0


def test_a_table_whose_nearest_shape_has_the_same_best_kernel_loses_nothing() -> None:
    kernels = KERNELS[:6]
    rows = [
        record(trial_of(op=OP, kernel=k.name, shape=Shape.of(m=m)), Timed(samples_us=(1000.0 * m * (1 + at),)), WIDE.id)
        for m in range(100, 130)
        for at, k in enumerate(kernels)
    ]
    document = evaluate_held_out(read_records(rows, find_made_up).tables)
    (table,) = document["tables"].values()
    assert table["rankings"][TABLE]["least"] == 1.0


def test_too_few_shapes_are_said() -> None:
    with pytest.raises(UsageError, match="no family has 10 shapes with two kernels each"):
        evaluate_held_out(read_records(records(WIDE), find_made_up).tables)


def test_the_command_prints_a_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'r.db'}"
    store = open_store(url, write=True)
    host = find_device("xeon-8380", measure=False)
    store.append([record(row.trial, row.outcome, host.id) for row in many_shapes() if isinstance(row.outcome, Timed)])
    store.close()
    assert main(["shapes", "--db", url, "-q"]) == 0
    printed = capsys.readouterr().out
    assert "| **cpu_dense_fp32 on xeon-8380** (20 shapes) | nearest shape's table |" in printed
    assert main(["shapes", "--db", url, "-q", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    means = [scores["mean"] for scores in document["tables"]["cpu_dense_fp32 on xeon-8380"]["rankings"].values()]
    assert np.isfinite(means).all()
    assert main(["shapes"]) == 2
