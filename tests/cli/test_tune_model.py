"""`haotuner tune` of whole models: several in one pack, a budget shared among their tasks, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import haotuner as api
from haotuner.cli.model_report import _expected
from tests.cli.command import haotuner

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

DRAW = np.random.default_rng(0)


def layers(path: Path, *widths: int) -> Path:
    """A model of dense layers, each followed by a softmax."""
    nodes, weights = [], []
    for index, (inputs, outputs) in enumerate(zip(widths, widths[1:], strict=False)):
        weights.append(numpy_helper.from_array(DRAW.standard_normal((inputs, outputs)).astype(np.float32), f"w{index}"))
        nodes.append(helper.make_node("MatMul", [f"h{index}", f"w{index}"], [f"p{index}"]))
        nodes.append(helper.make_node("Softmax", [f"p{index}"], [f"h{index + 1}"], axis=-1))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
            for name, width in (("h0", widths[0]), (f"h{len(widths) - 1}", widths[-1]))]  # fmt: skip
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    layers(folder / "one.onnx", 32, 48)
    layers(folder / "two.onnx", 32, 48, 32)
    (folder / "none.onnx").write_bytes(b"no model")
    (folder / "none.pt2").write_bytes(b"no model")
    return folder


WRONG = {
    "not a file": (["lost.onnx", "--shapes", "batch=1..8"], "lost.onnx"),
    "not a model": (["none.onnx", "--shapes", "batch=1..8"], "none.onnx"),
    "no shapes": (["one.onnx"], "batch=1..8"),
    "other dimensions": (["one.onnx", "--shapes", "seq=1..8"], "there is no 'seq'"),
    "a fixed extent": (["one.onnx", "--shapes", "h0=1..8x33"], "input h0 has 32"),
    "shapes of more models": (["one.onnx", "--shapes", "batch=1", "--shapes", "batch=2"], "2 times --shapes for 1 models"),
    "the same name": (["one.onnx", "one.onnx", "--shapes", "batch=1..8"], "two models are called one"),
    "objective": (["one.onnx", "--shapes", "batch=1..8", "--objective", "speed"], "--objective 'speed'"),
    "strategy": (["one.onnx", "--shapes", "batch=1..8", "--strategy", "luck"], "--strategy 'luck'"),
    "an op beside": (["one.onnx", "--op", "dense:n=3,k=3"], "a model brings its own ops"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_exit_2_in_words_and_writes_nothing(files: Path, cache: Path, tmp_path: Path, name: str) -> None:
    words, message = WRONG[name]
    placed = [str(files / word) if word.endswith(".onnx") else word for word in words]
    answer = haotuner("tune", *placed, "--budget", "1s", cache=cache, cwd=tmp_path)
    assert answer.code == 2, answer.err
    assert message in answer.err and "Traceback" not in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_model_of_generated_kernels_alone_is_a_pack_without_ops(cache: Path, tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", "cols"]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"], axis=-1)], "net", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "soft.onnx")
    words = ["tune", "soft.onnx", "--shapes", "rows=1..8;cols=1..64", "--threads", "1", "--zero-measure"]
    answer = haotuner(*words, "--json", cache=cache, cwd=tmp_path)
    assert answer.code == 3, answer.err
    document: Any = json.loads(answer.out)
    assert document["unverified"] and document["model"]["predicted_us"]["1"]["rows=8;cols=64"]["all"] > 0
    with pytest.warns(UserWarning, match="nothing was measured"), api.load(tmp_path / "pack", threads=1) as pack:
        (output,) = pack.model("soft").run({"x": np.zeros((3, 7), np.float32)}).values()
        assert np.allclose(output, 1 / 7)
    answer = haotuner(*words, "--device", "h200", "--out", "other", cache=cache, cwd=tmp_path)
    assert answer.code == 2 and "such models run on CPUs alone" in answer.err, answer.err


def test_what_requests_are_expected_to_take_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"batch=4": {"all": 4200.0}, "batch=1": {"all": 1000.0}, "batch=8": {"all": 1234567.0}}
    monkeypatch.setattr(
        "haotuner.partition.cost_estimate.predicted_us", lambda _m, _t, _d, count: times if count == 1 else {}
    )
    report: Any = SimpleNamespace(threads=(1, 2), tuned=(), device=None)
    text = _expected(cast(Any, None), report)
    assert text == "\na request is expected to take 1 ms (batch=1) to 1,235 ms (batch=8), threads: 1"


@pytest.mark.slow
def test_two_models_share_a_budget_and_a_pack(files: Path, cache: Path, tmp_path: Path) -> None:
    words = [str(files / "one.onnx"), str(files / "two.onnx"), "--shapes", "batch=1..8", "--shapes", "batch=1..16",
             "--threads", "1", "--peers", "none", "--objective", "geomean", "--json"]  # fmt: skip
    document: Any = json.loads(haotuner("tune", *words, "--budget", "16s", cache=cache, cwd=tmp_path).out)
    names = {op["name"] for op in document["ops"]}
    assert names == {"dense_n48_k32", "dense_n32_k48"}
    assert {turn[0] for turn in document["turns"]} == {*names, "groups of one", "groups of two"}
    assert [model["name"] for model in document["models"]] == ["one", "two"]
    for model in document["models"]:
        assert model["orchestration"]["measured"] > 0
        assert all(us["all"] > 0 for us in model["predicted_us"]["1"].values())
    with api.load(tmp_path / "pack", threads=1) as pack:
        for name, width in (("one", 48), ("two", 32)):
            (output,) = pack.model(name).run({"h0": np.zeros((5, 32), np.float32)}).values()
            assert output.shape == (5, width) and np.allclose(output.sum(axis=1), 1)
    shown = haotuner("explain", "pack", "--model", "two", "--json", cache=cache, cwd=tmp_path)
    assert len(json.loads(shown.out)["regions"]) == 2
    pytest.importorskip("onnxruntime")
    more = ("--budget", "3s", "--resume", "--peers", "onnxruntime")
    again: Any = json.loads(haotuner("tune", *words, *more, cache=cache, cwd=tmp_path).out)
    assert again["reused"] > 0
    raced = {(row["model"], len(row["peers"])) for row in again["speed"]["rows"]}
    assert raced == {("one", 1), ("two", 1)}
