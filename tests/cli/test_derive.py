"""haotuner derive: forms of a model's products with their rules and times, of an expression, and bad input in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import haotuner

onnx = pytest.importorskip("onnx")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two convolutions of one image: of one feature, and of 24."""
    weights = [np.ones((features, 32, 3, 3), np.float32) for features in (1, 24)]
    nodes = [onnx.helper.make_node("Conv", ["x", f"w{at}"], [f"y{at}"], pads=[1, 1, 1, 1]) for at in range(2)]
    image, *results = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 32, "h", "w"]), ("y0", None), ("y1", None))
    )
    initializers = [onnx.numpy_helper.from_array(weight, f"w{at}") for at, weight in enumerate(weights)]
    graph = onnx.helper.make_graph(nodes, "two", [image], results, initializers)
    path = tmp_path / "two.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    return path


SHAPES = ("--shapes", "n=1;h=14..56;w=14..56")
EXPECTED = "--zero-measure"


def test_forms_of_each_product_and_of_both_together_are_printed(model: Path, cache: Path, tmp_path: Path) -> None:
    out = haotuner("derive", str(model), *SHAPES, "--trace", EXPECTED, cache=cache, cwd=tmp_path).out
    assert "measured" not in out and "states: 14" in out and "expected" in out
    assert "kernels: matmul (k = c1" in out
    assert "1. summation splitting: u, v outside" in out and "iterator merge" in out
    assert "y0, y1: checked" in out and "expression merging: 2 products of one tensor" in out
    assert "cheapest: a derived form" in out


def test_one_product_is_derived_alone(model: Path, cache: Path, tmp_path: Path) -> None:
    out = haotuner("derive", str(model), "--node", "y1", *SHAPES, EXPECTED, cache=cache, cwd=tmp_path).out
    assert "y1:" in out and "y0" not in out and "1. summation" not in out


@pytest.mark.slow
def test_a_cheaper_form_is_timed_against_the_original_at_both_ends(model: Path, cache: Path, tmp_path: Path) -> None:
    words = ("derive", str(model), "--node", "y0", *SHAPES, "--budget", "60")
    out = haotuner(*words, cache=cache, cwd=tmp_path).out
    expected, _, measured = out.partition("y0: least times of calls on this host, one thread")
    assert "as the model has it" in expected
    for row in ("as the model has it", "form "):
        (line,) = (line for line in measured.splitlines() if line.startswith(row) and "against" not in line)
        assert all(float(us.replace(",", "")) > 0 for us in line.split()[-2:]), line
    assert measured.count("us at n=1;h=14;w=14") == 1 and measured.count("us at n=1;h=56;w=56") == 1
    assert "against the original: " in measured and "x at n=1;h=56;w=56" in measured


def test_forms_wait_for_no_time_that_is_over(model: Path, cache: Path, tmp_path: Path) -> None:
    out = haotuner("derive", str(model), *SHAPES, "--budget", "0.01", cache=cache, cwd=tmp_path).out
    assert "not measured: the time is over; raise --budget" in out or "left out: 0.005 s are over" in out
    assert "least times of calls" not in out


def test_an_expression_is_derived(cache: Path, tmp_path: Path) -> None:
    text = "X(m, k), W(f, k, 3)!; L[a:0..m, o:0..f] S[d:0..k, r:0..3] X[a + r - 1, d] * W[o, d, r]"
    out = haotuner("derive", "--expression", text, "--shapes", "m=64;k=32;f=2", "--trace", cache=cache, cwd=tmp_path).out
    assert "as it was written" in out and "summation splitting: r outside" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["MODEL", "--node", "y7", *SHAPES], "--node 'y7': no product makes it; products make y0, y1"),
        (["MODEL", "--shapes", "n=1"], "--shapes 'n=1' says nothing of h, w"),
        (["MODEL", *SHAPES, "--budget", "0"], "--budget 0: give seconds above 0"),
        ([], "name a model, MODEL.onnx, or an expression, --expression TEXT; one of both"),
        (["--expression", "A(n); L[i:0..n] A[i"], "expression: expected"),
        (["--expression", "A(n); L[i:5..5] A[i]"], "iterator i has the empty range 5..5"),
        (["--expression", "A(n); L[i:0..n] A[i*i]"], "index 'i*i' cannot be read"),
        (["--expression", "A(n); L[i:0..n] A[i]"], "--shapes says nothing of n; write for example n=7..56"),
        (["--expression", "A(n); L[i:0..n] A[i + k]"], "--shapes says nothing of k, n"),
    ],
)
def test_bad_input_is_answered_in_words(words: list[str], message: str, model: Path, cache: Path, tmp_path: Path) -> None:
    answer = haotuner("derive", *(str(model) if word == "MODEL" else word for word in words), cache=cache, cwd=tmp_path)
    assert answer.code == 2 and message in answer.err


@pytest.mark.parametrize(("kind", "node"), [("INT32", "MatMul"), ("BOOL", "And")])
def test_a_model_of_whole_numbers_or_truths_has_nothing_to_derive(kind: str, node: str, cache: Path, tmp_path: Path) -> None:
    types = getattr(onnx.TensorProto, kind)
    ends = [onnx.helper.make_tensor_value_info(name, types, ["n", 4]) for name in ("x", "y")]
    weight = onnx.helper.make_tensor("w", types, [4, 4], [1] * 16)
    inputs = ["x", "w"] if node == "MatMul" else ["x", "x"]
    graph = onnx.helper.make_graph([onnx.helper.make_node(node, inputs, ["y"])], "m", ends[:1], ends[1:], [weight])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    answer = haotuner("derive", "m.onnx", "--shapes", "n=1..4", cache=cache, cwd=tmp_path)
    assert answer.code == 2 and "no product or convolution in fp32; there is nothing to derive" in answer.err
