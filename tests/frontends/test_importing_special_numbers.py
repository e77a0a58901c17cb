"""Operators at numbers that are large, infinite or halfway between two others, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret

onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
ODD = np.array([0, -0.0, 1, -1, 2.5, -2.5, 88, -104, 3e38, -3e38, np.inf, -np.inf, np.nan, 1e-40], np.float32)
REALS = (np.float16, np.float32, np.float64)


def check(op: str, opset: int, inputs: dict[str, Any], **attributes: Any) -> None:
    """One node of dynamic extents gives what ONNX Runtime gives."""
    h = onnx.helper
    node = h.make_node(op, list(inputs), ["y"], **attributes)
    inputs = {name: value for name, value in inputs.items() if name}  # of a name "" is what is left out
    ends = [h.make_tensor_value_info(name, h.np_dtype_to_tensor_dtype(value.dtype),
                                     [f"{name}_{axis}" for axis in range(value.ndim - 1)] + list(value.shape[-1:]))
            for name, value in inputs.items()]  # fmt: skip
    graph = h.make_graph([node], "g", ends, [h.make_empty_tensor_value_info("y")])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8)
    peer = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with np.errstate(all="ignore"):
        answer = interpret(graph_of(model, None, {}), inputs)["y"]
    np.testing.assert_allclose(answer, peer.run(None, inputs)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.7, 1.0, 3.0])
def test_celu_of_large_numbers_does_not_overflow(alpha: float) -> None:
    check("Celu", 12, {"x": ODD}, alpha=alpha)


@pytest.mark.parametrize("ends", [{}, {"min": -1.0}, {"max": 1.0}])
def test_a_bound_that_an_old_clip_lacks_is_the_last_number(ends: dict[str, float]) -> None:
    check("Clip", 10, {"x": ODD}, **ends)


@pytest.mark.parametrize("ends", [[], ["low"], ["", "high"]])
@pytest.mark.parametrize(("opset", "dtype"), [(11, np.float16), (11, np.float32), *((13, real) for real in REALS)])
def test_a_bound_that_a_clip_lacks_is_the_last_number(opset: int, dtype: type, ends: list[str]) -> None:
    with np.errstate(over="ignore"):
        bounds: dict[str, Any] = {"low": np.array(-1, dtype), "high": np.array(1, dtype)}
        check("Clip", opset, {"x": ODD.astype(dtype)} | {end: bounds.get(end) for end in ends})


@pytest.mark.parametrize("edge", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("ends", [0, 1])
def test_the_nearest_pixel_of_places_halfway_between_two(edge: str, ends: int) -> None:
    line = np.linspace(-3, 3, 25, dtype=np.float32)
    grid = np.stack(np.meshgrid(line, line), -1)[None]
    image = np.arange(32, dtype=np.float32).reshape(1, 1, 4, 8)
    check("GridSample", 16, {"x": image, "grid": grid}, mode="nearest", padding_mode=edge, align_corners=ends)
