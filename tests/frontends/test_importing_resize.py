"""Resize of images of any size: to sizes of the file and of the request, by scales, with antialias, in proportion."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.read import graph_of
from haotuner.frontends.onnx.resize import scaled_length
from haotuner.graph.extents import dimension, evaluate, same
from haotuner.graph.interpret import interpret
from haotuner.partition.dim_ranges import ranges_of

onnx = pytest.importorskip("onnx")
from onnx.reference import ReferenceEvaluator  # noqa: E402, after the skip

helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
SIZES = ((3, 5), (16, 9), (20, 30))
SMALLER = np.array([1, 2, 4, 7])


def model(fixed: dict[str, Any], fed: dict[str, int] | None = None, **attributes: Any) -> Any:
    """``fixed``: roi, scales and sizes that the file gives; ``fed``: element types of those that come with the request."""
    names = [name if name in {**fixed, **(fed or {})} else "" for name in ("roi", "scales", "sizes")]
    node = helper.make_node("Resize", ["x", *names], ["y"], **attributes)
    values = [("x", FLOAT, [1, 2, "h", "w"]), *((name, kind, [4]) for name, kind in (fed or {}).items())]
    inputs = [helper.make_tensor_value_info(*value) for value in values]
    initializers = [onnx.numpy_helper.from_array(value, name) for name, value in fixed.items()]
    output = helper.make_tensor_value_info("y", FLOAT, [None] * 4)
    graph = helper.make_graph([node], "g", inputs, [output], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def image(h: int, w: int) -> Any:
    return np.random.default_rng(h).standard_normal((1, 2, h, w)).astype(np.float32)


def as_the_reference(onnx_model: Any, **fed: Any) -> None:
    graph, reference = graph_of(onnx_model, None, {}), ReferenceEvaluator(onnx_model)
    for h, w in SIZES:
        feeds = {"x": image(h, w), **fed}
        (expected,) = reference.run(None, feeds)
        np.testing.assert_allclose(interpret(graph, feeds)["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "where", ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"]
)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_any_image_becomes_one_of_a_size(mode: str, where: str) -> None:
    as_the_reference(model({"sizes": SMALLER}, mode=mode, coordinate_transformation_mode=where))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("outside", [0, 1])
def test_neighbours_spread_wider_are_as_many_as_the_request_says(mode: str, outside: int) -> None:
    as_the_reference(model({"sizes": SMALLER}, mode=mode, antialias=1, exclude_outside=outside))


@pytest.mark.parametrize("antialias", [0, 1])
def test_sizes_and_scales_may_come_with_the_request(antialias: int) -> None:
    settings = {"mode": "linear", "antialias": antialias}
    as_the_reference(model({}, {"sizes": INT64}, **settings), sizes=SMALLER)
    as_the_reference(model({}, {"scales": FLOAT}, **settings), scales=np.array([1, 1, 0.5, 2], np.float32))


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_images_keep_their_proportion(policy: str) -> None:
    onnx_model = model({"sizes": np.array([6, 8])}, mode="linear", axes=[2, 3], keep_aspect_ratio_policy=policy)
    as_the_reference(onnx_model)


def test_the_last_pixel_of_a_cropped_image_is_inside() -> None:
    roi = np.array([0, 0, 0.2, 0.4, 1, 1, 1, 1], np.float32)
    onnx_model = model({"roi": roi, "sizes": np.array([1, 2, 5, 13])}, mode="linear", extrapolation_value=9.0,
                       coordinate_transformation_mode="tf_crop_and_resize")  # fmt: skip
    graph = graph_of(onnx_model, None, {})
    for h, w in SIZES:
        x = image(h, w)
        np.testing.assert_allclose(interpret(graph, {"x": x})["y"][:, :, -1, -1], x[:, :, -1, -1], rtol=1e-5)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_weights_are_computed_as_tensors(mode: str) -> None:
    """Not folded: hundreds of nodes for each row of the result take minutes to read."""
    graph = graph_of(model({"sizes": np.array([1, 2, 224, 224])}, mode=mode), None, {})
    assert len(graph.nodes) < 400


@pytest.mark.parametrize("scale", [0.1, 0.3, 0.7, 1 / 3, 1.1, 1.3, 2.3])
def test_scaled_lengths_are_rounded_products(scale: float) -> None:
    graph = graph_of(model({"scales": np.array([1, 1, scale, 1], np.float32)}), None, {})
    for h in range(1, 100):
        expected = int(np.float32(h) * np.float32(scale))
        if expected:
            assert interpret(graph, {"x": np.zeros((1, 2, h, 1), np.float32)})["y"].shape[2] == expected


def test_a_scaled_length_is_arithmetic_of_its_size_and_no_size_of_the_data() -> None:
    h = dimension("h")
    assert same(scaled_length(ConstantFolding(), h, 0.5, "fp32"), h // 2)
    assert same(scaled_length(ConstantFolding(), h, 2.0, "fp32"), 2 * h)
    for dtype, kind in (("fp32", np.float32), ("fp64", np.float64)):
        length = scaled_length(ConstantFolding(), h, 1.3, dtype)
        assert [evaluate(length, {"h": size}) for size in (10, 90)] == [int(kind(size) * kind(1.3)) for size in (10, 90)]


def gathers_of(shapes: str, **attributes: Any) -> list[Any]:
    """The gathers of a Resize to 64 x 64, in their order."""
    onnx_model = model({"sizes": np.array([64, 64])}, axes=[2, 3], **attributes)
    graph = graph_of(onnx_model, None, {}, lambda inputs: ranges_of(inputs, shapes))
    return [node for node in graph.nodes if node.primitive == "gather"]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_pixels_are_read_without_asking_whether_they_lie_in_the_image(mode: str) -> None:
    gathers = gathers_of("h=8..512;w=8..512", mode=mode)
    assert gathers and all(node.attributes["bounded"] for node in gathers)


def test_rows_are_resized_first_where_that_leaves_fewer_of_them():
    for shapes, first in (("h=64..512;w=64..512", 2), ("h=8..64;w=8..64", 3), ("h=64..512;w=8..16", 2)):
        assert gathers_of(shapes, mode="linear")[0].attributes["axis"] == first


NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SCALES = (0.3, 0.5, 0.6, 0.9, 1.1, 1.3, 1.7, 2.5, 3.3)
WIDTHS = (7, 20, 64)


@pytest.mark.parametrize(
    "where",
    [
        "half_pixel",
        "asymmetric",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("pytorch_half_pixel", "half_pixel_symmetric")),
    ],
)
@pytest.mark.parametrize("widths", [WIDTHS, pytest.param(range(1, 65), marks=pytest.mark.slow, id="all")])
def test_the_nearest_pixel_is_the_one_that_onnxruntime_takes(where: str, widths: Sequence[int]) -> None:
    """Scales that fp32 rounds put pixels beside integers and beside middles of two; ONNX does not say in what to count.

    Left out: results as long as the image, which ONNX Runtime copies whatever the scale.
    """
    onnxruntime = pytest.importorskip("onnxruntime", minversion="1.32")  # older ones have no tolerance at a middle
    for how, scale in itertools.product(NEAREST, SCALES):
        scales = np.array([1, 1, 1, scale], np.float32)
        onnx_model = model({"scales": scales}, mode="nearest", coordinate_transformation_mode=where, nearest_mode=how)
        graph = graph_of(onnx_model, None, {})
        session = onnxruntime.InferenceSession(onnx_model.SerializeToString(), providers=["CPUExecutionProvider"])
        for width in widths:
            if int(np.float32(width) * scales[3]) in (0, width):
                continue
            x = np.tile(np.arange(width, dtype=np.float32), (1, 2, 1, 1))
            (expected,) = session.run(None, {"x": x})
            np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], expected, f"{how} {scale} of {width}")


@pytest.mark.parametrize("how", ["round_prefer_floor", "round_prefer_ceil"])
def test_the_middle_of_two_pixels_is_the_middle_whatever_sizes_round(how: str) -> None:
    """Of 20 pixels to 6 the fifth lies at (4 + 1/2) * 20 / 6 - 1/2, which is 14.5."""
    graph = graph_of(model({}, {"sizes": INT64}, mode="nearest", nearest_mode=how), None, {})
    up = int(how == "round_prefer_ceil")
    for width, out in itertools.product(range(3, 41), range(3, 41, 3)):
        middles = [i for i in range(out) if (2 * i + 1) * width % (2 * out) == 0]
        if middles:
            x = np.tile(np.arange(width, dtype=np.float32), (1, 2, 1, 1))
            y = interpret(graph, {"x": x, "sizes": np.array([1, 2, 1, out])})["y"][0, 0, 0]
            assert [y[i] for i in middles] == [(2 * i + 1) * width // (2 * out) - 1 + up for i in middles], (width, out)


@pytest.mark.parametrize("how", ["floor", "ceil"])
def test_a_pixel_that_sizes_meet_exactly_is_that_one(how: str) -> None:
    """Of 7 pixels to 17 the ninth lies at (8 + 1/2) * 7 / 17 - 1/2, which is 3: no rounding makes it the fourth."""
    graph = graph_of(model({}, {"sizes": INT64}, mode="nearest", nearest_mode=how), None, {})
    for width, out in itertools.product(range(1, 24, 3), range(1, 24, 4)):
        x = np.tile(np.arange(width, dtype=np.float32), (1, 2, 1, 1))
        y = interpret(graph, {"x": x, "sizes": np.array([1, 2, 1, out])})["y"][0, 0, 0]
        parts = [(2 * i + 1) * width - out for i in range(out)]  # over 2 * out
        exact = [part // (2 * out) if how == "floor" else -(-part // (2 * out)) for part in parts]
        assert y.tolist() == [min(max(pixel, 0), width - 1) for pixel in exact], (width, out)
