"""What a product carries along: biases, functions known by their values, slopes, residuals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.graph import decompositions
from haotuner.graph.extents import dimension
from haotuner.graph.graph import GraphBuilder
from haotuner.partition.greedy_fusion import Greedy, Loops
from haotuner.partition.products import Product

B = dimension("batch")


def summed(g: GraphBuilder, left: str, right: str) -> str:
    return g.map("add", left, right)


def gated(g: GraphBuilder, left: str, right: str) -> str:
    return g.map("mul", g.map("mul", left, g.map("sigmoid", left)), right)


@pytest.mark.parametrize(("join", "steps"), [(summed, "residual"), (gated, "silu_mul")])
def test_what_joins_two_products_is_carried_by_one_of_them(join: Any, steps: str) -> None:
    g = GraphBuilder()
    x = g.input("x", (B, 16))
    left, right = (g.add("contract", x, g.constant(np.ones((16, 16), np.float32)), labels="bk,kn->bn") for _ in range(2))
    plan = Greedy(g.finish(join(g, left, right))).steps
    assert sorted(step.op.name for step in plan if isinstance(step, Product)) == ["dense_n16_k16", f"dense_n16_k16_{steps}"]
    assert not any(isinstance(step, Loops) for step in plan)


def test_a_product_multiplies_with_one_tensor_and_adds_none_beside() -> None:
    g = GraphBuilder()
    y = g.add("contract", g.input("x", (B, 16)), g.constant(np.ones((16, 16), np.float32)), labels="bk,kn->bn")
    graph = g.finish(g.map("add", g.map("mul", y, g.input("gate", (B, 16))), g.input("more", (B, 16))))
    product, group = Greedy(graph).steps
    assert isinstance(product, Product) and product.op.epilogue == ("mul",) and isinstance(group, Loops)


def mish(g: GraphBuilder, x: str) -> str:
    """x tanh(log(1 + e^x)), as files say it."""
    softplus = g.map("add", g.map("max", x, 0.0), g.map("log1p", g.map("exp", g.map("neg", g.map("abs", x)))))
    return g.map("mul", x, g.map("tanh", softplus))


FUNCTIONS: dict[str, Any] = {
    "gelu": decompositions.gelu,
    "gelutanh": decompositions.gelu_tanh,
    "silu": lambda g, x: g.map("mul", x, g.map("sigmoid", x)),
    "mish": mish,
    "relu": lambda g, x: g.map("max", x, 0.0),
    "hardswish": lambda g, x: g.map(
        "mul", x, g.map("max", g.map("min", g.map("add", g.map("mul", x, 1 / 6), 0.5), 1.0), 0.0)
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_known_by_its_values_however_it_is_written(name):
    g = GraphBuilder()
    x = g.input("x", (B, 8))
    y = g.map("add", g.add("contract", x, g.constant(np.ones((8, 4), np.float32)), labels="mk,kn->mn"),
              g.constant(np.ones(4, np.float32)))  # fmt: skip
    graph = g.finish(FUNCTIONS[name](g, y))
    (step,) = Greedy(graph).steps
    assert isinstance(step, Product) and step.op.epilogue == ("bias", name)


@pytest.mark.parametrize("slope", [0.1, np.array([0.5, -1.0, 0.0, 2.0], np.float32)], ids=["leaky_relu", "prelu"])
def test_slopes_where_a_result_is_not_positive_are_carried(slope: Any) -> None:
    g = GraphBuilder()
    x = g.input("x", (B, 8))
    y = g.add("contract", x, g.constant(np.ones((8, 4), np.float32)), labels="mk,kn->mn")
    low = g.map("mul", y, slope if isinstance(slope, float) else g.constant(slope))
    graph = g.finish(g.map("select", g.map("less", y, 0.0), low, y))
    (step,) = Greedy(graph).steps
    assert isinstance(step, Product) and step.op.epilogue == ("prelu",)
    assert np.allclose(step.constants["slope"], slope) and step.constants["slope"].shape == (4,)


def test_a_function_whose_middle_is_read_elsewhere_is_not_carried():
    g = GraphBuilder()
    x = g.input("x", (B, 8))
    y = g.add("contract", x, g.constant(np.ones((8, 4), np.float32)), labels="mk,kn->mn")
    s = g.map("sigmoid", y)
    product = next(iter(Greedy(g.finish(g.map("mul", y, s), s)).products.values()))
    assert product.op.epilogue == () and product.output == y


@pytest.mark.parametrize("name", ["nothing", "relu", "silu", "sigmoid"])
@pytest.mark.parametrize("little", [2.0**-24, 1e-10])
def test_what_keeps_a_logarithm_from_zero_is_no_rounding(name: str, little: float) -> None:
    g = GraphBuilder()
    y = g.add("contract", g.input("x", (B, 8)), g.constant(np.ones((8, 4), np.float32)), labels="mk,kn->mn")
    known = {"nothing": lambda g, x: x, "sigmoid": lambda g, x: g.map("sigmoid", x), **FUNCTIONS}
    graph = g.finish(g.map("log", g.map("add", known[name](g, y), little)))
    (product,) = Greedy(graph).products.values()
    assert product.op.epilogue == (() if name == "nothing" else (name,))
    assert len(product.nodes) == len(graph.nodes) - 2, "the sum and its logarithm are computed behind the product"


OTHERS: dict[str, Any] = {  # what is a relu at most numbers, and must not be taken for one
    "above a threshold": lambda g, y: g.map("select", g.map("greater", y, 0.1), y, 0.0),
    "rounded to halves": lambda g, y: g.map("max", g.map("add", g.map("sub", y, 3.0 * 2**21), 3.0 * 2**21), 0.0),
    "rounded to parts": lambda g, y: g.map("max", g.map("add", g.map("sub", y, 3.0 * 2**15), 3.0 * 2**15), 0.0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_function_with_other_values_somewhere_is_computed_as_written(name: str) -> None:
    g = GraphBuilder()
    x = g.input("x", (B, 8))
    graph = g.finish(OTHERS[name](g, g.add("contract", x, g.constant(np.ones((8, 4), np.float32)), labels="mk,kn->mn")))
    product, *rest = Greedy(graph).steps
    assert isinstance(product, Product) and rest, "something is left behind the product"
    assert graph.outputs[0] in {step.output for step in rest if isinstance(step, Loops)}


@pytest.mark.parametrize("low", [-1.0, 0.0])
@pytest.mark.parametrize("high", [255.0, 65504.0, float(np.finfo(np.float32).max)])
def test_bounds_are_carried_as_they_are(low: float, high: float) -> None:
    g = GraphBuilder()
    y = g.add("contract", g.input("x", (B, 8)), g.constant(np.ones((8, 4), np.float32)), labels="mk,kn->mn")
    (product,) = Greedy(g.finish(g.map("min", g.map("max", y, low), high))).steps
    assert isinstance(product, Product) and product.op.epilogue == ("clamp",)
    assert np.all(product.constants["low"] == low) and np.all(product.constants["high"] == np.float32(high))


@pytest.mark.parametrize(("size", "steps"), [(1000.0, 1), (3.0 * 2**22, 2)])
def test_a_bias_that_rounds_is_added_behind_the_whole_sum(size: float, steps: int) -> None:
    g = GraphBuilder()
    x = g.input("x", (B, 8))
    y = g.add("contract", x, g.constant(np.ones((8, 4), np.float32)), labels="mk,kn->mn")
    graph = g.finish(g.map("add", y, g.constant(np.full(4, size, np.float32))))
    assert len(Greedy(graph).steps) == steps


def test_a_step_that_a_device_does_not_know_is_a_group_behind_the_product() -> None:
    g = GraphBuilder()
    x = g.input("x", (B, 8))
    y = g.add("contract", x, g.constant(np.ones((8, 4), np.float32)), labels="mk,kn->mn")
    y = g.map("add", y, g.constant(np.ones(4, np.float32)))
    graph = g.finish(mish(g, y))
    product, group = Greedy(graph, serves=lambda op: "mish" not in op.epilogue).steps
    assert isinstance(product, Product) and product.op.epilogue == () and "bias" in product.constants
    assert isinstance(group, Loops)
