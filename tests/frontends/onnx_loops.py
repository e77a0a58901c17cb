"""Models with ONNX's Loop and Scan: counted, while, TensorFlow's form, loops in loops."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest

from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.graph import Graph

onnx = pytest.importorskip("onnx")
helper, TensorProto = onnx.helper, onnx.TensorProto
WEIGHT = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32) * 0.3


def info(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def number(name: str, value: Any) -> Any:
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(value)))


def read(nodes: list[Any], inputs: list[Any], outputs: list[str]) -> Graph:
    initializers = [onnx.numpy_helper.from_array(WEIGHT, "w")]
    graph = helper.make_graph(nodes, "g", inputs, [info(name, None) for name in outputs], initializers)
    return graph_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), None, {})


def body(nodes: list[Any], inputs: list[tuple[str, Any, int]], outputs: list[str]) -> Any:
    return helper.make_graph(nodes, "body", [info(*value) for value in inputs], [info(name, None) for name in outputs])


LAYER = [
    helper.make_node("MatMul", ["state", "w"], ["mixed"]),
    helper.make_node("Add", ["mixed", "row"], ["sum"]),
    helper.make_node("Tanh", ["sum"], ["next"]),
]
Names: TypeAlias = list[tuple[str, Any, int]]
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def scanned() -> Graph:
    """A layer that scans a sequence backwards, its axis in the middle; states, rows and what is the same in all turns."""
    nodes = [*LAYER, helper.make_node("Exp", ["shift"], ["same"]), helper.make_node("Mul", ["next", "same"], ["out"])]
    inner = body(nodes, [("state", None, FLOAT), ("row", None, FLOAT)], ["next", "out"])
    scan = helper.make_node("Scan", ["h", "x"], ["last", "every"], body=inner, num_scan_inputs=1, scan_input_axes=[1],
                            scan_input_directions=[1], scan_output_axes=[-2], scan_output_directions=[1])  # fmt: skip
    return read([scan], [info("h", ["batch", 8]), info("x", ["batch", "seq", 8]), info("shift", [8])], ["last", "every"])


def tensorflow() -> Graph:
    """A counter that the loop carries, and its limit, a dimension, too; rows by Gather, as TensorFlow writes it."""
    inside = [
        number("one", np.int64(1)),
        helper.make_node("Gather", ["x", "i"], ["row"], axis=0),
        *LAYER,
        helper.make_node("Add", ["i", "one"], ["i_next"]),
        helper.make_node("Identity", ["limit"], ["limit_next"]),
        helper.make_node("Cast", ["i_next"], ["f_i"], to=FLOAT),
        helper.make_node("Cast", ["limit_next"], ["f_limit"], to=FLOAT),
        helper.make_node("Less", ["f_i", "f_limit"], ["more"]),
    ]
    names: Names = [("turn", [], INT), ("go", [], BOOL), ("i", [], INT), ("limit", [], INT), ("state", None, FLOAT)]
    inner = body(inside, names, ["more", "i_next", "limit_next", "next", "next"])
    nodes = [
        number("zero", np.int64(0)),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["long"]),
        helper.make_node("Less", ["zero", "long"], ["start"]),
        helper.make_node("Loop", ["", "start", "zero", "long", "h"], ["end", "same", "last", "every"], body=inner),
        helper.make_node("ReduceSum", ["x"], ["sums"], keepdims=0),
        helper.make_node("Add", ["every", "x"], ["joined"]),
    ]
    return read(nodes, [info("x", ["seq", "batch", 8]), info("h", ["batch", 8])], ["end", "same", "last", "joined"])


def halved() -> Graph:
    """While a sum is large, at most ``most`` turns: only data tell how many, and how long is what turns made."""
    inside = [
        number("half", np.float32(0.5)),
        number("one", np.float32(1)),
        helper.make_node("Mul", ["state", "half"], ["next"]),
        helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "one"], ["more"]),
        helper.make_node("Concat", ["next", "next"], ["row"], axis=1),
    ]
    names: Names = [("turn", [], INT), ("go", [], BOOL), ("state", None, FLOAT)]
    inner = body(inside, names, ["more", "next", "row", "turn"])
    nodes = [
        helper.make_node("Loop", ["most", "go", "x"], ["last", "rows", "counted"], body=inner),
        helper.make_node("ReduceSum", ["rows"], ["sums"], keepdims=0),
        helper.make_node("Shape", ["rows"], ["shape"]),
    ]
    inputs = [info("most", [], INT), info("go", [], BOOL), info("x", ["batch", 8])]
    return read(nodes, inputs, ["last", "rows", "counted", "sums", "shape"])


def nested() -> Graph:
    """A while loop inside of a counted one, whose rows are as many as the outer turn says."""
    inside = [helper.make_node("Add", ["inner", "b"], ["inner_next"]), helper.make_node("Identity", ["on"], ["on_next"])]
    names: Names = [("k", [], INT), ("on", [], BOOL), ("inner", None, FLOAT)]
    inner = body(inside, names, ["on_next", "inner_next", "inner_next"])
    outer = [
        helper.make_node("Loop", ["turn", "", "state"], ["added", "stack"], body=inner),
        helper.make_node("ReduceSum", ["stack", "axis"], ["total"], keepdims=0),
        helper.make_node("Add", ["added", "total"], ["next"]),
        helper.make_node("Identity", ["go"], ["more"]),
    ]
    names = [("turn", [], INT), ("go", [], BOOL), ("state", None, FLOAT)]
    whole = body(outer, names, ["more", "next", "total"])
    nodes = [
        number("axis", np.array([0])),
        number("at", np.array([0])),
        helper.make_node("Shape", ["b"], ["shape"]),
        helper.make_node("Slice", ["shape", "at", "one"], ["first"]),
        helper.make_node("Squeeze", ["first"], ["long"]),
        helper.make_node("Loop", ["long", "", "b"], ["last", "totals"], body=whole),
    ]
    return read([number("one", np.array([1])), *nodes], [info("b", ["n", 3])], ["last", "totals"])


def counting() -> Graph:
    """Each turn counts what is left above 0: a size that only the turn's data tell."""
    inside = [
        helper.make_node("NonZero", ["state"], ["places"]),
        helper.make_node("Shape", ["places"], ["shape"]),
        number("at", np.array([1])),
        helper.make_node("Gather", ["shape", "at"], ["count"]),
        helper.make_node("Cast", ["count"], ["row"], to=FLOAT),
        number("unit", np.float32(1)),
        helper.make_node("Sub", ["state", "unit"], ["less"]),
        helper.make_node("Relu", ["less"], ["next"]),
        helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "unit"], ["more"]),
    ]
    inner = body(inside, [("turn", [], INT), ("go", [], BOOL), ("state", None, FLOAT)], ["more", "next", "row"])
    loop = helper.make_node("Loop", ["", "go", "x"], ["last", "counts"], body=inner)
    return read([loop], [info("x", ["batch", 8]), info("go", [], BOOL)], ["last", "counts"])


def below() -> Graph:
    """``rows - 5`` turns, each of which adds 1 and a row: none where there are fewer rows."""
    nodes = [helper.make_node("Add", ["state", "one"], ["next"]), helper.make_node("Identity", ["go"], ["more"]),
             helper.make_node("Concat", ["grown", "x"], ["longer"], axis=0)]  # fmt: skip
    inner = body(nodes, [("turn", [], INT), ("go", [], BOOL), ("state", None, FLOAT), ("grown", None, FLOAT)],
                 ["more", "next", "longer", "next"])  # fmt: skip
    loop = helper.make_node("Loop", ["turns", "", "x", "x"], ["y", "long", "each"], body=inner)
    first = [helper.make_node("Shape", ["x"], ["rows"], end=1), number("five", np.array([5])), number("one", np.float32(1)),
             helper.make_node("Sub", ["rows", "five"], ["turns"])]  # fmt: skip
    return read([*first, loop], [info("x", ["rows", 2])], ["y", "long", "each"])


def in_halves() -> Graph:
    """A layer in fp16 whose turns read an input of the model, as tuning for a CPU has it: between the ends in fp32."""
    half = TensorProto.FLOAT16
    nodes = [
        helper.make_node("Mul", ["state", "shift"], ["mixed"]),
        *LAYER[1:],
        helper.make_node("Mul", ["next", "shift"], ["out"]),
    ]
    inner = body(nodes, [("state", None, half), ("row", None, half)], ["next", "out"])
    scan = helper.make_node("Scan", ["h", "x"], ["last", "every"], body=inner, num_scan_inputs=1)
    return read([scan], [info("h", [8], half), info("x", ["seq", 8], half), info("shift", [8], half)], ["last", "every"])


GRAPHS = {"scanned": scanned, "tensorflow": tensorflow, "halved": halved, "nested": nested, "counting": counting}
