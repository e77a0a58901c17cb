"""Expressions of graphs of primitives, and graphs of expressions: the same numbers there and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from haotuner.derive.canonical import structural_hash
from haotuner.derive.expression import Scope, tensors
from haotuner.derive.from_graph import expression_of
from haotuner.derive.general_extents import concrete, generalised
from haotuner.derive.interpret import interpret
from haotuner.derive.model import Derivation, neutral
from haotuner.derive.search import Limits, search
from haotuner.derive.text import parse
from haotuner.derive.to_graph import graph_of
from haotuner.derive.together import together
from haotuner.errors import UsageError
from haotuner.graph.extents import dimension, evaluate
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret as interpret_graph
from tests.derive.expressions import band, conv, matmul, transposed_conv

SIZES = {"n": 2, "h": 7, "w": 5, "s": 13, "b": 2, "m": 3}
N, H, W = dimension("n"), dimension("h"), dimension("w")
DRAW = np.random.default_rng(0)


def drawn(shape: Any) -> Any:
    return DRAW.normal(size=[evaluate(extent, SIZES) for extent in shape]).astype(np.float32)


def convolution(g: GraphBuilder, x: str, features: int, window: int = 3, stride: int = 1, dilation: int = 1) -> str:
    """A convolution as the reader of models writes it."""
    pad = dilation * (window // 2)
    weight = g.constant(drawn((features, g.types[x].shape[1], window, window)))
    image = g.add("pad", x, before=(0, 0, pad, pad), after=(0, 0, pad, pad), mode="constant", value=0.0)
    sliding = g.add("window", image, axes=(2, 3), sizes=(window,) * 2, strides=(stride,) * 2, dilations=(dilation,) * 2)
    return g.add("contract", sliding, weight, labels="bcpquv,fcuv->bfpq")


def layouts() -> tuple[Graph, list[str]]:
    """Products and sums that read through every layout."""
    g = GraphBuilder()
    x = g.input("x", (N, 6, H))
    parted = g.add("reshape", x, shape=(N, 2, 3, H))
    product = g.add("contract", parted, g.constant(drawn((2, 5, 3))), labels="bgcp,gfc->bgfp")
    joined = g.add("reshape", product, shape=(N, 10, H))
    beside = g.add("concat", joined, x, axis=1)
    part = g.add("slice", beside, axes=(1,), starts=(11,), stops=(2,), steps=(-3,))
    turned = g.add("transpose", part, order=(2, 0, 1))
    wide = g.add("broadcast", turned, shape=(4, H, N, 3))
    padded = g.add("pad", wide, before=(0, 1, 0, 0), after=(2, 0, 0, 1), mode="constant", value=0.0)
    total = g.add("reduce", g.map("mul", padded, 3.0), how="sum", axes=(0, 2), keepdims=True)
    exps = g.add("reduce", g.add("pad", g.map("exp", turned), before=(1, 0, 0), after=(0, 0, 0), mode="constant", value=0.0),
                 how="sum", axes=(1,))  # fmt: skip
    return g.finish(total, exps, joined), [product, joined, beside, turned, padded, total, exps]


@pytest.mark.parametrize("at", range(7))
def test_an_expression_of_a_graph_is_the_graph(at):
    graph, named = layouts()
    scope = expression_of(graph, named[at], functions=True)
    inputs = {name: drawn(graph.types[name].shape) for name in graph.inputs}
    expected = interpret_graph(graph, inputs, keep=[named[at]])[named[at]]
    np.testing.assert_allclose(interpret(scope, {**graph.constants, **inputs}, SIZES), expected, atol=1e-4)


def same_numbers(scopes: tuple[Scope, ...]) -> Graph:
    """The graph of some expressions, after both computed the same."""
    read_tensors = {name: tensor for scope in scopes for name, tensor in tensors(scope).items()}
    arrays = {name: drawn(tensor.shape) for name, tensor in read_tensors.items()}
    graph = graph_of(scopes, arrays, SIZES)
    answers = interpret_graph(graph, {name: arrays[name] for name in graph.inputs})
    for scope, output in zip(scopes, graph.outputs, strict=True):
        np.testing.assert_allclose(answers[output], interpret(scope, arrays, SIZES), atol=1e-3)
    return graph


CASES: Mapping[str, tuple[Scope, int]] = {
    "conv3x3": (conv(3), 10), "conv5x5": (conv(5), 20), "dilated": (conv(3, 1, 3), 20), "transposed": (transposed_conv(), 1),
    "band": (band(2, 3), 3),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_derived_form_is_a_graph_that_computes_it(name):
    scope, least = CASES[name]
    scope = concrete(scope, {"c": 4, "f": 3, "k": 4})
    written = 0
    for state in search(scope, [SIZES], Limits(explorative=2, states=60)).states:
        try:
            same_numbers((state.scope,))
        except UsageError:
            continue
        written += 1
    assert written >= least


@pytest.mark.parametrize("text", [
    "A(n, 32), B(24, 32)!; L[i:0..n, j:0..24] S[r:0..32] A[i, r] * B[j, r] * 2.0",
    "A(n, 8, h), B(4, 8, 3)!; L[i:0..n, f:0..4, p:0..h] S[c:0..8, u:0..3] A[i, c, p + u - 1] * 2.0 * B[f, c, u]",
    "A(n, h, 32), B(n, h, 32); L[b:0..n, i:0..h, j:0..h] S[r:0..32] 2.0 * A[b, i, r] * B[b, j, r]",
], ids=["matmul", "conv", "batch"])  # fmt: skip
def test_a_number_times_a_product_stays_in_its_graph(text: str):
    scope = parse(text)
    arrays = {name: drawn(tensor.shape) for name, tensor in tensors(scope).items()}
    graph = graph_of((scope,), arrays, SIZES, may_be_loops=False)
    (answer,) = interpret_graph(graph, {name: arrays[name] for name in graph.inputs}).values()
    np.testing.assert_allclose(answer, interpret(scope, arrays, SIZES), atol=1e-4)


def test_a_number_times_a_product_stays_apart_from_others():
    twice = parse("X(m, k), W9(f, k)!; L[a:0..m, o:0..f] S[d:0..k] X[a, d] * W9[o, d] * 2.0")
    assert together([twice, matmul(1, "f")]) is None and together([matmul(1, "f"), twice]) is None


def test_a_whole_part_of_sizes_alone_has_no_primitives():
    scope = parse("A(h), B(h); L[i:0..h] S[r:0..3] A[i + r + (h + 2*i - i - i)//2] * B[i]")
    with pytest.raises(UsageError, match="has no primitives"):
        graph_of((scope,), {}, SIZES)


def test_merged_products_are_one_contract_of_several_outputs():
    joined = together([concrete(matmul(n, "f"), {"f": 32, "k": 96}) for n in range(3)])
    assert joined is not None
    graph = same_numbers(joined)
    assert [node.primitive for node in graph.nodes].count("contract") == 1


def model() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (N, 32, H, W))
    first = convolution(g, x, 24)
    other = convolution(g, g.map("tanh", first), 1, window=5)
    third = convolution(g, x, 40)
    return g.finish(other, third)


def test_forms_of_a_model_compute_what_its_products_do():
    graph = model()
    inputs = {"x": drawn(graph.types["x"].shape)}
    derivation = Derivation(graph, [{"n": 1, "h": 7, "w": 7}, {"n": 1, "h": 56, "w": 56}], Limits(explorative=1))
    products = derivation.products()
    assert len(products) == 3
    for forms in [*map(derivation.forms_of, products), *derivation.merged()]:
        read = {name for form in (forms.original, *forms.others) for name in form.graph.inputs}
        values = {**inputs, **interpret_graph(graph, inputs, keep=[*read, *forms.tensors])}
        assert forms.others
        for form in (forms.original, *forms.others):
            answers = interpret_graph(form.graph, {name: values[name] for name in form.graph.inputs})
            for tensor, output in zip(forms.tensors, form.graph.outputs, strict=True):
                np.testing.assert_allclose(answers[output], values[tensor], atol=1e-2)
    assert len(list(derivation.merged())) == 1, "both convolutions of x"


def test_a_layer_of_one_feature_is_cheaper_as_a_product_and_a_shifted_add():
    graph = model()
    derivation = Derivation(graph, [{"n": 1, "h": 56, "w": 56}], Limits(explorative=1))
    forms = derivation.forms_of(derivation.products()[1])
    assert forms.best_at(0) is not forms.original


def test_equal_products_are_derived_once():
    g = GraphBuilder()
    x = g.input("x", (N, 32, H, W))
    graph = g.finish(convolution(g, convolution(g, x, 32), 32))
    derivation = Derivation(graph, [{"n": 1, "h": 7, "w": 7}], Limits(explorative=1))
    first, other = map(derivation.forms_of, derivation.products())
    assert len(derivation.results.searches) == 1 and "derived before" in other.statistics
    assert len(first.others) == len(other.others)
    assert set(tensors(first.others[0].scopes[0])) != set(tensors(other.others[0].scopes[0]))


def test_large_numbers_become_dimensions_and_numbers_again():
    graph = model()
    scope = expression_of(graph, next(node.output for node in graph.nodes if node.primitive == "contract"))
    (general,), extents = generalised(scope)
    assert list(extents) == [f"d{at}" for at in range(len(extents))] and {24, 32} <= set(extents.values())
    assert concrete(general, extents) == scope


def test_layers_of_other_widths_and_places_are_one_expression():
    g = GraphBuilder()
    x = g.input("x", (N, 20, H, W))
    smaller = convolution(g, convolution(g, x, 40), 24, stride=2)
    graph = g.finish(convolution(g, smaller, 56))
    first, strided, last = (expression_of(graph, node.output) for node in graph.nodes if node.primitive == "contract")
    hashes = [structural_hash(neutral(generalised(scope)[0][0])[0]) for scope in (first, strided, last)]
    assert hashes[0] == hashes[2] != hashes[1]


def test_extents_that_hang_on_each_other_stay_arithmetic():
    g = GraphBuilder()
    graph = g.finish(convolution(g, g.input("x", (N, 20, H, W)), 40, stride=2))
    scope = expression_of(graph, graph.outputs[0])
    (general,), extents = generalised(scope)
    assert {N, H, W} <= set(extents.values()) and all(isinstance(e, int) or e.is_Symbol for e in extents.values())
    assert concrete(general, extents) == scope


def test_products_that_are_generalised_together_have_one_dimension_for_one_extent():
    parts, extents = generalised(*(concrete(matmul(n, "f"), {"f": 32 + n, "k": 96}) for n in range(2)))
    shared = [{loop.high for loop in part.sums} for part in parts]
    assert shared[0] == shared[1] and set(extents.values()) == {dimension("m"), 32, 33, 96}


def test_what_is_no_sum_of_products_is_refused_in_words():
    g = GraphBuilder()
    x = g.input("x", (N, 4), "int32")
    y = g.input("y", (N, 4))
    integers = g.add("contract", x, x, labels="ab,cb->ac")
    largest = g.add("reduce", y, how="max", axes=(0,))
    graph = g.finish(integers, largest)
    with pytest.raises(UsageError, match="expressions of real numbers alone"):
        expression_of(graph, integers)
    with pytest.raises(UsageError, match="is no sum of products"):
        expression_of(graph, largest)
    with pytest.raises(UsageError, match="is not computed"):
        expression_of(graph, "y")
    with pytest.raises(UsageError, match="no tensor 'z'"):
        expression_of(graph, "z")
