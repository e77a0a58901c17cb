"""Networks of the benchmark of derivation: read as graphs they have the numbers of their files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from haotuner.frontends.onnx.read import read
from haotuner.graph.interpret import interpret

pytest.importorskip("onnx")
from onnx.reference import ReferenceEvaluator  # noqa: E402

from tests.bench.derivation_layers import gcn  # noqa: E402
from tests.bench.derivation_nets import Case, written  # noqa: E402


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (2, 3, 21, 50)])
def test_a_global_convolutional_network_has_the_numbers_of_its_file(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Sides that are no multiple of the stages' strides are cut where maps are enlarged."""
    file = written(Case(gcn([8, 12], 5, 7), ({"n": 1, "h": 32, "w": 32},)), tmp_path, "gcn")
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    (expected,) = ReferenceEvaluator(str(file)).run(None, {"x": x})
    (answer,) = interpret(read(file), {"x": x}).values()
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-4)
