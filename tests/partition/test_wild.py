"""What the race of models of wheels takes for right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.bench.models import ShapeConstraints
from haotuner.spec.shape import Span
from tests.bench.wild import ROUNDING, _moved, _moved_weights, taken

onnx = pytest.importorskip("onnx")


def test_weights_move_by_a_rounding_and_whole_numbers_stay(tmp_path):
    initializers: dict[str, Any] = {"w": np.linspace(-1, 1, 50, dtype=np.float32), "at": np.arange(3)}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gather", ["w", "at"], ["y"])], "g", [],
        [onnx.ValueInfoProto(name="y")], [onnx.numpy_helper.from_array(value, name) for name, value in initializers.items()],
    )  # fmt: skip
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    moved = onnx.load_from_string(_moved_weights(str(tmp_path / "m.onnx")))
    weights = {initializer.name: onnx.numpy_helper.to_array(initializer) for initializer in moved.graph.initializer}
    assert np.array_equal(weights["at"], initializers["at"])
    share = np.abs(weights["w"] / initializers["w"] - 1)
    assert np.all((share > 0) & (share <= 2 * ROUNDING)) and weights["w"].dtype == np.float32


def test_requests_are_those_that_a_model_takes():
    requests = taken(
        {"one": Span(first=1, last=4), "other": Span(first=1, last=4), "long": Span(first=2, last=90)},
        7,
        ShapeConstraints({"other": "one"}),
    )
    assert len(requests) == 7 and all(
        request["one"] == request["other"] and list(request) == ["one", "other", "long"] for request in requests
    )


def test_a_moved_input_without_axes_stays_an_array():
    moved = _moved({"x": np.array(3, np.float32), "n": np.array(3)})
    assert isinstance(moved["x"], np.ndarray) and moved["x"].dtype == np.float32 and moved["x"] > 3 and moved["n"] == 3
