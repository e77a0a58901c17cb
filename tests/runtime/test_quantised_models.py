"""Products of bytes inside models: which kernels they have, and the answers of a served pack beside the plain graph's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.graph.extents import dimension
from haotuner.graph.fold_scales import dequantised_by_rows
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from haotuner.partition.greedy_fusion import Greedy
from haotuner.partition.products import Product
from haotuner.spec.op import Op
from tests.runtime.model_packs import model_pack
from tests.runtime.written_nodes import Nodes

DRAW = np.random.default_rng(7)
FIRST, LAST = (8, 3, 3, 3), (8, 21)
WEIGHTS = {"first": DRAW.integers(-127, 128, FIRST, np.int8), "last": DRAW.integers(0, 256, LAST, np.uint8)}


class Net(Nodes):
    """Of one input, with what stands between real numbers and bytes."""

    x = "x"

    def __init__(self, *shape: Any, dtype: str = "fp32") -> None:
        super().__init__(x=(dtype, *shape))

    def bytes_of(self, x: str, scale: float, zero: Any) -> str:
        parameters = (np.float32(scale), zero)
        return str(self("DequantizeLinear", self("QuantizeLinear", x, *parameters), *parameters))

    def weight(self, values: Any, zero: Any = 0, axis: int = 0) -> str:
        scales = np.linspace(0.005, 0.01, values.shape[axis], dtype=np.float32)
        return str(self("DequantizeLinear", values, scales, np.full(values.shape[axis], zero, values.dtype), axis=axis))


def net() -> Graph:
    """Pads that are the zero point, a ReLU that is no bound of bytes, a depthwise layer of signed bytes, a residual."""
    n = Net(dimension("b"), 3, dimension("h"), dimension("w"))
    x = n.bytes_of(n.x, 0.02, np.uint8(117))
    bias = DRAW.standard_normal(8).astype(np.float32)
    first = n("Relu", n("Conv", x, n.weight(WEIGHTS["first"]), bias, pads=[1, 1, 1, 1], strides=[2, 2]))
    first = n.bytes_of(first, 0.03, np.int8(-100))
    deep = n("Conv", first, n.weight(WEIGHTS["first"][:, :1]), pads=[1, 1, 1, 1], group=8)
    two = n("Add", n.bytes_of(deep, 0.02, np.int8(3)), first)
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


def quantised_layer(n: Net, x: str, weight: Any, scale: Any, bias: Any, op: str = "MatMulInteger", **settings: Any) -> str:
    """As onnxruntime.quantization.quantize_dynamic writes a layer: sums, real numbers, both scales, a bias."""
    q, own, zero = n("DynamicQuantizeLinear", x, outputs=3)
    sums = n("Cast", n(op, q, weight, zero, np.int8(0), **settings), to=1)
    return str(n("Add", n("Mul", sums, n("Mul", own, scale)), bias))


MORE = np.random.default_rng(8)
BIAS = {name: MORE.standard_normal(count).astype(np.float32) for name, count in (("up", 40), ("down", 24), ("image", 8))}
UP, DOWN = (MORE.integers(-127, 128, shape, np.int8) for shape in ((24, 40), (40, 24)))


def block() -> Graph:
    """Two dense layers, one with a scale for each feature, with an activation between and a residual behind."""
    n = Net(dimension("b"), dimension("t"), 24)
    up = quantised_layer(n, n.x, UP, np.linspace(0.002, 0.004, 40, dtype=np.float32), BIAS["up"])
    down = quantised_layer(n, n("Mul", up, n("Sigmoid", up)), DOWN, np.float32(0.003), BIAS["down"])
    return dequantised_by_rows(n.g.finish(n("Add", down, n.x)))


def images() -> Graph:
    """A convolution of images of both signs, then a depthwise one of what is never negative: its pads are zeros."""
    n = Net(dimension("b"), 3, dimension("h"), dimension("w"))
    bias = BIAS["image"].reshape(1, 8, 1, 1)
    first = n("Relu", quantised_layer(n, n.x, WEIGHTS["first"], np.float32(0.01), bias, "ConvInteger", pads=[1, 1, 1, 1]))
    settings: dict[str, Any] = {"pads": [1, 1, 1, 1], "group": 8}
    two = quantised_layer(n, first, WEIGHTS["first"][:, :1], np.float32(0.02), bias, "ConvInteger", **settings)
    return dequantised_by_rows(n.g.finish(two))


WIDE = {"dense": MORE.integers(-127, 128, (96, 72), np.int8), "conv": MORE.integers(-127, 128, (24, 8, 5, 5), np.int8)}
SCALES = {"dense": MORE.uniform(0.01, 0.02, 96).astype(np.float32), "conv": MORE.uniform(0.01, 0.02, 24).astype(np.float32)}


def in_full() -> dict[str, Any]:
    """Weights of bytes as the real numbers that a file makes of them."""
    return {
        name: weight.astype(np.float32) * SCALES[name].reshape(-1, *[1] * (weight.ndim - 1)) for name, weight in WIDE.items()
    }  # fmt: skip


def weights_alone() -> Graph:
    """Layers whose weights alone are bytes: what they read is real."""
    n = Net(dimension("b"), 8, dimension("h"), dimension("w"))
    image = n("Conv", n.x, in_full()["conv"], pads=[2, 2, 2, 2])
    rows = n("Flatten", n("GlobalAveragePool", n("Relu", image)))
    return n.g.finish(n("MatMul", n("Concat", rows, rows, rows, axis=1), in_full()["dense"].T.copy()), image)


GRAPHS = {"net": net(), "dynamic": dynamic(), "block": block(), "images": images(), "alone": weights_alone()}


def ops(graph: Graph) -> list[Op]:
    return [step.op for step in Greedy(graph).steps if isinstance(step, Product)]


def specs(*texts: str) -> list[Op]:
    return [Op.parse(text) for text in texts]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_pack(tmp_path_factory.mktemp("bytes") / "pack", GRAPHS, exact=False)


def test_products_of_bytes_take_scales_bias_and_rounding_along() -> None:
    first, deep, near, ones = ops(GRAPHS["net"])
    assert [first, deep] == specs(
        "conv2d:c=3,f=8,r=3,s=3,stride=2.2,dtype=int8,out=int8,epilogue=scale+bias+clamp",
        "conv2d:c=8,f=8,r=3,s=3,groups=8,dtype=int8,in=int8,out=int8,epilogue=scale+bias",
    )
    assert [near, ones] == specs(
        "dense:n=21,k=8,dtype=int8", "dense:n=1,k=8,dtype=int8"
    )  # weights beyond int8 are two of it
    plain = specs("conv2d:c=3,f=8,r=3,s=3,dtype=int8", "conv2d:c=3,f=1,r=3,s=3,dtype=int8")
    assert ops(GRAPHS["dynamic"]) == [*plain, near, ones]


@pytest.mark.long
@pytest.mark.parametrize("shape", [(1, 3, 9, 12), (3, 3, 17, 8)])
def test_bytes_are_those_of_the_plain_graph_to_a_step_and_sums_exactly(pack: Path, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    with haotuner.load(pack, threads=2) as opened:
        (output,) = opened.model("net").run({"x": x}).values()
        (expected,) = interpret(GRAPHS["net"], {"x": x}).values()
        steps = np.abs(output - expected) / 0.05
        assert steps.max() < 1.01 and (steps > 0.5).mean() < 0.1 and np.ptp(expected) > 0.5
        every, wanted_of = opened.model("dynamic").run({"x": x}), interpret(GRAPHS["dynamic"], {"x": x})
        for name, got in every.items():
            assert got.dtype == np.int32
            np.testing.assert_array_equal(got, wanted_of[name])


def test_products_whose_scale_data_tell_take_it_along() -> None:
    assert ops(GRAPHS["block"]) == specs(
        "dense:n=40,k=24,dtype=int8,out=fp32,epilogue=scale+bias+silu",
        "dense:n=24,k=40,dtype=int8,out=fp32,epilogue=scale+bias+residual",
    )
    assert ops(GRAPHS["images"]) == specs(
        "conv2d:c=3,f=8,r=3,s=3,dtype=int8,out=fp32,epilogue=scale+bias+relu",
        "conv2d:c=8,f=8,r=3,s=3,pad=1.1.1.1,groups=8,dtype=int8,out=fp32,epilogue=scale+bias",
    )


def quantised(x: Any) -> tuple[Any, Any, Any]:
    """DynamicQuantizeLinear by numpy: bytes less their zero point, and the scale."""
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = np.float32((high - low) / np.float32(255))
    zero = np.clip(np.round(-low / scale), 0, 255)
    return np.clip(np.round(x / scale) + zero, 0, 255) - zero, scale, zero


@pytest.mark.parametrize("sizes", [(1, 1), (2, 37), (3, 211)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_block_of_dynamically_quantised_layers_answers_as_its_formula(
    pack: Path, threads: int, sizes: tuple[int, int]
) -> None:
    """Sums are exact, what follows is fp32: a rounding of the largest. A byte of the second layer may become another one."""
    x = np.random.default_rng(3).standard_normal((*sizes, 24)).astype(np.float32)
    centred, scale, _ = quantised(x)
    up = (centred @ UP.astype(np.float64)) * (scale * np.linspace(0.002, 0.004, 40, dtype=np.float32)) + BIAS["up"]
    centred, scale, _ = quantised((up / (1 + np.exp(-up))).astype(np.float32))
    expected = (centred @ DOWN.astype(np.float64)) * (scale * np.float32(0.003)) + BIAS["down"] + x
    with haotuner.load(pack, threads=threads) as opened:
        (output,) = opened.model("block").run({"x": x}).values()
    step = float(scale) * 0.003 * 127  # of one byte that is rounded to the other side
    far = np.abs(output - expected)
    assert far.max() <= 2.01 * step and (far > 1e-5 * np.abs(expected).max()).mean() < 0.05


@pytest.mark.parametrize("shape", [(1, 3, 9, 12), (3, 3, 17, 8)])
def test_dynamically_quantised_images_are_those_of_the_plain_graph(pack: Path, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    (expected,) = interpret(GRAPHS["images"], {"x": x}).values()
    with haotuner.load(pack, threads=2) as opened:
        (output,) = opened.model("images").run({"x": x}).values()
    assert np.abs(output - expected).max() < 1e-2 * np.abs(expected).max()
    assert (np.abs(output - expected) > 1e-5 * np.abs(expected).max()).mean() < 0.05


def test_weights_that_are_bytes_lie_so_in_a_pack_and_are_real_when_loaded(pack: Path) -> None:
    x = np.random.default_rng(4).standard_normal((2, 8, 11, 13)).astype(np.float32)
    bytes_of = sum(weight.size for weight in WIDE.values())
    file_bytes = (pack / "models" / "alone.weights").stat().st_size
    assert bytes_of <= file_bytes < 1.3 * bytes_of
    with haotuner.load(pack, threads=2) as opened:
        outputs = opened.model("alone").run({"x": x})
    for name, expected in interpret(GRAPHS["alone"], {"x": x}).items():
        np.testing.assert_allclose(outputs[name], expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("zero", [0, 41, 128, 255])
@pytest.mark.parametrize("middle", [0, 9, 128, 255])
def test_sums_are_exact_whatever_the_zero_points(zero: int, middle: int) -> None:
    n = Net(dimension("m"), 8, dtype="uint8")
    graph = n.g.finish(n("MatMulInteger", n.x, WEIGHTS["last"], np.uint8(zero), np.uint8(middle)))
    x = DRAW.integers(0, 256, (5, 8), np.uint8)
    expected = (x.astype(np.int32) - zero) @ (WEIGHTS["last"].astype(np.int32) - middle)
    (output,) = interpret(graph, {"x": x}).values()
    np.testing.assert_array_equal(output, expected)
    assert all(op.kind == "dense" for op in ops(graph)) and ops(graph)


def test_weights_that_no_kernel_of_bytes_takes_stay_real() -> None:
    n = Net(dimension("m"), 8)
    x = n.bytes_of(n.x, 0.02, np.uint8(117))
    along = n("DequantizeLinear", WEIGHTS["last"], np.full(8, 0.01, np.float32), np.zeros(8, np.uint8), axis=0)
    assert ops(n.g.finish(n("MatMul", x, along))) == specs("dense:n=21,k=8")  # a scale for every term of a sum
    assert ops(n.g.finish(n("MatMul", n.x, n.weight(WEIGHTS["last"], 3, 1)))) == specs("dense:n=21,k=8")
