"""What a race of whole models is given, and who runs when."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from haotuner.bench.model_child import feeds_of
from haotuner.bench.models import MODEL_PEERS, files_of, in_turns, paired, parse_inputs, requests_of, shape_constraints_of
from haotuner.errors import HaotunerError, UsageError
from haotuner.isolate.answers import Crashed, Job
from haotuner.runtime.schedule import ExecutionPlan

INPUTS: list[Mapping[str, Any]] = [
    {"name": "tokens", "dtype": "int64", "shape": ["batch", "seq"]},
    {"name": "lengths", "dtype": "int64", "shape": ["batch"]},
    {"name": "scales", "dtype": "float32", "shape": [3]},
]
NAMES, DIMS = [str(entry["name"]) for entry in INPUTS], ("batch", "seq")


def test_inputs_get_numbers_and_sizes():
    inputs = parse_inputs("lengths=seq; scales=0,-1.5,1e-3", NAMES, DIMS)
    feeds = feeds_of(INPUTS, {"batch": 2, "seq": 7}, 0, inputs)
    np.testing.assert_array_equal(feeds["lengths"], [7, 7])
    np.testing.assert_allclose(feeds["scales"], [0, -1.5, 1e-3])
    assert feeds["lengths"].dtype == np.int64 and feeds["lengths"].flags.c_contiguous
    assert feeds["tokens"].shape == (2, 7) and set(np.unique(feeds["tokens"])) <= {0, 1}
    assert parse_inputs("", NAMES, DIMS) == {}


def test_elements_of_a_range_are_drawn_from_all_of_it():
    ids = {"name": "ids", "dtype": "int64", "shape": ["batch", "seq"]}
    inputs = parse_inputs("ids=3..5", ["ids"], DIMS)
    assert set(feeds_of([ids], {"batch": 8, "seq": 9}, 0, inputs)["ids"].reshape(-1)) == {3, 4, 5}
    with pytest.raises(UsageError, match="--inputs"):
        parse_inputs("ids=5..3", ["ids"], DIMS)


def test_one_number_is_given_as_it_is():
    rate = {"name": "rate", "dtype": "int64", "shape": []}
    assert feeds_of([rate], {}, 0, {"rate": ["16000"]})["rate"] == 16000
    assert feeds_of([rate], {}, 0, {"rate": ["16000"]})["rate"].shape == ()
    with pytest.raises(UsageError, match="2 numbers for an input that is one"):
        feeds_of([rate], {}, 0, {"rate": ["1", "2"]})


@pytest.mark.parametrize("text", ["nothing=1", "scales=0,one,0", "lengths=", "scales"])
def test_what_cannot_be_given_is_said(text):
    with pytest.raises(UsageError, match="--inputs"):
        parse_inputs(text, NAMES, DIMS)


def test_sizes_of_the_data_are_not_drawn():
    requests = requests_of("batch=1;seq=3..4;length_0=1..9", DIMS, data=["length_0"])
    assert requests == [{"batch": 1, "seq": 3}, {"batch": 1, "seq": 4}]
    for text, words in (("batch=1;seq=2;batch=3", "says batch twice"), ("batch=1;seq", "--shapes seq=: expected a size")):
        with pytest.raises(UsageError, match=words):
            requests_of(text, DIMS)
    with pytest.raises(UsageError, match="length_0"):
        requests_of("batch=1;seq=3..4;length_0=1..9", DIMS)


def _schedule(equal: tuple[tuple[int, int], ...], required: tuple[tuple[int, str], ...] = ()) -> ExecutionPlan:
    sizes = (("dim", "x_0"), ("dim", "state_1"), ("dim", "long"), ("number", 4), ("%", 2, 3))
    return ExecutionPlan("m", ("x_0", "state_1", "long"), sizes, {}, {}, (), (), (), equal, required)


def test_dimensions_that_a_model_joins_are_drawn_alike():
    model: Any = SimpleNamespace(name="m", schedule=_schedule(((1, 0),), ((4, "long must not be a multiple of 4"),)))
    agreed = shape_constraints_of(model, ("x_0", "state_1", "long"))
    requests = requests_of("x_0=1..64;state_1=1..64;long=1..400", ("x_0", "state_1", "long"), agreed=agreed)
    assert len(requests) == 12 and len({request["x_0"] for request in requests}) > 3
    assert all(request["x_0"] == request["state_1"] and request["long"] % 4 for request in requests)
    few = requests_of("x_0=1..2;state_1=2..3;long=4,5", ("x_0", "state_1", "long"), agreed=agreed)
    assert few == [{"x_0": 2, "state_1": 2, "long": 5}]
    with pytest.raises(UsageError, match="joins x_0 and state_1, whose ranges share no size; give both one range"):
        requests_of("x_0=1..2;state_1=3..4;long=5", ("x_0", "state_1", "long"), agreed=agreed)
    with pytest.raises(UsageError, match="no request that was drawn .* long must not be a multiple of 4"):
        requests_of("x_0=1..2;state_1=1..2;long=4,8", ("x_0", "state_1", "long"), agreed=agreed)


def test_each_peer_gets_the_file_that_it_reads():
    both = files_of([Path("net.onnx"), Path("net.pt2")], MODEL_PEERS)
    assert both == {"onnxruntime": Path("net.onnx"), "openvino": Path("net.onnx"), "torch": Path("net.pt2")}
    assert files_of([Path("net.pt2")], MODEL_PEERS) == {"torch": Path("net.pt2")} and files_of([], MODEL_PEERS) == {}
    with pytest.raises(UsageError, match=r"--file a\.onnx and --file b\.onnx"):
        files_of([Path("a.onnx"), Path("b.onnx")], ())


class Simulated:
    """A contender on a host that slows down; it takes ``us`` on a quick one."""

    def __init__(self, us: float, host: list[float], *, fails: int = 10**9) -> None:
        self._us, self._host, self._fails, self.asked = us, host, fails, [0, 0]

    def begin(self, request: Mapping[str, Any]) -> None:
        """Take a request."""
        self._request = dict(request)

    def finish(self, limit_s: float) -> Job:
        """Calls of the host's present speed; every call makes the host slower."""
        if self._request["do"] == "peak":
            return {"bytes": 1}
        self.asked[self._request["seconds"] > 0] += 1
        if sum(self.asked) > self._fails:
            raise Crashed("it fell over")
        calls = self._request["calls"]
        times_us = [self._us * self._host[0] * (1.0 if call else 3.0) for call in range(calls)]
        self._host[0] *= 1.01
        return {"us": times_us}


def test_contenders_take_turns():
    """A host that is twice as slow at the end changes no ratio by more than a few percent."""
    host = [1.0]
    two = {"ours": Simulated(100.0, host), "onnxruntime": Simulated(150.0, host)}
    results = in_turns(two, 8, 1.0)
    ratios = [paired(*both) for both in zip(results["onnxruntime"]["turns_us"], results["ours"]["turns_us"], strict=True)]
    np.testing.assert_allclose(ratios, 1.5, rtol=0.02)
    assert host[0] > 2 and results["ours"]["steady_us"][0] < 200  # a turn's first call, of 300, counts in first times alone
    assert results["ours"]["first_us"][0] == 300 and len(results["ours"]["first_us"]) == 8


def test_a_peer_that_falls_over_is_left_out_and_ours_is_not():
    host = [1.0]
    assert set(in_turns({"ours": Simulated(1.0, host), "openvino": Simulated(1.0, host, fails=11)}, 4, 1.0)) == {"ours"}
    with pytest.raises(HaotunerError, match="the pack's model failed: it fell over"):
        in_turns({"ours": Simulated(1.0, host, fails=5), "openvino": Simulated(1.0, host)}, 4, 1.0)
