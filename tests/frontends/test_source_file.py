"""Hash of a model's file, and of further files, wherever inside it a tensor lies elsewhere."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.file import array_of
from haotuner.frontends.source_file import source_sha256
from haotuner.partition.tasks import reassembled
from haotuner.verify.model_check import model_of

onnx: Any = pytest.importorskip("onnx")


def model(external: str = "") -> Any:
    """A branch whose sides hold a constant; ``external``: where one tensor lies in another file."""
    side = "{ z = Constant<value = float[2] {1, 2}>() y = Add(x, z) }"
    text = f"g (float[2] x, bool c) => (float[2] y) {{ r = Add(x, w) y = If(c) <then_branch = a () => (float[2] y) {side}, "
    imported = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> {text} else_branch = b () => (float[2] y) {side}> }}'
    )
    imported.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    inner = imported.graph.node[1].attribute[0].g.node[0].attribute[0].t
    inner.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(inner)))  # as raw bytes
    for name, tensor in (("initializer", imported.graph.initializer[0]), ("branch", inner)):
        if name == external:
            onnx.external_data_helper.set_external_data(tensor, "weights.data", 0, 8)
    return imported


def test_one_file_has_its_hash(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(model().SerializeToString())
    assert source_sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("where", ["initializer", "branch"])
def test_weights_in_further_files_are_covered(tmp_path, where):
    path, weights = tmp_path / "model.onnx", tmp_path / "weights.data"
    path.write_bytes(model(where).SerializeToString())
    with pytest.raises(UsageError, match=r"'weights.data' of .* cannot be read"):
        source_sha256(path)
    weights.write_bytes(b"12345678")
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, weights)]
    assert source_sha256(path) == hashlib.sha256("".join(digests).encode()).hexdigest()
    before = source_sha256(path)
    weights.write_bytes(b"12345679")
    assert source_sha256(path) != before


def test_the_last_of_several_locations_counts_and_a_tensor_may_have_none(tmp_path):
    path, weights, changed = tmp_path / "model.onnx", tmp_path / "weights.data", model("initializer")
    weights.write_bytes(b"12345678")
    named = changed.graph.initializer[0].external_data
    named.insert(0, onnx.StringStringEntryProto(key="location", value="nowhere.data"))
    changed.graph.initializer.add(name="unread", data_location=1)
    path.write_bytes(changed.SerializeToString())
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, weights)]
    assert source_sha256(path) == hashlib.sha256("".join(digests).encode()).hexdigest()
    path.write_bytes(path.read_bytes().replace(b"weights.data", b"weights.dat\xff"))
    with pytest.raises(UsageError, match="external data .* cannot be read"):
        source_sha256(path)


@pytest.mark.parametrize("length", ["", "0", "8", "4"])
def test_a_length_of_zero_is_none(tmp_path, length):
    (tmp_path / "weights.data").write_bytes(np.array([3, 4], np.float32).tobytes())
    tensor = model("initializer").graph.initializer[0]
    tensor.ClearField("external_data")
    for key, value in (("location", "weights.data"), ("length", length)):
        if value:
            tensor.external_data.add(key=key, value=value)
    if length == "4":
        with pytest.raises(UsageError, match="8 bytes at 0 of 'weights.data', which has 8; the file says 4"):
            array_of(tensor, tmp_path)
    else:
        assert np.array_equal(array_of(tensor, tmp_path), [3, 4])


def test_files_outside_of_the_models_folder_are_refused(tmp_path):
    path = tmp_path / "inner" / "model.onnx"
    path.parent.mkdir()
    (tmp_path / "weights.data").write_bytes(b"12345678")
    changed = model("initializer")
    changed.graph.initializer[0].external_data[0].value = "../weights.data"
    path.write_bytes(changed.SerializeToString())
    with pytest.raises(UsageError, match="out of its folder"):
        source_sha256(path)


def test_an_exported_program_is_one_file(tmp_path):
    path = tmp_path / "model.pt2"
    path.write_bytes(b"archive")
    assert source_sha256(path) == hashlib.sha256(b"archive").hexdigest()
    with pytest.raises(UsageError, match=r"none.pt2 cannot be read"):
        source_sha256(tmp_path / "none.pt2")


def test_a_task_names_its_file(tmp_path):
    path: Path = tmp_path / "net.onnx"
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n,4] x) => (float[n,4] y) { y = Relu(x) }'
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    task = model_of(path, "n=1..8")
    assert task.source_sha256 == source_sha256(path)
    assert [again.source_sha256 for again in reassembled([task], 0)] == [source_sha256(path)]  # as when forms were raced
