"""`haotuner tune MODEL.onnx --device …` for GPUs: predicted without one; tuned, packed and checked over the stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from haotuner.pack.manifest import read_manifest  # noqa: E402
from tests.cli.command import haotuner  # noqa: E402
from tests.cli.test_tune_cuda import Host  # noqa: E402
from tests.standin import toolchain_missing  # noqa: E402

pytestmark = [
    pytest.mark.skipif(bool(toolchain_missing()), reason=f"compiler: {toolchain_missing()}"),
]
WIDE, HEADS, WORDS = 32, 2, 40


class Writer:
    """Nodes and weights of a model, names as they come."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.held: list[Any] = []
        self.draw = np.random.default_rng(1)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node; the name of its output."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def hold(self, value: Any) -> str:
        """A weight."""
        name = f"w{len(self.held)}"
        self.held.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def numbers(self, *shape: int) -> str:
        """A weight of random numbers."""
        return self.hold((self.draw.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def layer(self, x: str, k: int, n: int) -> str:
        """A dense layer with a bias."""
        return self.add("Add", self.add("MatMul", x, self.numbers(k, n)), self.numbers(n))

    def norm(self, x: str) -> str:
        """Layer norm of the last axis."""
        return self.add("LayerNormalization", x, self.numbers(WIDE), self.numbers(WIDE), axis=-1)

    def heads(self, x: str) -> str:
        """A layer, its features apart by heads."""
        apart = self.hold(np.array([0, 0, HEADS, WIDE // HEADS]))
        return self.add("Transpose", self.add("Reshape", self.layer(x, WIDE, WIDE), apart), perm=[0, 2, 1, 3])

    def save(self, path: Path, inputs: Any, last: str, shape: list[Any]) -> Path:
        """The file."""
        self.nodes.append(helper.make_node("Identity", [last], ["y"]))
        ends = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
        graph = helper.make_graph(self.nodes, path.stem, inputs, ends, self.held)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
        return path


def encoder(path: Path) -> Path:
    """Embeddings, attention, a feed-forward layer with GELU, norms."""
    w = Writer()
    x = w.add("Gather", w.numbers(WORDS, WIDE), "ids", axis=0)
    q, k, v = w.heads(x), w.heads(x), w.heads(x)
    scores = w.add("Mul", w.add("MatMul", q, w.add("Transpose", k, perm=[0, 1, 3, 2])), w.hold(np.float32(0.25)))
    seen = w.add("Transpose", w.add("MatMul", w.add("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    joined = w.add("Reshape", seen, w.hold(np.array([0, 0, WIDE])))
    y = w.norm(w.add("Add", w.layer(joined, WIDE, WIDE), x))
    up = w.layer(y, WIDE, 2 * WIDE)
    half = w.add("Mul", up, w.hold(np.float32(0.5)))
    erf = w.add("Erf", w.add("Div", up, w.hold(np.float32(2**0.5))))
    active = w.add("Mul", half, w.add("Add", erf, w.hold(np.float32(1))))
    last = w.norm(w.add("Add", w.layer(active, 2 * WIDE, WIDE), y))
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"])
    return w.save(path, [ids], last, ["batch", "seq", WIDE])


def two_steps(path: Path) -> Path:
    """A product and a softmax."""
    w = Writer()
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 16])
    last = w.add("Softmax", w.add("MatMul", "x", w.numbers(16, 24)), axis=-1)
    return w.save(path, [x], last, ["rows", 24])


def told_by_data(path: Path) -> Path:
    """The rows whose largest number is above a half through a layer, with noise, and a loop that adds them."""
    w = Writer()
    large = w.add("Greater", w.add("ReduceMax", "x", w.hold(np.array([1])), keepdims=0), w.hold(np.float32(0.5)))
    rows = w.add("Gather", "x", w.add("Squeeze", w.add("NonZero", large), w.hold(np.array([0]))), axis=0)
    hidden = w.layer(rows, WIDE, WIDE)
    noisy = w.add("Add", hidden, w.add("RandomNormalLike", hidden, scale=0.5, seed=3.0))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [WIDE]) for name in ("before", "row", "total")]
    added = helper.make_node("Add", ["before", "row"], ["total"])
    scanned = helper.make_graph([added], "body", ends[:2], [ends[2]])
    start = w.hold(np.zeros(WIDE, np.float32))
    y = w.add("Scan", start, noisy, body=scanned, num_scan_inputs=1)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDE])
    return w.save(path, [x], y, [WIDE])


def test_a_model_for_an_absent_gpu_comes_from_predictions(cache: Path, tmp_path: Path) -> None:
    arguments = (str(two_steps(tmp_path / "net.onnx")), "--shapes", "rows=1..64", "--device", "h200", "--zero-measure")
    done = haotuner("tune", *arguments, cache=cache, cwd=tmp_path)
    assert done.code == 3, done.err
    assert "2 steps; 1 by 1 tuned ops, 1 by launches of generated kernels" in done.out
    manifest = read_manifest(tmp_path / "pack")
    assert manifest.on_device and list(manifest.models) == ["net"] and manifest.arch == "sm_90a"
    outcomes = {}
    asked_for = (
        ("bench", "pack", "--model", "net", "--shapes", "rows=3"),
        ("explain", "pack", "--model", "net", "--shape", "rows=3"),
    )
    for words in (("verify", "pack"), ("inspect", "pack"), *asked_for):
        ran = haotuner(*words, cache=cache, cwd=tmp_path)
        outcomes[words[0]] = ran.code, ran.out + ran.err
    assert outcomes["verify"][0] == 0 and "no device of this host runs sm_90a" in outcomes["verify"][1]
    assert "model net" in outcomes["inspect"][1]
    assert outcomes["bench"][0] == 2 and "pack is for sm_90a: whole models are raced on CPUs" in outcomes["bench"][1]
    assert (
        outcomes["explain"][0] == 2 and "leave --shape and --predicted out to see the plan of net" in outcomes["explain"][1]
    )


def test_a_model_whose_sizes_depend_on_data_is_packed_for_an_absent_gpu(cache: Path, tmp_path: Path) -> None:
    arguments = (str(told_by_data(tmp_path / "net.onnx")), "--shapes", "rows=1..64", "--device", "h200", "--zero-measure")
    done = haotuner("tune", *arguments, cache=cache, cwd=tmp_path)
    assert done.code == 3 and "segments, cut where sizes depend on data" in done.out, done.err
    manifest = read_manifest(tmp_path / "pack")
    assert manifest.on_device and {"net", "net.0", "net.1"} <= set(manifest.models)
    for words in (("verify", "pack"), ("inspect", "pack"), ("explain", "pack", "--model", "net")):
        ran = haotuner(*words, cache=cache, cwd=tmp_path)
        assert ran.code == 0, ran.err


@pytest.mark.slow
def test_a_model_whose_sizes_depend_on_data_is_tuned_and_checked_over_the_stand_in(cache: Path, tmp_path: Path) -> None:
    host = Host(cache, tmp_path / "images", "sm_80")
    arguments = (str(told_by_data(tmp_path / "net.onnx")), "--device", "cuda:0", "--shapes", "rows=1..24", "--budget", "20s")
    for _ in range(2):  # the second pack comes in the place of the first
        answer = host.run(tmp_path, "tune", *arguments, "--json")
        assert answer.code in (0, 3), answer.err
        assert answer.json()["verification"] == {"numbers": True, "why": ""}
    assert host.run(tmp_path, "verify", "pack", "--json").json() == {"ok": True, "problems": []}


@pytest.mark.slow
def test_an_encoder_is_tuned_packed_checked_and_served_over_the_stand_in(cache: Path, tmp_path: Path) -> None:
    host = Host(cache, tmp_path / "images", "sm_80")
    arguments = (str(encoder(tmp_path / "encoder.onnx")), "--device", "cuda:0", "--shapes", "batch=1..3;seq=1..24")
    answer = host.run(tmp_path, "tune", *arguments, "--budget", "20s", "--json")
    assert answer.code in (0, 3), answer.err
    document = answer.json()
    assert document["verification"] == {"numbers": True, "why": ""}, "the model was checked against the reference, too"
    assert document["model"]["name"] == "encoder" and document["device"] == "stand-in-sm-80"
    assert host.run(tmp_path, "verify", "pack", "--json").json() == {"ok": True, "problems": []}
    weights = tmp_path / "pack" / "models" / "encoder.weights"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    report = host.run(tmp_path, "verify", "pack", "--json").json()
    assert not report["ok"] and "its weights were changed" in report["problems"][0]
