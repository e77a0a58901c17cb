"""ONNX Runtime's provider for parts of a model: their bits, what stays with the runtime, and weights in further files."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.frontends.onnx.read import read
from haotuner.frontends.onnx.subgraphs import read_subgraphs
from haotuner.frontends.source_file import source_sha256
from haotuner.graph.graph import renamed
from tests.integrations.onnxruntime_packs import feeds_of, mlp
from tests.integrations.onnxruntime_sessions import NAME, refusal, session_of
from tests.runtime.model_packs import model_pack

onnxruntime: Any = pytest.importorskip("onnxruntime")
onnx: Any = pytest.importorskip("onnx")
pytest.importorskip("hatchling")
if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 24):
    pytest.skip("onnxruntime: 1.24 or newer loads the provider", allow_module_level=True)
if shutil.which("cc") is None:
    pytest.skip("cc: not installed", allow_module_level=True)

# Results that nobody reads are there, too: such nodes read what a part makes inside.
# Sizes of the session's input are read behind the refused operator, too, by nodes that both parts share.
SIZES = "sh = Shape(x) i = Constant<value = int64[2] {0, 1}>() bs = Gather(sh, i) e = Constant<value = int64[2] {4, 4}>()"
BODIES = {
    "counts": (
        "h = MatMul(x, w) unread = Sigmoid(h) also = Neg(unread) k = ArgMax<axis = 2, keepdims = 0>(h) "
        "c = TfIdfVectorizer<max_gram_length = 1, "
        'max_skip_count = 0, min_gram_length = 1, mode = "TF", ngram_counts = [0], ngram_indexes = [0, 1, 2, 3], '
        "pool_int64s = [0, 1, 2, 9]>(k) g = MatMul(c, u) y = Softmax(g)"
    ),
    "inverse": (
        f"h = MatMul(x, w) r = Relu(h) {SIZES} full = Concat<axis = 0>(bs, e) s4 = Reshape(r, full) t = Add(s4, eye) "
        "n = com.microsoft.Inverse(t) m = Constant<value = int64[1] {16}>() last = Concat<axis = 0>(bs, m) "
        "n3 = Reshape(n, last) a = Add(n3, r) g = MatMul(a, v) y = Tanh(g)"
    ),
}
TENSORS = {"counts": ("k", "c"), "inverse": ("t", "n")}  # what the refused operator reads and makes
SHAPES = ((1, 1), (2, 7), (3, 40))


def saved(folder: Path, name: str, called: str = "") -> Path:
    """File of a model in whose middle an operator has no rule."""
    types, shape = ("<float[b,s,4,4] n>", "b,s,8") if name == "inverse" else ("", "b,8")
    text = (
        f'<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]> {called or name} '
        f"(float[b,s,32] x) => (float[{shape}] y) {types} {{ {BODIES[name]} }}"
    )
    model, numbers = onnx.parser.parse_model(text), np.random.default_rng(0)
    sizes = {"w": (32, 16), "v": (16, 8), "u": (4, 8)}
    weights = {end: numbers.standard_normal(size) / 4 for end, size in sizes.items()} | {"eye": 9 * np.eye(4)}
    read = {end for node in model.graph.node for end in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value.astype(np.float32), end) for end, value in weights.items() if end in read
    )
    path = folder / f"{called or name}.onnx"
    onnx.save(model, path)
    return path


def saved_beside(folder: Path) -> Path:
    """File of a model whose weights lie in two further files; a third one has no bytes."""
    model, file = mlp(), folder / "mlp.onnx"
    for tensor in model.graph.initializer:
        where = folder / ("first.data" if tensor.name.endswith("1") else "second.data")
        offset = where.stat().st_size if where.exists() else 0
        with where.open("ab") as data:
            data.write(tensor.raw_data)
        onnx.external_data_helper.set_external_data(tensor, where.name, offset, len(tensor.raw_data))
        tensor.ClearField("raw_data")
    (folder / "none.data").write_bytes(b"")
    empty = model.graph.initializer.add(name="empty", data_type=1, dims=[0], data_location=onnx.TensorProto.EXTERNAL)
    empty.external_data.add(key="location", value="none.data")
    file.write_bytes(model.SerializeToString())
    return file


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], Path]:
    """Files by name, and a pack of them all; the ends of ``gone`` have other names in the pack."""
    folder = tmp_path_factory.mktemp("subgraphs")
    files = {name: saved(folder, name) for name in BODIES} | {"gone": saved(folder, "inverse", "gone")}
    files["default"] = saved(folder, "counts", "default")
    model = onnx.load(files["default"])
    model.graph.input.append(onnx.helper.make_tensor_value_info("u", 1, (4, 8)))  # its initializer is a default
    onnx.save(model, files["default"])
    graphs = {
        f"{name}.subgraph{number}": renamed(graph, lambda end: "elsewhere" if end == "r" else end)
        if name == "gone"
        else graph
        for name, file in files.items()
        for number, graph in enumerate(read_subgraphs(file))
        if graph is not None
    }
    parts = set(graphs)
    files["mlp"] = saved_beside(folder)
    graphs["mlp"] = read(files["mlp"])
    sources = {name: source_sha256(files[name.partition(".")[0]]) for name in graphs}
    return files, model_pack(folder / "pack", graphs, exact=False, subgraphs=parts, sources=sources)


def outside(file: Path, name: str, value: Any) -> Any:
    """Results of the refused operator, by ONNX Runtime: the file's node alone in a model."""
    model = onnx.load(file)
    before, behind = TENSORS[name]
    (node,) = (item for item in model.graph.node if behind in item.output)
    ends = [onnx.helper.make_tensor_value_info(before, 7 if name == "counts" else 1, value.shape)]
    ends.append(onnx.helper.make_tensor_value_info(behind, 1, None))
    model.graph.CopyFrom(onnx.helper.make_graph([node], "one", ends[:1], ends[1:]))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {before: value})[0]


@pytest.mark.parametrize("name", BODIES)
def test_the_parts_have_the_bits_of_the_packs_models_and_the_rest_is_the_runtimes(devices, packed, tmp_path, name):
    files, pack = packed
    session = session_of(devices, files[name], pack=pack, threads=1, profile=tmp_path / "profile")
    before, behind = TENSORS[name]
    with haotuner.load(pack, threads=1) as opened:
        first, second = (opened.model(f"{name}.subgraph{number}") for number in (0, 1))
        for batch, length in SHAPES:
            x = np.random.default_rng(length).standard_normal((batch, length, 32)).astype(np.float32)
            ends_of_first = first.run({"x": x})
            between = outside(files[name], name, ends_of_first[before])
            ends = {end.name: ends_of_first.get(end.name, between) for end in second.bound.inputs}
            assert behind in ends
            assert session.run(None, {"x": x})[0].tobytes() == second.run(ends)["y"].tobytes()
    runs = [event for event in json.loads(Path(session.end_profiling()).read_text()) if event.get("cat") == "Node"]
    by_provider = Counter(event["args"].get("provider") for event in runs if event["name"].endswith("kernel_time"))
    assert by_provider[NAME] == 2 * len(SHAPES)
    own = {event["args"].get("op_name") for event in runs if event["args"].get("provider") == "CPUExecutionProvider"}
    assert {"TfIdfVectorizer", "Inverse"} & own and not {"MatMul", "FusedMatMul", "Softmax", "Tanh"} & own


def test_a_subgraph_whose_ends_are_not_in_the_graph_is_left_to_the_runtime(devices, packed):
    files, pack = packed
    session = session_of(devices, files["gone"], pack=pack)
    plain = onnxruntime.InferenceSession(str(files["gone"]), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((2, 5, 32)).astype(np.float32)
    assert np.array_equal(session.run(None, {"x": x})[0], plain.run(None, {"x": x})[0])


def test_weights_that_a_request_may_give_are_left_to_the_runtime(devices, packed):
    files, pack = packed
    session = session_of(devices, files["default"], pack=pack)
    plain = onnxruntime.InferenceSession(str(files["default"]), providers=["CPUExecutionProvider"])
    numbers = np.random.default_rng(0)
    feeds = {"x": numbers.standard_normal((2, 5, 32)).astype(np.float32)}
    for more in ({}, {"u": numbers.standard_normal((4, 8)).astype(np.float32)}):
        own, expected = (each.run(None, feeds | more)[0] for each in (session, plain))
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)


def test_a_pack_of_subgraphs_is_of_its_file_alone(devices, packed, tmp_path):
    assert "does not hold this model" in refusal(devices, saved(tmp_path, "counts", "other"), pack=packed[1])


def test_weights_in_further_files(devices, packed):
    files, pack = packed
    session = session_of(devices, files["mlp"], pack=pack, threads=1)
    with haotuner.load(pack, threads=1) as opened:
        model = opened.model("mlp")
        for feeds in feeds_of("mlp"):
            assert session.run(None, feeds)[0].tobytes() == model.run(feeds)["y"].tobytes()


def test_other_weights_in_a_further_file_are_another_model(devices, packed, tmp_path):
    file = saved_beside(tmp_path)
    weights = tmp_path / "second.data"
    stored = weights.read_bytes()
    weights.write_bytes(stored[:-1] + bytes([stored[-1] ^ 1]))
    assert "does not hold this model" in refusal(devices, file, pack=packed[1])
    weights.unlink()
    with pytest.raises(Exception, match="second.data"):
        session_of(devices, file, pack=packed[1])


@pytest.mark.parametrize("damage", ["cut", "tail"])
def test_a_damaged_model_is_an_error(devices, packed, tmp_path, damage):
    files, pack = packed
    stored = files["mlp"].read_bytes()
    broken = tmp_path / "mlp.onnx"
    broken.write_bytes(stored[:-3] if damage == "cut" else stored + b"\xff")
    with pytest.raises(Exception, match="."):
        session_of(devices, broken, pack=pack)
