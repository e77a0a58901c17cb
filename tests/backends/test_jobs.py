"""What child processes are sent is JSON; its texts become values at their entry."""

from __future__ import annotations

import json

import pytest

from haotuner.backends.timing_job import kernels_of, op_of, parts_of
from haotuner.errors import UsageError
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op

FIRST, LAST = MicroKernel("a", (("mr", 8),)), MicroKernel("b", (("mr", 1),))


def test_a_job_is_read_into_values() -> None:
    parts = [[FIRST.name, "one.so", 3], [LAST.name, "other.so", 0]]
    job = json.loads(json.dumps({"op": "dense_n8_k4", "kernels": [FIRST.name, LAST.name], "parts": parts}))
    assert op_of(job) == Op.parse("dense:n=8,k=4")
    assert kernels_of(job) == [FIRST, LAST]
    assert parts_of(job) == [(FIRST, "one.so", 3), (LAST, "other.so", 0)]


def test_what_is_no_name_is_refused_with_the_name() -> None:
    with pytest.raises(ValueError, match="'nobody' is not the name of a micro-kernel"):
        kernels_of({"kernels": ["nobody"]})
    with pytest.raises(UsageError, match="unknown op kind 'nobody'"):
        op_of({"op": "nobody"})
