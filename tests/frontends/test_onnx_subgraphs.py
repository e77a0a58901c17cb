"""Subgraphs between operators without a rule: their ends, sizes that cross them, and the values of the whole model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.subgraphs import read_subgraphs
from haotuner.graph.interpret import interpret
from haotuner.tuning.subgraph_tasks import subgraph_shapes

onnx: Any = pytest.importorskip("onnx")

SIZES = "sh = Shape(x) i = Constant<value = int64[2] {0, 1}>() bs = Gather(sh, i) e = Constant<value = int64[2] {4, 16}>()"
TWISTED = (
    f"h = MatMul(x, w) r = Relu(h) c = acme.Twist(r) {SIZES} full = Concat<axis = 0>(bs, e) c4 = Reshape(c, full) "
    "t = Transpose<perm = [0, 1, 3, 2]>(c4) m = Constant<value = int64[1] {64}>() back = Concat<axis = 0>(bs, m) "
    "cc = Reshape(t, back) y = Add(cc, r)"
)


def saved(folder: Any, body: str, ends: str = "(float[b,s,32] x) => (float[b,s,64] y)", values: str = "") -> Any:
    """File of a model with a weight w of 32 by 64; ``values``: types of tensors inside."""
    path = folder / "net.onnx"
    text = f'<ir_version: 9, opset_import: ["" : 17, "acme" : 1]> net {ends} {values} {{ {body} }}'
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, path)
    return path


def levels_of(path: Any) -> list[Any]:
    """Graphs of the levels; those that compute nothing are None."""
    return list(read_subgraphs(path))


def ends_of(graph: Any) -> tuple[list[str], list[str]]:
    return list(graph.inputs), list(graph.outputs)


def test_levels_before_and_behind_a_refused_operator(tmp_path):
    first, second = levels_of(saved(tmp_path, TWISTED, values="<float[b,s,64] c>"))
    assert ends_of(first) == (["x"], ["r", "full", "back"])  # also sizes, which the server may compute with this part
    assert sorted(second.inputs) == ["c", "r"] and second.outputs == ("y",)


def test_values_are_those_of_the_whole_model(tmp_path):
    first, second = levels_of(saved(tmp_path, TWISTED, values="<float[b,s,64] c>"))
    x = np.random.default_rng(1).standard_normal((2, 5, 32)).astype(np.float32)
    r = interpret(first, {"x": x}, 0)["r"]
    y = interpret(second, {"c": -r, "r": r}, 0)["y"]  # the operator negates, say
    expected = (-r).reshape(2, 5, 4, 16).transpose(0, 1, 3, 2).reshape(2, 5, 64) + r
    assert np.array_equal(y, expected)


def test_what_has_no_known_type_is_left_out_with_all_behind_it(tmp_path):
    levels = levels_of(saved(tmp_path, TWISTED))
    assert [ends_of(graph) for graph in levels if graph is not None] == [(["x"], ["r", "full", "back"])]


def test_types_of_onnxs_own_operators_are_inferred(tmp_path):
    counts = (
        'TfIdfVectorizer<max_gram_length = 1, max_skip_count = 0, min_gram_length = 1, mode = "TF", ngram_counts = [0], '
        "ngram_indexes = [0, 1, 2], pool_int64s = [5, 6, 7]>(k)"
    )
    body = f"g = MatMul(x, w) k = ArgMax<axis = 1, keepdims = 0>(x) d = {counts} y = Relu(d)"
    first, second = levels_of(saved(tmp_path, body, "(float[b,s,32] x) => (float[b,3] y, float[b,s,64] g)"))
    assert ends_of(first) == (["x"], ["g", "k"])
    assert ends_of(second) == (["d"], ["y"])
    assert [str(extent) for extent in second.types["d"].shape] == ["b", "3"]


def test_a_tokeniser_of_strings_stays_outside(tmp_path):
    body = "ids = acme.Tokens(text) f = Cast<to = 1>(ids) y = Relu(f)"
    none, second = levels_of(saved(tmp_path, body, "(string[b] text) => (float[b,s] y)", "<int64[b,s] ids>"))
    assert none is None
    assert ends_of(second) == (["ids"], ["y"])


def test_an_operator_inside_a_branch_refuses_the_branch(tmp_path):
    side = "{ z = acme.Twist(h) }"
    body = (
        f"h = MatMul(x, w) d = If(p) <then_branch = a () => (float[b,s,64] z) {side}, "
        f"else_branch = e () => (float[b,s,64] z) {side}> y = Relu(d)"
    )
    ends = "(float[b,s,32] x, bool p) => (float[b,s,64] y)"
    first, second = levels_of(saved(tmp_path, body, ends, "<float[b,s,64] d>"))
    assert ends_of(first) == (["x"], ["h"])
    assert ends_of(second) == (["d"], ["y"])


def test_what_unread_results_are_computed_from_is_no_input(tmp_path):
    body = "h = MatMul(x, w) unread = Add(h, z) also = Neg(unread) d = acme.Twist(h) y = Relu(d)"
    ends = "(float[b,s,32] x, float[b,s,64] z) => (float[b,s,64] y)"
    first, second = levels_of(saved(tmp_path, body, ends, "<float[b,s,64] d>"))
    assert ends_of(first) == (["x"], ["h"])
    assert ends_of(second) == (["d"], ["y"])


def test_a_model_without_such_operators_has_none(tmp_path):
    path = saved(tmp_path, "y = MatMul(x, w)")
    assert read_subgraphs(path) == ()
    assert subgraph_shapes(path, "b=1..4;s=1..8") == {}


def test_each_subgraph_is_tuned_for_its_own_dimensions(tmp_path):
    path = saved(tmp_path, TWISTED, values="<float[b,s,64] c>")
    assert subgraph_shapes(path, "b=1..4;s=1..8") == {0: "b=1..4;s=1..8", 1: "b=1..4;s=1..8"}
    with pytest.raises(UsageError, match="no subgraph has 'q'"):
        subgraph_shapes(path, "b=1..4;s=1..8;q=1..2")


def test_a_size_that_data_decide_does_not_cross(tmp_path):
    body = "n = NonZero(x) f = Cast<to = 1>(n) d = acme.Twist(f) y = Add(d, f)"
    with pytest.raises(UsageError, match="which data decide in another part of the model"):
        read_subgraphs(saved(tmp_path, body, "(float[b,32] x) => (float[two,m] y)", "<float[two,m] d>"))


def test_nothing_to_tune(tmp_path):
    path = saved(tmp_path, "y = acme.Twist(x)", "(float[b,s,32] x) => (float[b,s,64] y)")
    with pytest.raises(UsageError, match="nothing lies before or behind"):
        subgraph_shapes(path, "b=1;s=1")
