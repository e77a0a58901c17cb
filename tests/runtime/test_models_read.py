"""Models as they are read, served by one pack: carried values that grow, sequences, requests rounded to small floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret
from haotuner.verify.pack_check import verify
from tests.runtime.model_packs import model_pack

onnx = pytest.importorskip("onnx")
ml_dtypes = pytest.importorskip("ml_dtypes")
from tests.frontends import onnx_growing, onnx_sequences  # noqa: E402, after the skip


def rounded() -> Any:
    """To float8 and back, with scales of blocks."""
    n = onnx.helper.make_node
    nodes = [
        n("QuantizeLinear", ["x", "s"], ["q"], axis=1, block_size=4, output_dtype=onnx.TensorProto.FLOAT8E4M3FN),
        n("DequantizeLinear", ["q", "s"], ["y"], axis=1, block_size=4),
    ]
    ends = [onnx_sequences.info("x", ["rows", 6])], [onnx_sequences.info("y")]
    initializers = [onnx.numpy_helper.from_array(np.array([[0.5, 0.25]], np.float32).repeat(3, 0), "s")]
    ends[0][0].type.tensor_type.shape.dim[0].dim_value = 3
    graph = onnx.helper.make_graph(nodes, "g", *ends, initializers)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=11)


GROWING = {name: graph_of(build(), None, {}) for name, build in onnx_growing.MODELS.items()}
SEQUENCES = {name: graph_of(onnx_sequences.MODELS[name](), None, {}) for name in ("chosen", "branched", "uneven")}
ROUNDED = {"rounded": graph_of(rounded(), None, {})}


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    path = model_pack(tmp_path_factory.mktemp("read") / "pack", GROWING | SEQUENCES | ROUNDED, tuned=False, exact=False)
    assert verify(path) == []
    with haotuner.load(path, threads=1) as opened:
        yield opened


def judge(pack: Any, name: str, inputs: dict[str, Any]) -> None:
    graph, model = (GROWING | SEQUENCES | ROUNDED)[name], pack.model(name)
    expected = interpret(graph, inputs)
    ways = [model.run(inputs)]
    if hasattr(model, "segments"):  # by single steps, too
        ways.append(model.bound._walked(inputs, None, None, lambda part, feeds, placed: part.run(feeds, placed)))
    for outputs in ways:
        for output in graph.outputs:
            assert outputs[output].shape == expected[output].shape
            np.testing.assert_allclose(outputs[output], expected[output], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", onnx_growing.SIZES)
@pytest.mark.parametrize("name", GROWING)
def test_what_a_loop_carries_may_grow(pack, name, size):
    judge(pack, name, onnx_growing.feeds(name, size))


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(pack, name):
    for rows in (0, 1, 5):
        for inputs in onnx_sequences.feeds(name, rows):
            judge(pack, name, inputs)


def test_requests_are_rounded_to_small_floats(pack):
    x = np.array([[0, 1e-4, -0.3, 7.77, 1e9, -np.inf], [np.nan, 1, 2, 3, 4, 5], [224, 232, 8.5, -8.5, 1e-9, 3]], np.float32)
    judge(pack, "rounded", {"x": x})
