"""Products of bytes inside models: which kernels they have, and the answers of a served pack beside the plain graph's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from haotuner.orchestrate.greedy import Greedy
from haotuner.orchestrate.products import Product
from tests.serving.model_packs import model_pack
from tests.serving.written_nodes import Nodes

DRAW = np.random.default_rng(7)
FIRST, LAST = (8, 3, 3, 3), (8, 21)
WEIGHTS = {"first": DRAW.integers(-127, 128, FIRST, np.int8), "last": DRAW.integers(0, 256, LAST, np.uint8)}


class Net(Nodes):
    """Of one input, with what stands between real numbers and bytes."""

    x = "x"

    def __init__(self, *shape: Any, dtype: str = "fp32") -> None:
        super().__init__(x=(dtype, *shape))

    def bytes_of(self, x: str, scale: float, zero: Any) -> str:
        told = (np.float32(scale), zero)
        return str(self("DequantizeLinear", self("QuantizeLinear", x, *told), *told))

    def weight(self, values: Any, zero: Any = 0, axis: int = 0) -> str:
        scales = np.linspace(0.005, 0.01, values.shape[axis], dtype=np.float32)
        return str(self("DequantizeLinear", values, scales, np.full(values.shape[axis], zero, values.dtype), axis=axis))


def net() -> Graph:
    """Pads that are the zero point, a ReLU that is no bound of bytes, a depthwise layer of signed bytes, a residual."""
    n = Net(dimension("b"), 3, dimension("h"), dimension("w"))
    x = n.bytes_of(n.x, 0.02, np.uint8(117))
    bias = DRAW.standard_normal(8).astype(np.float32)
    one = n("Relu", n("Conv", x, n.weight(WEIGHTS["first"]), bias, pads=[1, 1, 1, 1], strides=[2, 2]))
    one = n.bytes_of(one, 0.03, np.int8(-100))
    deep = n("Conv", one, n.weight(WEIGHTS["first"][:, :1]), pads=[1, 1, 1, 1], group=8)
    two = n("Add", n.bytes_of(deep, 0.02, np.int8(3)), one)
    rows = n("Flatten", n("GlobalAveragePool", two))
    rows = n.bytes_of(rows, 0.01, np.uint8(0))
    last = n("Gemm", rows, n.weight(WEIGHTS["last"], 60, 1), DRAW.standard_normal(21).astype(np.float32))
    return n.g.finish(n.bytes_of(last, 0.05, np.uint8(100)))


def dynamic() -> Graph:
    """A layer whose input is quantised by its own range, and a convolution of the same kind; results in 32 bits."""
    n = Net(dimension("b"), 3, dimension("h"), dimension("w"))
    q, scale, zero = n("DynamicQuantizeLinear", n.x, outputs=3)
    sums = n("ConvInteger", q, WEIGHTS["first"], zero, np.int8(2), pads=[0, 1, 2, 0])
    rows = n("ReduceMean", n("Mul", n("Cast", sums, to=1), scale), np.array([2, 3]), keepdims=0)
    q, _, zero = n("DynamicQuantizeLinear", rows, outputs=3)
    return n.g.finish(n("MatMulInteger", q, WEIGHTS["last"], zero, np.arange(100, 121).astype(np.uint8)), sums)


GRAPHS = {"net": net(), "dynamic": dynamic()}


def ops(graph: Graph) -> list[str]:
    return [one.op for one in Greedy(graph).steps if isinstance(one, Product)]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_pack(tmp_path_factory.mktemp("bytes") / "pack", GRAPHS, exact=False)


def test_products_of_bytes_take_scales_bias_and_rounding_along() -> None:
    first, deep, near, ones = ops(GRAPHS["net"])
    assert first == "conv2d:c=3,f=8,r=3,s=3,stride=2.2,dtype=int8,out=int8,epilogue=scale+bias+clamp"
    assert deep == "conv2d:c=8,f=8,r=3,s=3,groups=8,dtype=int8,in=int8,out=int8,epilogue=scale+bias"
    assert (near, ones) == ("dense:n=21,k=8,dtype=int8", "dense:n=1,k=8,dtype=int8")  # weights beyond int8 are two of it
    assert ops(GRAPHS["dynamic"]) == [
        "conv2d:c=3,f=8,r=3,s=3,dtype=int8", "conv2d:c=3,f=1,r=3,s=3,dtype=int8", near, ones,
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [(1, 3, 9, 12), (3, 3, 17, 8)])
def test_bytes_are_those_of_the_plain_graph_to_a_step_and_sums_exactly(pack: Path, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    with haotuner.load(pack, threads=2) as opened:
        (found,) = opened.model("net").run({"x": x}).values()
        (want,) = interpret(GRAPHS["net"], {"x": x}).values()
        steps = np.abs(found - want) / 0.05
        assert steps.max() < 1.01 and (steps > 0.5).mean() < 0.1 and np.ptp(want) > 0.5
        every, wanted_of = opened.model("dynamic").run({"x": x}), interpret(GRAPHS["dynamic"], {"x": x})
        for name, got in every.items():
            assert got.dtype == np.int32
            np.testing.assert_array_equal(got, wanted_of[name])


@pytest.mark.parametrize("zero", [0, 41, 128, 255])
@pytest.mark.parametrize("middle", [0, 9, 128, 255])
def test_sums_are_exact_whatever_the_zero_points(zero: int, middle: int) -> None:
    n = Net(dimension("m"), 8, dtype="uint8")
    graph = n.g.finish(n("MatMulInteger", n.x, WEIGHTS["last"], np.uint8(zero), np.uint8(middle)))
    x = DRAW.integers(0, 256, (5, 8), np.uint8)
    want = (x.astype(np.int32) - zero) @ (WEIGHTS["last"].astype(np.int32) - middle)
    (found,) = interpret(graph, {"x": x}).values()
    np.testing.assert_array_equal(found, want)
    assert all(one.startswith("dense:") for one in ops(graph)) and ops(graph)


def test_weights_that_no_kernel_of_bytes_takes_stay_real() -> None:
    n = Net(dimension("m"), 8)
    x = n.bytes_of(n.x, 0.02, np.uint8(117))
    along = n("DequantizeLinear", WEIGHTS["last"], np.full(8, 0.01, np.float32), np.zeros(8, np.uint8), axis=0)
    assert ops(n.g.finish(n("MatMul", x, along))) == ["dense:n=21,k=8"]  # a scale for every term of a sum
    assert ops(n.g.finish(n("MatMul", n.x, n.weight(WEIGHTS["last"], 3, 1)))) == ["dense:n=21,k=8"]
