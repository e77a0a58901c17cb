"""Small models with If, made by onnx.helper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
helper = onnx.helper
INT64, FLOAT, BOOL = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL


def side(nodes: list[Any], *outputs: str) -> Any:
    """A branch with these results."""
    return helper.make_graph(nodes, "side", [], [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs])


def n(op: str, reads: list[str], makes: list[str], **attributes: Any) -> Any:
    """A node."""
    return helper.make_node(op, reads, makes, **attributes)


def whole(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], outputs: list[str], weights: Any = None) -> Any:
    """A model; inputs with element types and shapes."""
    ins = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    outs = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    numbers = {"zero": np.array(0.0, np.float32), "one": np.array([1], np.int64), "last": np.array([-1], np.int64)}
    initializers = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in {**numbers, **(weights or {})}.items()]
    graph = helper.make_graph(nodes, "g", ins, outs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def of_data() -> Any:
    """What the sum of the input says: doubled or as it is; inside, what another input says."""
    inner = n("If", ["flag"], ["deep"], then_branch=side([n("Neg", ["twice"], ["a"])], "a"),
              else_branch=side([n("Abs", ["twice"], ["b"])], "b"))  # fmt: skip
    doubled = side([n("Add", ["x", "x"], ["twice"]), inner], "deep")
    same = side([n("Identity", ["x"], ["same"])], "same")
    nodes = [
        n("ReduceSum", ["x"], ["sum"], keepdims=0),
        n("Greater", ["sum", "zero"], ["positive"]),
        n("If", ["positive"], ["y"], then_branch=doubled, else_branch=same),
        n("Mul", ["y", "y"], ["out"]),
    ]
    return whole(nodes, {"x": (FLOAT, ["batch", 4]), "flag": (BOOL, [])}, ["out"])


def squeezed(rate: bool = False) -> Any:
    """As torch writes ``squeeze(-1)`` behind a window; what follows is of the rank that remains.

    ``rate``: the same for one of two strides, by an input of whole numbers.
    """

    def one(window: int) -> list[Any]:
        of = str(window)
        return [
            n("MaxPool", ["x"], ["pooled" + of], kernel_shape=[window], strides=[window]),
            n("Shape", ["pooled" + of], ["shape" + of]),
            n("Gather", ["shape" + of, "last"], ["length" + of], axis=0),
            n("Equal", ["length" + of, "one"], ["alone" + of]),
            n("If", ["alone" + of], ["flat" + of],
              then_branch=side([n("Squeeze", ["pooled" + of, "last"], ["s" + of])], "s" + of),
              else_branch=side([n("Identity", ["pooled" + of], ["i" + of])], "i" + of)),
            n("Gemm", ["flat" + of, "w"], ["out" + of]),
        ]  # fmt: skip

    weights = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "rate8": np.array(8, np.int64)}
    inputs = {"x": (FLOAT, ["batch", 3, "long"])}
    if not rate:
        return whole(one(8), inputs, ["out8"], weights)
    both = n("If", ["is8"], ["out"], then_branch=side(one(8), "out8"), else_branch=side(one(4), "out4"))
    return whole([n("Equal", ["rate", "rate8"], ["is8"]), both], inputs | {"rate": (INT64, [])}, ["out"], weights)


def rows(limit: int = 3) -> Any:
    """Above some rows all but these, below them the whole: extents differ, and below them one side is impossible."""
    nodes = [
        n("Shape", ["x"], ["shape"]),
        n("Gather", ["shape", "first"], ["count"], axis=0),
        n("Greater", ["count", "limit"], ["many"]),
        n("If", ["many"], ["kept"], then_branch=side([n("Slice", ["x", "limits", "end", "axis"], ["fewer"])], "fewer"),
          else_branch=side([n("Identity", ["x"], ["all"])], "all")),
        n("Relu", ["kept"], ["out"]),
    ]  # fmt: skip
    weights = {"first": np.array(0, np.int64), "limit": np.array(limit, np.int64), "limits": np.array([limit], np.int64),
               "end": np.array([1 << 40], np.int64), "axis": np.array([0], np.int64)}  # fmt: skip
    return whole(nodes, {"x": (FLOAT, ["batch", 4])}, ["out"], weights)


def counted_rows() -> Any:
    """One side of a flag keeps the rows whose first number is above 0, the other none of that."""
    chosen = [
        n("Gather", ["x", "place"], ["column"], axis=1),
        n("Greater", ["column", "zero"], ["up"]),
        n("Compress", ["x", "up"], ["kept"], axis=0),
    ]
    whole_ = side([n("Neg", ["x"], ["all"])], "all")
    nodes = [n("If", ["flag"], ["y"], then_branch=side(chosen, "kept"), else_branch=whole_), n("Exp", ["y"], ["out"])]
    return whole(nodes, {"x": (FLOAT, ["batch", 4]), "flag": (BOOL, [])}, ["out"], {"place": np.array(0, np.int64)})


def either_rank() -> Any:
    """Data decide the rank of the result."""
    flat = side([n("Reshape", ["x", "last"], ["flat"])], "flat")
    nodes = [n("If", ["flag"], ["out"], then_branch=flat, else_branch=side([n("Identity", ["x"], ["same"])], "same"))]
    return whole(nodes, {"x": (FLOAT, ["batch", 4]), "flag": (BOOL, [])}, ["out"])


def looped() -> Any:
    """Each turn of a loop adds or takes away, by what its own row says."""
    body = helper.make_graph(
        [
            n("ReduceSum", ["row"], ["sum"], keepdims=0),
            n("Greater", ["sum", "zero"], ["up"]),
            n("If", ["up"], ["next"], then_branch=side([n("Add", ["state", "row"], ["a"])], "a"),
              else_branch=side([n("Sub", ["state", "row"], ["b"])], "b")),
            n("Identity", ["next"], ["seen"]),
        ],
        "body",
        [helper.make_tensor_value_info("state", FLOAT, [4]), helper.make_tensor_value_info("row", FLOAT, [4])],
        [helper.make_tensor_value_info("next", FLOAT, [4]), helper.make_tensor_value_info("seen", FLOAT, [4])],
    )  # fmt: skip
    nodes = [n("Scan", ["first", "x"], ["end", "every"], body=body, num_scan_inputs=1)]
    return whole(nodes, {"first": (FLOAT, [4]), "x": (FLOAT, ["batch", 4])}, ["end", "every"])


def looped_squeezed() -> Any:
    """Each turn doubles its state, or adds a product of its row without the row's last axis, by what data say."""
    alone = [
        n("Shape", ["row"], ["shape"]),
        n("Gather", ["shape", "last"], ["length"], axis=0),
        n("Equal", ["length", "one"], ["alone"]),
        n("If", ["alone"], ["flat"], then_branch=side([n("Squeeze", ["row", "last"], ["s"])], "s"),
          else_branch=side([n("Identity", ["row"], ["i"])], "i")),
        n("Gemm", ["flat", "w"], ["mixed"]),
        n("Add", ["state", "mixed"], ["b"]),
    ]  # fmt: skip
    body = helper.make_graph(
        [
            n("ReduceSum", ["row"], ["sum"], keepdims=0),
            n("Greater", ["sum", "zero"], ["up"]),
            n("If", ["up"], ["next"], then_branch=side([n("Add", ["state", "state"], ["a"])], "a"),
              else_branch=side(alone, "b")),
        ],
        "body",
        [helper.make_tensor_value_info("state", FLOAT, [1, 4]), helper.make_tensor_value_info("row", FLOAT, [1, 3, "long"])],
        [helper.make_tensor_value_info("next", FLOAT, [1, 4])],
    )  # fmt: skip
    weights = {"w": np.arange(12, dtype=np.float32).reshape(3, 4)}
    nodes = [n("Scan", ["first", "x"], ["end"], body=body, num_scan_inputs=1)]
    return whole(nodes, {"first": (FLOAT, [1, 4]), "x": (FLOAT, ["batch", 1, 3, "long"])}, ["end"], weights)
