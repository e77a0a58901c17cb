"""`haotuner tune --subgraphs`: a pack of the parts between operators without a rule, with the file's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import haotuner as api
from tests.cli.command import haotuner

onnx = pytest.importorskip("onnx")


def saved(path: Path) -> np.ndarray:
    """A model that counts classes between two layers; the first layer's weight."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> net (float[b,8,8] x) => (float[b,4] y) '
        "{ h = MatMul(x, w) r = Relu(h) k = ArgMax<axis = 2, keepdims = 0>(r) c = TfIdfVectorizer<max_gram_length = 1, "
        'max_skip_count = 0, min_gram_length = 1, mode = "TF", ngram_counts = [0], ngram_indexes = [0, 1, 2], '
        "pool_int64s = [0, 1, 2]>(k) y = MatMul(c, v) }"
    )
    numbers = np.random.default_rng(0)
    weights = {"w": numbers.standard_normal((8, 8)), "v": numbers.standard_normal((3, 4))}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()
    )
    onnx.save(model, path)
    return np.asarray(weights["w"].astype(np.float32))


def test_a_pack_serves_the_parts(tmp_path: Path, cache: Path) -> None:
    weight = saved(tmp_path / "net.onnx")
    words = ("net.onnx", "--shapes", "b=1..16", "--zero-measure", "--peers", "none")
    refused = haotuner("tune", *words, cache=cache, cwd=tmp_path)
    assert refused.code == 2 and "TfIdfVectorizer: 1" in refused.err and "tune --subgraphs" in refused.err
    answer = haotuner("tune", *words, "--subgraphs", cache=cache, cwd=tmp_path)
    assert answer.code == 3 and "net.subgraph0: " in answer.err, answer.err
    with pytest.warns(UserWarning, match="nothing was measured"), api.load(tmp_path / "pack") as pack:
        assert set(pack.models) == {"net.subgraph0", "net.subgraph1"}
        x = np.random.default_rng(1).standard_normal((3, 8, 8)).astype(np.float32)
        indices = pack.model("net.subgraph0").run({"x": x})["k"]
        assert np.array_equal(indices, np.maximum(x @ weight, 0).argmax(2))


@pytest.mark.parametrize("words", [("--subgraphs",), ("net.onnx", "--subgraphs", "--device", "cuda:0")])
def test_subgraphs_are_of_models_on_cpus(tmp_path: Path, cache: Path, words: tuple[str, ...]) -> None:
    answer = haotuner("tune", *words, cache=cache, cwd=tmp_path)
    assert answer.code == 2 and "--subgraphs is of models on CPUs" in answer.err
