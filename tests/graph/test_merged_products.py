"""Products of one input as one: where the rule applies, and that nothing else than the order of columns is new."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.graph.rewrites import MERGED, Site, rewritten, sites

B = dimension("batch")
DRAW = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return DRAW.standard_normal(shape).astype(np.float32)


def layers(widths: list[int], turned: list[bool], biases: list[bool], depth: int = 8, output: int = -1) -> Graph:
    """Layers of one input, weights (k, n) or (n, k), some with a bias; each is read by a function of its own."""
    g = GraphBuilder()
    x = g.input("x", (B, 3, depth))
    ends = []
    for index, (width, transposed, biased) in enumerate(zip(widths, turned, biases, strict=True)):
        shape, labels = ((width, depth), "btk,nk->btn") if transposed else ((depth, width), "btk,kn->btn")
        layer_output = g.add("contract", x, g.constant(numbers(*shape)), labels=labels)
        layer_output = g.map("add", layer_output, g.constant(numbers(width))) if biased else layer_output
        ends.append(layer_output if index == output else g.map("tanh" if index % 2 else "exp", layer_output))
    return g.finish(*ends)


def merged_sites(graph: Graph) -> list[Site]:
    return [site for site in sites(graph) if site.rule == MERGED]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_merged_products_compute_what_each_did(data):
    count = data.draw(st.integers(2, 4))
    widths = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    turned, biases = (data.draw(st.lists(st.booleans(), min_size=count, max_size=count)) for _ in range(2))
    graph = layers(widths, turned, biases, output=data.draw(st.integers(-1, count - 1)))
    (site,) = merged_sites(graph)
    merged = rewritten(graph, [site])
    products = [node for node in merged.nodes if node.primitive == "contract"]
    assert [merged.types[node.output].shape[-1] for node in products] == [sum(widths)]
    added = sum(node.attributes.get("function") == "add" for node in merged.nodes)
    assert added == (1 if all(biases) else sum(biases)), "biases come along where all have one"
    assert merged.outputs == graph.outputs
    inputs = {"x": numbers(4, 3, 8)}
    expected, answer = interpret(graph, inputs), interpret(merged, inputs)
    for tensor in graph.outputs:
        np.testing.assert_allclose(answer[tensor], expected[tensor], rtol=1e-5, atol=1e-6)
        assert merged.types[tensor] == graph.types[tensor]


@pytest.mark.parametrize("why", ["alone", "an activation", "another input", "an image", "whole numbers"])
def test_what_is_no_layer_of_the_same_input_is_left_as_it_is(why):
    g = GraphBuilder()
    dtype = "int32" if why == "whole numbers" else "fp32"
    x = g.input("x", (B, 3, 8), dtype)
    other = g.map("neg", x) if why == "another input" else x
    weights = [g.constant(numbers(8, 4).astype(np.int32 if why == "whole numbers" else np.float32)) for _ in range(2)]
    second, labels = weights[1], "btk,kn->btn"
    if why == "an activation":
        second = g.input("w", (8, 4))
    if why == "an image":
        labels = "btk,kn->bnt"
    products = [g.add("contract", x, weights[0], labels="btk,kn->btn")]
    products += [] if why == "alone" else [g.add("contract", other, second, labels=labels)]
    assert merged_sites(g.finish(*products)) == []


def test_a_site_of_which_another_rule_took_a_product_changes_nothing():
    graph = layers([4, 4], [False, False], [False, False])
    (site,) = merged_sites(graph)
    once = rewritten(graph, [site])
    assert rewritten(once, [site]) is once
