"""Regions of images, folded windows, determinants, caches and unique values against onnx's reference and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret

onnx = pytest.importorskip("onnx")
from onnx.reference import ReferenceEvaluator  # noqa: E402, after the skip

from tests.bench.onnx_nodes import answer, cases_of  # noqa: E402

DRAW = np.random.default_rng(0)
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def model(op: str, shapes: dict[str, list[Any]], outputs: int = 1, opset: int = 22, **attributes: Any) -> Any:
    names = [f"y{index}" for index in range(outputs)]
    inputs = [
        onnx.helper.make_tensor_value_info(name, INT64 if name.startswith("i_") else FLOAT, shape)
        for name, shape in shapes.items()
    ]
    outs = [onnx.helper.make_tensor_value_info(name, INT64 if index else FLOAT, None) for index, name in enumerate(names)]
    graph = onnx.helper.make_graph([onnx.helper.make_node(op, list(shapes), names, **attributes)], "g", inputs, outs)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.long
@pytest.mark.parametrize("op", ["RoiAlign", "Col2Im", "Det", "MelWeightMatrix", "TensorScatter", "Unique"])
def test_onnx_own_cases_pass(op: str) -> None:
    answers = [answer(case, op) for case in cases_of(op)]
    assert answers
    assert [case_answer for case_answer in answers if case_answer.why] == []


@pytest.mark.parametrize("where", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_boxes_of_any_image_are_sampled(mode: str, ratio: int, where: str) -> None:
    onnx_model = model("RoiAlign", {"x": ["n", 3, "h", "w"], "boxes": ["k", 4], "i_batch": ["k"]}, mode=mode,
                       output_height=3, output_width=2, sampling_ratio=ratio, spatial_scale=0.5,
                       coordinate_transformation_mode=where)  # fmt: skip
    graph = graph_of(onnx_model, None, {})
    for n, h, w, k in ((1, 5, 9, 1), (2, 12, 7, 5)):
        boxes = DRAW.uniform(-2, 2 * max(h, w), (k, 4)).astype(np.float32)
        boxes[:, 2:] = boxes[:, :2] + np.abs(boxes[:, 2:])
        feeds = {"x": DRAW.standard_normal((n, 3, h, w)).astype(np.float32), "boxes": boxes,
                 "i_batch": np.arange(k) % n}  # fmt: skip
        (expected,) = ReferenceEvaluator(onnx_model).run(None, feeds)
        np.testing.assert_allclose(interpret(graph, feeds)["y0"], expected, rtol=1e-4, atol=1e-5)


def test_the_largest_pixels_of_boxes() -> None:
    onnx_model = model("MaxRoiPool", {"x": ["n", 2, "h", "w"], "boxes": ["k", 5]}, pooled_shape=[2, 3], spatial_scale=1.0)
    x = DRAW.standard_normal((2, 2, 8, 9)).astype(np.float32)
    boxes = np.array([[1, 1, 2, 6, 5], [0, 6, 6, 30, 30]], np.float32)  # image, x and y of both corners
    output = interpret(graph_of(onnx_model, None, {}), {"x": x, "boxes": boxes})["y0"]
    np.testing.assert_array_equal(output[0, :, 0, 0], x[1, :, 2:4, 1:3].max((1, 2)))
    np.testing.assert_array_equal(output[0, :, 1, 2], x[1, :, 4:6, 5:7].max((1, 2)))
    np.testing.assert_array_equal(output[1, :, 0, 0], x[0, :, 6:8, 6:9].max((1, 2)))
    assert not output[1, :, 1].any(), "bins outside of the image are 0"


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 2, 1]])
def test_windows_are_summed_into_an_image(pads: list[int]) -> None:
    torch = pytest.importorskip("torch")
    settings: dict[str, Any] = {"strides": [2, 1], "dilations": [1, 2]}
    onnx_model = model("Col2Im", {"x": ["n", 12, "l"], "i_image": [2], "i_block": [2]}, pads=pads, **settings)
    onnx_model.graph.input.pop(), onnx_model.graph.input.pop()
    onnx_model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(value), name) for name, value in (("i_image", [7, 8]), ("i_block", [2, 3]))
    )
    graph = graph_of(onnx_model, None, {})
    steps = ((7 + pads[0] + pads[2] - 2) // 2 + 1) * (8 + pads[1] + pads[3] - 4)
    x = DRAW.standard_normal((3, 12, steps)).astype(np.float32)
    if pads == [0, 0, 0, 0]:
        expected = torch.nn.functional.fold(torch.from_numpy(x), (7, 8), (2, 3), stride=(2, 1), dilation=(1, 2)).numpy()
    else:
        (expected,) = ReferenceEvaluator(onnx_model).run(None, {"x": x})
    np.testing.assert_allclose(interpret(graph, {"x": x})["y0"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 3, 6])
def test_determinants_need_no_pivot_on_the_diagonal(rows: int) -> None:
    onnx_model = model("Det", {"x": ["b", rows, rows]})
    x = DRAW.standard_normal((5, rows, rows)).astype(np.float32)
    x[0, 0, 0], x[1] = 0, 0
    x[2] = np.eye(rows)[::-1]
    np.testing.assert_allclose(
        interpret(graph_of(onnx_model, None, {}), {"x": x})["y0"], np.linalg.det(x), rtol=1e-4, atol=1e-5
    )


def test_a_determinant_of_unknown_rows_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="expected square ones of at most 32 rows, a fixed number"):
        graph_of(model("Det", {"x": ["b", "n", "n"]}), None, {})


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_rows_are_written_into_a_cache(mode: str) -> None:
    shapes: dict[str, list[Any]] = {"past": ["b", 2, "t", 4], "new": ["b", 2, "s", 4], "i_at": ["b"]}
    onnx_model = model("TensorScatter", shapes, opset=24, mode=mode)
    graph = graph_of(onnx_model, None, {})
    past, new = (DRAW.standard_normal((3, 2, rows, 4)).astype(np.float32) for rows in (7, 2))
    feeds = {"past": past, "new": new, "i_at": np.array([0, 5, 6 if mode == "circular" else 3])}
    (expected,) = ReferenceEvaluator(onnx_model).run(None, feeds)
    np.testing.assert_array_equal(interpret(graph, feeds)["y0"], expected)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("ordered", [0, 1])
def test_values_and_slices_are_there_once(axis: int | None, ordered: int) -> None:
    more = {} if axis is None else {"axis": axis}
    graph = graph_of(model("Unique", {"x": ["m", "n"]}, 4, sorted=ordered, **more), None, {})
    for shape in ((1, 1), (4, 3), (2, 9)):
        x = DRAW.integers(0, 2, shape).astype(np.float32)
        values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
        order = np.arange(len(first)) if ordered else np.argsort(first)
        outputs = interpret(graph, {"x": x})
        np.testing.assert_array_equal(outputs["y0"], np.take(values, order, axis or 0))
        np.testing.assert_array_equal(outputs["y1"], first[order])
        np.testing.assert_array_equal(outputs["y2"], np.argsort(order)[inverse.reshape(-1)])
        np.testing.assert_array_equal(outputs["y3"], counts[order])
