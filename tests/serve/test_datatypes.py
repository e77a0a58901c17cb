"""Numbers of JSON as elements of every type of the protocol: their values, and words for what no element is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.serve.datatypes import array_of_numbers
from haotuner.serve.refusals import InvalidRequest

MOST = np.iinfo(np.uint64).max
NAN, INF = float("nan"), float("inf")
TAKEN: list[tuple[str, Any]] = [
    ("uint64", [int(MOST), 1]),
    ("uint64", [[1 << 63], [0]]),
    ("int64", [-(1 << 63), (1 << 63) - 1]),
    ("float32", [NAN, INF, -INF, 0.5]),
    ("float32", [10**20, 1]),
    ("float64", [1 << 64, 0.5]),
    ("bool", [True, False]),
    ("int8", []),
]


@pytest.mark.parametrize(("dtype", "data"), TAKEN)
def test_numbers_keep_their_values(dtype: str, data: Any) -> None:
    array = array_of_numbers(data, np.dtype(dtype), np.shape(data), "input x")
    assert array.dtype == dtype and np.array_equal(array, np.array(data, dtype), equal_nan=array.dtype.kind == "f")


REFUSED: list[tuple[str, Any, str]] = [
    ("uint64", [int(MOST) + 1], "out of the range of uint64"),
    ("uint64", [1 << 63, -1], "out of the range of uint64"),
    ("uint64", [1.5, 1 << 63], "no uint64"),
    ("int64", [1 << 63], "out of the range of int64"),
    ("int8", [128], "out of the range of int8"),
    ("int64", [1.0], "no int64"),
    ("float32", [1e39], "overflow"),
    ("float16", [70000], "overflow"),
    ("float64", [10**400], "too large"),
    ("float32", [None], "no float32"),
    ("float32", ["1"], "no float32"),
    ("bool", [1], "no bool"),
    ("bool", [1 << 64], "no bool"),
]


@pytest.mark.parametrize(("dtype", "data", "words"), REFUSED)
def test_what_is_no_element_is_refused(dtype: str, data: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        array_of_numbers(data, np.dtype(dtype), np.shape(data), "input x")
