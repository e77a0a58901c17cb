"""Caches of decoders in plans: which inputs are one, and whether every step can read it from a buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.partition.cache_buffers import cache_buffers
from haotuner.partition.greedy_fusion import Greedy, Specialization
from haotuner.partition.key_caches import Append

B, T, P = dimension("batch"), dimension("tokens"), dimension("past")
HEADS, GROUPS, DEPTH = 4, 2, 16
SHAPES = {"pk": ["batch", GROUPS, "past", DEPTH], "pv": ["batch", GROUPS, "past", DEPTH]}


def planned(graph: Graph) -> tuple[set[str], set[str]]:
    """Inputs to which a step appends rows, and those of them that may lie in buffers."""
    steps = Greedy(graph).steps
    buffers = cache_buffers(graph, [Specialization(steps)])
    inputs = {step.past for step in steps if isinstance(step, Append)}
    return inputs, {step.past for step in buffers.appends} if buffers is not None else set()


def joined(reader: str) -> Graph:
    """A cache of rows (batch, past, 16) that one step reads in some way."""
    g = GraphBuilder()
    past, new = g.input("past", (B, P, 16)), g.input("new", (B, T, 16))
    cache = g.add("concat", *((new, past) if reader == "in front" else (past, new)), axis=1)
    outputs = [cache]
    if reader == "dense":
        outputs.append(g.add("contract", cache, g.constant(np.ones((16, 8), np.float32)), labels="btk,kn->btn"))
    if reader in ("loops", "read elsewhere"):
        outputs.append(g.add("reduce", past if reader == "read elsewhere" else cache, how="sum", axes=(1,)))
    return g.finish(*(outputs if reader != "no output" else [g.map("exp", cache)]))


@pytest.mark.parametrize(
    ("reader", "appended", "buffered"),
    [
        ("nobody", True, True), ("loops", True, True), ("dense", True, False), ("read elsewhere", False, False),
        ("in front", True, True), ("no output", False, False),
    ],
)  # fmt: skip
def test_a_cache_lies_in_a_buffer_where_all_readers_take_strides(reader: str, appended: bool, buffered: bool) -> None:
    inputs, in_buffers = planned(joined(reader))
    assert (bool(inputs), bool(in_buffers)) == (appended, buffered)


def test_new_rows_are_read_where_a_product_wrote_them() -> None:
    g = GraphBuilder()
    x, past = g.input("x", (B, T, 8)), g.input("past", (B, GROUPS, P, DEPTH))
    weight = g.constant(np.ones((8, GROUPS * DEPTH), np.float32))
    rows = g.add("reshape", g.add("contract", x, weight, labels="btk,kn->btn"), shape=(B, T, GROUPS, DEPTH))
    graph = g.finish(g.add("concat", past, g.add("transpose", rows, order=(0, 2, 1, 3)), axis=2))
    steps = Greedy(graph).steps
    assert [type(step).__name__ for step in steps if type(step).__name__ != "Alias"] == ["Product", "Append"]
    (append,) = (step for step in steps if isinstance(step, Append))
    assert append.new.order == (0, 2, 1, 3)


def onnx_graph(op: str, inputs: dict[str, Any], order: list[str], domain: str, **attributes: Any) -> Graph:
    """One node of an ONNX file with past and present."""
    onnx = pytest.importorskip("onnx")
    from haotuner.frontends.onnx.read import graph_of

    h, outputs = onnx.helper, ["y", "nk", "nv"]
    ends = [h.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    node = h.make_node(op, order, outputs, domain=domain, **attributes)
    opsets = [h.make_opsetid("", 17 if domain else 23), *([h.make_opsetid(domain, 1)] if domain else [])]
    graph = h.make_graph([node], "g", ends, [onnx.ValueInfoProto(name=name) for name in outputs])
    return graph_of(h.make_model(graph, opset_imports=opsets, ir_version=10), None, {})


def test_grouped_query_attention_has_caches() -> None:
    pytest.importorskip("onnx")
    wide = {name: (1, ["batch", "tokens", heads * DEPTH]) for name, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))}
    pasts = {name: (1, shape) for name, shape in SHAPES.items()}
    inputs = wide | pasts | {"last": (6, ["batch"]), "total": (6, [1])}
    graph = onnx_graph("GroupQueryAttention", inputs, list(inputs), "com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS)
    assert planned(graph) == ({"pk", "pv"}, {"pk", "pv"})


def test_attention_of_opset_23_has_caches() -> None:
    pytest.importorskip("onnx")
    heads = {name: (1, ["batch", count, "tokens", DEPTH]) for name, count in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))}
    inputs = heads | {name: (1, shape) for name, shape in SHAPES.items()}
    graph = onnx_graph("Attention", inputs, ["q", "k", "v", "", "pk", "pv"], "", is_causal=1)
    assert planned(graph) == ({"pk", "pv"}, {"pk", "pv"})
