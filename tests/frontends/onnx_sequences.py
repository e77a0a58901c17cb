"""Models with ONNX's sequences and optionals: split, built, mapped, carried by loops, chosen by branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
helper, FLOAT, INT, BOOL = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
n = helper.make_node
HELD = {"zero": 0, "one": 1, "two": 2, "last": -1, "sizes": [1, 2, 3], "axes": [0], "twenty": 20, "yes": True}


def info(name: str, shape: Any = None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[Any], outputs: list[str], inputs: list[Any] | None = None) -> Any:
    initializers = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in HELD.items()]
    ends = inputs or [info("x", ["rows", 6])], [info(name) for name in outputs]
    graph = helper.make_graph(nodes, "g", *ends, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def body(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    return helper.make_graph(nodes, "body", inputs, outputs)


def sequence(name: str) -> Any:
    return helper.make_tensor_sequence_value_info(name, FLOAT, None)


def parts() -> Any:
    """Parts of told sizes, along an axis counted from the end; their order turned."""
    nodes = [n("SplitToSequence", ["x", "sizes"], ["s"], axis=-1)]
    nodes += [n("SequenceAt", ["s", at], [f"p{at}"]) for at in ("last", "zero")]
    return model(
        [*nodes, n("Concat", ["plast", "pzero"], ["y"], axis=1), n("SequenceLength", ["s"], ["count"])], ["y", "count"]
    )


def columns() -> Any:
    """Single columns without their axis, joined again along a new one."""
    nodes = [n("SplitToSequence", ["x"], ["s"], axis=1, keepdims=0), n("SequenceErase", ["s", "one"], ["t"])]
    return model([*nodes, n("ConcatFromSequence", ["t"], ["y"], axis=-1, new_axis=1)], ["y"])


def uneven() -> Any:
    """Parts of four columns: the last one is smaller."""
    nodes = [n("SplitToSequence", ["x", "four"], ["s"], axis=1), n("SequenceAt", ["s", "last"], ["end"])]
    nodes += [n("Exp", ["end"], ["more"]), n("SequenceInsert", ["s", "more", "zero"], ["t"])]
    whole = model([*nodes, n("ConcatFromSequence", ["t"], ["y"], axis=1)], ["y"])
    whole.graph.initializer.append(onnx.numpy_helper.from_array(np.array(4), "four"))
    return whole


def built() -> Any:
    """From nothing: appended, put before the last one, taken off."""
    nodes = [
        n("SequenceEmpty", [], ["s0"]),
        n("Exp", ["x"], ["e"]),
        n("Neg", ["x"], ["m"]),
        n("SequenceInsert", ["s0", "x"], ["s1"]),
        n("SequenceInsert", ["s1", "e", "last"], ["s2"]),
        n("SequenceInsert", ["s2", "m"], ["s3"]),
        n("SequenceErase", ["s3", "one"], ["s4"]),
        n("SequenceErase", ["s3"], ["s5"]),
        n("ConcatFromSequence", ["s4"], ["y"], axis=0),
        n("ConcatFromSequence", ["s5"], ["z"], axis=0, new_axis=1),
    ]
    return model(nodes, ["y", "z"])


def chosen() -> Any:
    """An element of a place that the request tells."""
    nodes = [n("Exp", ["x"], ["e"]), n("SequenceConstruct", ["x", "e"], ["s"]), n("SequenceAt", ["s", "at"], ["y"])]
    return model(nodes, ["y"], [info("x", ["rows", 6]), info("at", [], INT)])


def carried() -> Any:
    """A loop of twenty turns that appends to a sequence."""
    inside = [
        n("Cast", ["turn"], ["t"], to=FLOAT),
        n("Mul", ["x", "t"], ["row"]),
        n("SequenceInsert", ["s", "row"], ["s_next"]),
        n("Identity", ["go"], ["more"]),
    ]
    inner = body(
        inside, [info("turn", [], INT), info("go", [], BOOL), sequence("s")], [info("more", [], BOOL), sequence("s_next")]
    )
    nodes = [n("SequenceEmpty", [], ["first"]), n("Loop", ["twenty", "yes", "first"], ["end"], body=inner)]
    return model([*nodes, n("ConcatFromSequence", ["end"], ["y"], axis=0, new_axis=1)], ["y"])


def branched() -> Any:
    """Data tell which of two sequences is taken."""
    sides = {
        "then_branch": body([n("Exp", ["x"], ["a"]), n("SequenceConstruct", ["a", "x"], ["s1"])], [], [sequence("s1")]),
        "else_branch": body([n("Neg", ["x"], ["b"]), n("SequenceConstruct", ["x", "b"], ["s2"])], [], [sequence("s2")]),
    }
    nodes = [n("If", ["flag"], ["s"], **sides), n("ConcatFromSequence", ["s"], ["y"], axis=1)]
    return model(nodes, ["y"], [info("x", ["rows", 6]), info("flag", [], BOOL)])


def mapped() -> Any:
    """A body for each part, with a tensor that all share."""
    inner = body(
        [n("MatMul", ["e", "w"], ["m"]), n("Shape", ["e"], ["shape"])],
        [info("e"), info("w")],
        [info("m"), info("shape", None, INT)],
    )
    nodes = [
        n("Transpose", ["x"], ["w"]),
        n("SequenceConstruct", ["x", "x"], ["s"]),
        n("SequenceMap", ["s", "w"], ["t", "shapes"], body=inner),
        n("ConcatFromSequence", ["t"], ["y"], axis=0),
        n("ConcatFromSequence", ["shapes"], ["z"], axis=0),
    ]
    return model(nodes, ["y", "z"])


def optional() -> Any:
    """A tensor that is there, and an optional that holds nothing."""
    kind = helper.make_tensor_type_proto(FLOAT, None)
    sides = {
        "then_branch": body([n("Exp", ["x"], ["a"])], [], [info("a")]),
        "else_branch": body([n("Neg", ["x"], ["b"])], [], [info("b")]),
    }
    nodes = [
        n("Optional", ["x"], ["o"]),
        n("OptionalGetElement", ["o"], ["inside"]),
        n("OptionalHasElement", ["o"], ["there"]),
        n("Optional", [], ["none"], type=kind),
        n("OptionalHasElement", ["none"], ["lacks"]),
        n("If", ["lacks"], ["side"], **sides),
        n("Concat", ["inside", "side"], ["y"], axis=1),
    ]
    return model(nodes, ["y", "there"])


MODELS = {
    "parts": parts, "columns": columns, "uneven": uneven, "built": built, "chosen": chosen, "carried": carried,
    "branched": branched, "mapped": mapped, "optional": optional,
}  # fmt: skip


def feeds(name: str, rows: int) -> list[dict[str, Any]]:
    """Requests of a model."""
    x = np.random.default_rng(rows).standard_normal((rows, 6)).astype(np.float32)
    if name == "chosen":
        return [{"x": x, "at": np.array(at)} for at in (0, 1, -1)]
    return [{"x": x, "flag": np.array(flag)} for flag in (True, False)] if name == "branched" else [{"x": x}]
