"""What a race of whole models is given: requests, and the elements of inputs that matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from haotuner.bench.model_child import feeds_of
from haotuner.bench.models import given_of, requests_of
from haotuner.errors import UsageError

INPUTS: list[Mapping[str, Any]] = [
    {"name": "tokens", "dtype": "int64", "shape": ["batch", "seq"]},
    {"name": "lengths", "dtype": "int64", "shape": ["batch"]},
    {"name": "scales", "dtype": "float32", "shape": [3]},
]
NAMES, DIMS = [str(one["name"]) for one in INPUTS], ("batch", "seq")


def test_inputs_get_numbers_and_sizes():
    given = given_of("lengths=seq; scales=0,-1.5,1e-3", NAMES, DIMS)
    feeds = feeds_of(INPUTS, {"batch": 2, "seq": 7}, 0, given)
    np.testing.assert_array_equal(feeds["lengths"], [7, 7])
    np.testing.assert_allclose(feeds["scales"], [0, -1.5, 1e-3])
    assert feeds["lengths"].dtype == np.int64 and feeds["lengths"].flags.c_contiguous
    assert feeds["tokens"].shape == (2, 7) and set(np.unique(feeds["tokens"])) <= {0, 1}
    assert given_of("", NAMES, DIMS) == {}


@pytest.mark.parametrize("text", ["nothing=1", "scales=0,one,0", "lengths=", "scales"])
def test_what_cannot_be_given_is_said(text):
    with pytest.raises(UsageError, match="--given"):
        given_of(text, NAMES, DIMS)


def test_sizes_of_the_data_are_not_drawn():
    found = requests_of("batch=1;seq=3..4;length_0=1..9", DIMS, data=["length_0"])
    assert found == [{"batch": 1, "seq": 3}, {"batch": 1, "seq": 4}]
    with pytest.raises(UsageError, match="length_0"):
        requests_of("batch=1;seq=3..4;length_0=1..9", DIMS)
