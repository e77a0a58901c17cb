"""`haotuner tune --derive`: derived forms in a pack, with the model's numbers, and named by `explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner as api
from haotuner.cli.explain_model import print_model
from tests.cli.command import haotuner

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402


def last_layer(path: Path) -> Any:
    """A model that is SRCNN's last layer, of few channels: one feature, windows of 5 x 5."""
    draw = np.random.default_rng(0)
    weight, bias = draw.normal(size=(1, 6, 5, 5)).astype(np.float32), draw.normal(size=1).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[2] * 4)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", features, "h", "w"])
            for name, features in (("x", 6), ("y", 1))]  # fmt: skip
    weights = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph([node], "layer", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return model


def test_a_pack_serves_the_derived_form_with_the_numbers_of_the_file(tmp_path: Path, cache: Path) -> None:
    reference = ReferenceEvaluator(last_layer(tmp_path / "layer.onnx"))
    words = ("layer.onnx", "--shapes", "n=1..2;h=16..96;w=16..96", "--derive", "--zero-measure", "--peers", "none")
    answer = haotuner("tune", *words, cache=cache, cwd=tmp_path)
    assert "derivation: 1 forms may pay" in answer.err, answer.err
    shown = haotuner("explain", "pack", "--model", "layer", cache=cache, cwd=tmp_path).out
    assert "\nderived: " in shown and "summation splitting" in shown
    with pytest.warns(UserWarning, match="nothing was measured"), api.load(tmp_path / "pack") as pack:
        for shape in ((1, 6, 16, 16), (2, 6, 33, 50), (1, 6, 96, 77)):
            x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
            (expected,) = reference.run(None, {"x": x})
            np.testing.assert_allclose(pack.model("layer").run({"x": x})["y"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("words", [("--derive",), ("layer.onnx", "--derive", "--device", "cuda:0")])
def test_derivation_is_of_models_on_cpus(tmp_path: Path, cache: Path, words: tuple[str, ...]) -> None:
    answer = haotuner("tune", *words, cache=cache, cwd=tmp_path)
    assert answer.code == 2 and "--derive is of models on CPUs" in answer.err


def test_explain_names_derived_kernels_and_rewritten_ones(capsys: pytest.CaptureFixture[str]) -> None:
    items = [
        {"rule": rule, "tensor": "y", "us": 1.0, "without_us": 2.0} for rule in ("derived: a, b x 2", "reduction in two")
    ]
    document = {"model": "m", "measured": 0, "requests": 1, "status": "optimal", "regions": [], "rewrites": items}
    print_model(document, every=False)
    shown = capsys.readouterr().out
    assert "derived: y, a, b x 2; its region 1.0 us, without 2.0\n" in shown
    assert "rewritten: y, reduction in two; its region" in shown
