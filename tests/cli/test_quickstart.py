"""`haotuner quickstart`, and what its parts say: guessed ranges, the race in a line, the lines that serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.bench.model_answers import largest_difference
from haotuner.cli.app import run
from haotuner.cli.quickstart import _verdicts
from tests.cli.command import haotuner

onnx = pytest.importorskip("onnx")
from tests.cli.test_tune_model import layers  # noqa: E402


def model(path: Path, shape: list[Any], kind: int = 1) -> Path:
    """A model that doubles its input."""
    helper = onnx.helper
    ends = [helper.make_tensor_value_info(name, kind, shape) for name in ("x", "y")]
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.mark.parametrize(
    "shape, kind, text",
    [
        (["batch_size", "sequence_length", 8], 1, "batch_size=1..8;sequence_length=1..512"),
        (["N", 3, "height", "width"], 1, "N=1..8;height=64..512:32;width=64..512:32"),
        (["a", "b2", 4], 1, "a=1..8;b2=1..512"),
        ([None, 3, None, None], 1, "x_0=1..8;x_2=64..512:32;x_3=64..512:32"),
        (["docs", "things"], 7, "docs=1..8;things=1..512"),
        ([4, "things"], 1, "things=1..256"),
        (["batch", "past_length"], 1, "batch=1..8;past_length=1..512"),
        ([2, 3], 1, "dynamic"),
    ],
)
def test_ranges_are_guessed_from_names_axes_and_types(tmp_path, shape, kind, text):
    from haotuner.tuning.guessed_shapes import guessed_shapes

    assert guessed_shapes(model(tmp_path / "net.onnx", shape, kind)) == text


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_bounds_of_an_exported_program_are_within_the_guess(tmp_path):
    torch: Any = pytest.importorskip("torch")
    from haotuner.torch import export
    from haotuner.tuning.guessed_shapes import guessed_shapes

    sizes = {"x": {0: torch.export.Dim("batch", min=2, max=6), 1: torch.export.Dim("seq", min=4, max=4096)}}
    export(torch.nn.Linear(8, 8), (torch.randn(3, 9, 8),), {"input": sizes["x"]}, out=tmp_path / "net.pt2")
    assert guessed_shapes(tmp_path / "net.pt2") == "batch=2..6;seq=4..512"


@pytest.mark.parametrize(
    "words, message",
    [
        (["lost.onnx"], "lost.onnx is not there"),
        (["net.onnx", "--peers", "torch"], "is raced against onnxruntime, openvino, or none"),
        (["net.onnx", "--budget", "soon"], "write a time such as 60s"),
        (["net.onnx", "--peers", "none", "--shapes", "batsh=1..4"], "did you mean 'batch'?"),
    ],
)
def test_wrong_requests_are_answered_at_once(tmp_path, monkeypatch, capsys, words, message):
    layers(tmp_path / "net.onnx", 32, 48)
    monkeypatch.chdir(tmp_path)
    assert run(["quickstart", *words]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"], "nothing else is left"


def test_a_file_that_is_no_model_is_refused(tmp_path, capsys):
    (tmp_path / "none.onnx").write_bytes(b"no model")
    assert run(["quickstart", str(tmp_path / "none.onnx")]) == 2
    assert "none.onnx" in capsys.readouterr().err


def row(ratio: float, *, contended: bool = False) -> dict[str, Any]:
    return {"contended": contended, "peers": {"onnxruntime": {"ratio": ratio}}}


@pytest.mark.parametrize(
    "rows, difference, line",
    [
        ([row(1.4), row(1.4)], 4e-7, "1.4x ONNX Runtime at seq 8 to 512, same answers to 4e-7"),
        ([row(0.5), row(0.5)], 4e-7, "ONNX Runtime is 2.0x faster at seq 8 to 512, same answers to 4e-7"),
        ([row(2.0), row(9.0, contended=True)], None, "2.0x ONNX Runtime at seq 8 to 512"),
        ([row(2.0)], 0.5, "2.0x ONNX Runtime at seq 8 to 512, ANSWERS DIFFER by 5.0e-1"),
    ],
)
def test_a_race_is_one_line(rows, difference, line):
    raced = {
        "rows": rows,
        "missing": [],
        "differences": {"onnxruntime": difference},
        "sizes": {"b": [2, 2], "seq": [8, 512]},
    }
    assert _verdicts(raced, ["onnxruntime"]) == [line]


def test_a_race_on_a_busy_machine_says_so():
    raced = {"rows": [row(2.0, contended=True)], "missing": ["openvino"], "differences": {}, "sizes": {}}
    lines = _verdicts(raced, ["onnxruntime", "openvino"])
    assert lines[0].startswith("2.0x ONNX Runtime (other programs were busy") and lines[1] == "OpenVINO cannot run the model"


def test_differences_are_of_the_largest_value():
    a = np.array([1.0, -8.0, np.inf])
    assert largest_difference([a], [a]) == 0
    assert largest_difference([a], [a + [0.0, 0.08, 0.0]]) == pytest.approx(0.0101, rel=0.01)
    assert largest_difference([a], [np.array([1.0, -8.0, np.nan])]) == 1
    assert largest_difference([a], [a[:2]]) == 1 and largest_difference([a], []) == 1
    assert largest_difference([np.zeros(3)], [np.zeros(3)]) == 0


@pytest.mark.slow
def test_from_a_file_to_the_lines_that_serve_it(tmp_path, cache):
    file = layers(tmp_path / "net.onnx", 32, 48)
    answer = haotuner(
        "quickstart", str(file), "--budget", "5s", "--threads", "1", "--peers", "none", cache=cache, cwd=tmp_path
    )
    assert answer.code in (0, 3), answer.err
    assert "guessed sizes: batch=1..8" in answer.err
    assert 'model = haotuner.load("pack").model("net")\nanswer = model.run({"h0": h0})' in answer.out
    assert (tmp_path / "pack" / "manifest.json").is_file()


@pytest.mark.slow
def test_a_model_is_tuned_from_python_as_from_the_command_line(tmp_path, monkeypatch):
    import haotuner as api

    monkeypatch.chdir(tmp_path)
    report = api.tune_model(layers(tmp_path / "net.onnx", 32, 48), zero_measure=True, threads=1)
    assert str(report.pack) == "pack" and {name: str(span) for name, span in report.models[0].spans.items()} == {
        "batch": "1..8"
    }
    x = np.ones((3, 32), np.float32)
    with pytest.warns(UserWarning, match="nothing was measured"), api.load("pack", threads=1) as pack:
        assert pack.model("net").run({"h0": x})["h1"].shape == (3, 48)
