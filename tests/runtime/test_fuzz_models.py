"""A fixed part of ``fuzz_models``: changed models are refused in words or served inside their arrays, right."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import read

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.runtime.fuzz_models import Fuzz, differs
from tests.runtime.model_changes import changed
from tests.runtime.small_nets import nets


def test_changed_nets_are_read_or_refused_in_words(tmp_path):
    accepted = refused = 0
    for seed in range(60):
        draw = np.random.default_rng(seed)
        base, inputs = nets()[seed % len(nets())]
        file = tmp_path / f"{seed}.onnx"
        file.write_bytes(changed(base, draw, inputs).SerializeToString())
        try:
            read(file)
            accepted += 1
        except UsageError as error:
            refused += 1
            assert "is damaged" not in str(error), (seed, error)
    assert accepted > 5 and refused > 5


def test_what_differs_is_told():
    array = np.array([1.0, np.inf, 2.0], np.float32)
    assert not differs([array], [array.copy()])
    assert differs([array], [array + 1]) and differs([array], [array[:2]]) and differs([np.ones(3, np.int64)], [array])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_changed_models_are_served_inside_their_arrays(tmp_path):
    fuzz = Fuzz(tmp_path)
    fuzz.batch(range(3_000_000, 3_000_024))
    assert not fuzz.findings
    assert fuzz.seen["ran"] > 20 and fuzz.seen["as ONNX Runtime"] > 5
