"""What the roofline expects of CUDA kernels, beside what an H200 took: by structure, so for every op alike."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from haotuner.hw_profiles.find import find_device
from tests.bench.cuda_records import RECORDS, learned, ranked, table
from tests.bench.own_records import OwnRecords

H200 = find_device("h200", measure=False)
OPS = {  # least rank correlation at one number of rows, least best@1
    "dense_n2304_k768": (0.45, 0.91),
    "dense_n2304_k768_bf16": (0.8, 0.97),
    "dense_n4096_k4096_bf16": (0.7, 0.94),
}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return table(OwnRecords.read(RECORDS / "h200.json"), H200)


def test_every_op_was_recorded(frame: pd.DataFrame) -> None:
    assert set(frame["op"]) == set(OPS) and len(frame) > 1000
    assert {1, 2, 4} <= set(frame["parts"])


@pytest.mark.parametrize("op", OPS)
def test_expected_times_are_near_those_of_an_h200(frame: pd.DataFrame, op: str) -> None:
    ratio = np.log((frame["expected"] / frame["us"])[frame["op"] == op])
    assert abs(float(ratio.median())) < 0.2 and float(ratio.std()) < 0.2


@pytest.mark.parametrize("op", OPS)
def test_kernels_are_ranked_as_an_h200_does(frame: pd.DataFrame, op: str) -> None:
    rows = frame[frame["op"] == op]
    correlation, best, *_ = map(float, ranked(rows, rows["expected"].to_numpy()))
    assert correlation >= OPS[op][0] and best >= OPS[op][1]


def test_a_model_of_other_ops_ranks_no_worse(frame: pd.DataFrame) -> None:
    op = "dense_n4096_k4096_bf16"
    rows = frame[frame["op"] == op]
    by_model, by_roofline = (float(ranked(rows, scores)[0]) for scores in (learned(frame, op), rows["expected"].to_numpy()))
    assert by_model >= by_roofline - 0.02
