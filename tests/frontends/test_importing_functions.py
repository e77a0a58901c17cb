"""Functions that a model brings: attributes inside branches of their bodies, and overloads of one name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402, after the skip

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
X = np.array([-2.0, -0.5, 0.0, 3.0], np.float32)


def function(name: str, inputs: list[str], nodes: list[Any], attributes: tuple[str, ...] = (), overload: str = "") -> Any:
    body = helper.make_function("own", name, inputs, ["y"], nodes, OPSETS[:1], attributes)
    body.overload = overload
    return body


def model(nodes: list[Any], functions: list[Any], **inputs: int) -> Any:
    ends = [helper.make_tensor_value_info(name, kind, ["n"] if name == "x" else []) for name, kind in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for node in nodes for name in node.output]
    graph = helper.make_graph(nodes, "functions", ends, results)
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions, ir_version=10)


@pytest.mark.parametrize("condition", [True, False])
def test_an_attribute_reaches_the_branches_of_a_body(condition: bool) -> None:
    leaky = helper.make_node("LeakyRelu", ["x"], ["leaky"])
    slope = leaky.attribute.add()
    slope.name, slope.type, slope.ref_attr_name = "alpha", onnx.AttributeProto.FLOAT, "slope"
    sides = {
        name: helper.make_graph([node], name, [], [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, ["n"])])
        for name, node in (("then_branch", leaky), ("else_branch", helper.make_node("Abs", ["x"], ["size"])))
    }
    body = [helper.make_node("If", ["choice"], ["y"], **sides)]
    whole = model(
        [helper.make_node("Bent", ["x", "choice"], ["z"], domain="own", slope=0.25)],
        [function("Bent", ["x", "choice"], body, ("slope",))],
        x=TensorProto.FLOAT,
        choice=TensorProto.BOOL,
    )
    answer = interpret(graph_of(whole, None, {}), {"x": X, "choice": np.array(condition)})["z"]
    np.testing.assert_array_equal(answer, np.where(X < 0, X / 4, X) if condition else np.abs(X))


def test_a_node_calls_the_overload_that_it_names() -> None:
    functions = [function("Turned", ["x"], [helper.make_node(op, ["x"], ["y"])], overload=op) for op in ("Neg", "Abs")]
    nodes = [helper.make_node("Turned", ["x"], [op.lower()], domain="own") for op in ("Neg", "Abs")]
    for node, op in zip(nodes, ("Neg", "Abs"), strict=True):
        node.overload = op
    answer = interpret(graph_of(model(nodes, functions, x=TensorProto.FLOAT), None, {}), {"x": X})
    np.testing.assert_array_equal(answer["neg"], -X)
    np.testing.assert_array_equal(answer["abs"], np.abs(X))
