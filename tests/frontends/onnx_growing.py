"""Models whose loops carry values of changing sizes: caches, decoded tokens, what doubles, what data append."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
helper, FLOAT, INT, BOOL = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
n = helper.make_node
DRAW = np.random.default_rng(0)
HELD = {
    "w": DRAW.standard_normal((4, 4)).astype(np.float32) * 0.5,
    "table": DRAW.standard_normal((7, 4)).astype(np.float32),
    "out": DRAW.standard_normal((4, 7)).astype(np.float32),
    "zero": np.array(0), "one": np.array(1), "ones": np.array([1]), "four": np.array([4]), "thirty": np.array(30),
    "yes": np.array(True), "end": np.array(3), "unit": np.float32(1), "hundred": np.float32(100),
    "none": np.zeros((0, 4), np.float32),
}  # fmt: skip


def info(name: str, shape: Any = None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    initializers = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in HELD.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def body(nodes: list[Any], states: list[Any], outputs: list[Any]) -> Any:
    return helper.make_graph(nodes, "body", [info("turn", [], INT), info("go", [], BOOL), *states], outputs)


def cached() -> Any:
    """Keys and values of which each turn adds one, from none on, and a turn's attention to those that are there."""
    inside = [
        n("Gather", ["x", "turn"], ["row"], axis=1),
        n("Unsqueeze", ["row", "ones"], ["q"]),
        n("MatMul", ["q", "w"], ["k"]),
        n("Concat", ["keys", "k"], ["keys_next"], axis=1),
        n("Concat", ["values", "q"], ["values_next"], axis=1),
        n("Transpose", ["keys_next"], ["turned"], perm=[0, 2, 1]),
        n("MatMul", ["q", "turned"], ["scores"]),
        n("Softmax", ["scores"], ["weights"], axis=-1),
        n("MatMul", ["weights", "values_next"], ["mixed"]),
        n("Squeeze", ["mixed", "ones"], ["made"]),
        n("Identity", ["go"], ["more"]),
    ]
    inner = body(
        inside,
        [info("keys"), info("values")],
        [info("more", [], BOOL), info("keys_next"), info("values_next"), info("made")],
    )
    nodes = [
        n("Shape", ["x"], ["shape"]),
        n("Gather", ["shape", "one"], ["long"]),
        n("Loop", ["long", "yes", "before", "before"], ["keys_end", "values_end", "rows"], body=inner),
        n("Add", ["keys_end", "x"], ["both"]),
    ]
    nodes = [n("Gather", ["x", "none_of"], ["before"], axis=1), *nodes]
    whole = model(nodes, [info("x", ["batch", "seq", 4])], [info("both"), info("values_end"), info("rows")])
    whole.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(0, np.int64), "none_of"))
    return whole


def decoded() -> Any:
    """Tokens by the largest score, one more each turn, until one of them is the last one; thirty at most."""
    inside = [
        n("Gather", ["table", "tokens"], ["words"], axis=0),
        n("ReduceMean", ["words", "ones"], ["mean"], keepdims=0),
        n("MatMul", ["mean", "out"], ["scores"]),
        n("ArgMax", ["scores"], ["best"], axis=-1, keepdims=1),
        n("Add", ["best", "turn"], ["later"]),
        n("Mod", ["later", "seven"], ["next"]),
        n("Concat", ["tokens", "next"], ["tokens_next"], axis=1),
        n("Equal", ["next", "end"], ["ended"]),
        n("Cast", ["ended"], ["count"], to=INT),
        n("ReduceSum", ["count"], ["all"], keepdims=0),
        n("Equal", ["all", "zero"], ["more"]),
    ]
    inner = body(
        inside,
        [info("tokens", None, INT)],
        [info("more", [], BOOL), info("tokens_next", None, INT), info("next", None, INT)],
    )
    nodes = [
        n("Loop", ["thirty", "yes", "first"], ["tokens_end", "each"], body=inner),
        n("Shape", ["tokens_end"], ["shape"]),
    ]
    outputs = [info("tokens_end", None, INT), info("each", None, INT), info("shape", None, INT)]
    whole = model(nodes, [info("first", ["batch", "given"], INT)], outputs)
    whole.graph.initializer.append(onnx.numpy_helper.from_array(np.array(7), "seven"))
    return whole


def doubled() -> Any:
    """Twice as many rows each turn, while their sum is small."""
    inside = [
        n("Concat", ["state", "state"], ["next"], axis=0),
        n("ReduceSum", ["next"], ["sum"], keepdims=0),
        n("Less", ["sum", "hundred"], ["more"]),
    ]
    inner = body(inside, [info("state")], [info("more", [], BOOL), info("next")])
    nodes = [n("Loop", ["thirty", "yes", "x"], ["last"], body=inner), n("Mul", ["last", "last"], ["y"])]
    return model(nodes, [info("x", ["rows", 4])], [info("y"), info("last")])


def widened() -> Any:
    """A value of one row, and a number, before the first turn, which always runs; of the request's rows behind it."""
    inside = [
        n("MatMul", ["x", "w"], ["mixed"]),
        n("Add", ["mixed", "state"], ["sum"]),
        n("Tanh", ["sum"], ["next"]),
        n("Add", ["level", "next"], ["level_next"]),
        n("Add", ["turn", "one"], ["done"]),
        n("Less", ["done", "count"], ["more"]),
        n("ReduceMax", ["next", "axis"], ["made"]),
    ]
    inner = body(
        inside, [info("state"), info("level")], [info("more", [], BOOL), info("next"), info("level_next"), info("made")]
    )
    nodes = [n("ReduceMax", ["x", "axis"], ["first"])]
    nodes += [n("Loop", ["thirty", "yes", "first", "unit"], ["y", "z", "each"], body=inner)]
    whole = model(nodes, [info("x", ["rows", 4]), info("count", [], INT)], [info("y"), info("z"), info("each")])
    whole.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "axis"))
    return whole


def appended() -> Any:
    """Each turn appends what is above zero: data tell how much."""
    inside = [
        n("NonZero", ["rest"], ["places"]),
        n("Transpose", ["places"], ["turned"]),
        n("GatherND", ["rest", "turned"], ["found"]),
        n("Concat", ["all", "found"], ["all_next"], axis=0),
        n("Sub", ["rest", "unit"], ["less"]),
        n("Relu", ["less"], ["rest_next"]),
        n("Identity", ["go"], ["more"]),
    ]
    inner = body(inside, [info("all"), info("rest")], [info("more", [], BOOL), info("all_next"), info("rest_next")])
    nodes = [n("Flatten", ["none"], ["flat"], axis=0), n("Squeeze", ["flat", "axis"], ["begin"])]
    nodes += [n("Relu", ["x"], ["above"]), n("Loop", ["count", "yes", "begin", "above"], ["y", "z"], body=inner)]
    whole = model(nodes, [info("x", ["rows", 4]), info("count", [], INT)], [info("y"), info("z")])
    whole.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "axis"))
    return whole


def nested() -> Any:
    """A loop whose turns each append, in a loop that carries the sum of what was appended."""
    inside = [
        n("Sin", ["state"], ["row"]),
        n("Concat", ["all", "row"], ["all_next"], axis=0),
        n("Identity", ["on"], ["on_next"]),
    ]
    names = [info("k", [], INT), info("on", [], BOOL), info("all")]
    inner = helper.make_graph(inside, "inner", names, [info("on_next", [], BOOL), info("all_next")])
    outer = [
        n("Loop", ["turn", "yes", "state"], ["stack"], body=inner),
        n("ReduceMean", ["stack", "axis"], ["next"], keepdims=1),
        n("Concat", ["kept", "stack"], ["kept_next"], axis=0),
        n("Identity", ["go"], ["more"]),
    ]
    whole = body(outer, [info("state"), info("kept")], [info("more", [], BOOL), info("next"), info("kept_next")])
    nodes = [n("Loop", ["count", "yes", "x", "none"], ["last", "every"], body=whole)]
    onnx_model = model(nodes, [info("x", [1, 4]), info("count", [], INT)], [info("last"), info("every")])
    onnx_model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "axis"))
    return onnx_model


MODELS = {
    "cached": cached, "decoded": decoded, "doubled": doubled, "widened": widened, "appended": appended, "nested": nested,
}  # fmt: skip
SIZES = (0, 1, 2, 5, 20)  # of a request: turns, tokens or rows


def feeds(name: str, size: int) -> dict[str, Any]:
    """A request; ``size``: how many turns there are, or how many rows and tokens are given."""
    draw = np.random.default_rng(size)
    if name == "cached":
        return {"x": draw.standard_normal((2, size, 4)).astype(np.float32)}
    if name == "decoded":
        return {"first": draw.integers(0, 7, (2, max(size, 1)))}
    if name == "doubled":
        return {"x": draw.random((max(size, 1), 4)).astype(np.float32) + np.float32(0.01)}
    rows = 1 if name == "nested" else 3
    count = np.array(min(size, 5) if name == "nested" else size)
    return {"x": draw.standard_normal((rows, 4)).astype(np.float32), "count": count}
