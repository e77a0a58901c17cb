"""Transposed convolutions whose pads follow from an asked size: the start takes the larger half of an odd total.

The text of ONNX: "If (auto_pads == SAME_UPPER): pads[start_i] = total_padding[i]/2 ... Else: pads[start_i] =
total_padding[i] - (total_padding[i]/2)".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import helper

from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret
from tests.frontends.test_importing import model

SHAPES: dict[str, tuple[int, ...]] = {"line": (4,), "image": (3, 4), "volume": (2, 3, 2)}


def wanted(x: Any, w: Any, strides: Sequence[int], dilations: Sequence[int], groups: int) -> Any:
    """The whole sum, nothing cut."""
    (b, n, *image), (_, own, *sizes) = x.shape, w.shape
    whole = [(e - 1) * s + (r - 1) * d + 1 for e, s, r, d in zip(image, strides, sizes, dilations, strict=True)]
    output = np.zeros((b, own * groups, *whole), np.float32)
    for channel, position, tap in product(range(n), np.ndindex(*image), np.ndindex(*sizes)):
        first = channel * groups // n * own
        at = tuple(p * s + t * d for p, s, t, d in zip(position, strides, tap, dilations, strict=True))
        output[(slice(None), slice(first, first + own), *at)] += np.multiply.outer(
            x[(slice(None), channel, *position)], w[(channel, slice(None), *tap)]
        )
    return output


@pytest.mark.parametrize("auto", ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_asked_size_cuts_where_onnx_says(shape: str, auto: str) -> None:
    image, draw = SHAPES[shape], np.random.default_rng(0)
    rank = len(image)
    x = draw.standard_normal((2, 4, *image)).astype(np.float32)
    for groups, stride, dilation, more, less, opset in product((1, 2), (1, 2, 3), (1, 2), (0, 1), (-1, 0, 1, 2, 3), (1, 11)):
        strides, dilations = [stride] * rank, [dilation] * rank
        if more and stride == 1 or opset == 1 and (groups, dilation) != (1, 1):
            continue
        if rank > 1 and (stride, dilation, opset) not in ((2, 1, 11), (3, 2, 11), (2, 1, 1)) or (rank == 3 and groups == 2):
            continue
        w = draw.standard_normal((4, 3, *[3, 2, 4][:rank])).astype(np.float32)
        whole = wanted(x, w, strides, dilations, groups)
        grown = np.pad(whole, [(0, 0)] * 2 + [(0, more + max(0, -less))] * rank)
        output_shape = [extent + more - less for extent in whole.shape[2:]]
        total = max(0, less)
        start = total // 2 if auto == "SAME_UPPER" else total - total // 2
        cut = tuple(slice(start, start + extent) for extent in output_shape)
        pads: dict[str, Any] = {"pads": [1] * 2 * rank} if auto == "NOTSET" and less == 1 else {}  # ignored
        if min(output_shape) < 1:
            continue
        node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=strides, dilations=dilations, auto_pad=auto,
                                output_padding=[more] * rank, output_shape=output_shape, group=groups, **pads)  # fmt: skip
        file = model([node], {"x": ["b", 4, *image]}, ["y"], {"w": w})
        file.opset_import[0].version = opset
        graph = graph_of(file, None, {})
        output = interpret(graph, {"x": x})["y"]
        np.testing.assert_allclose(output, grown[(slice(None), slice(None), *cut)], atol=1e-5, err_msg=f"{node}")


@pytest.mark.parametrize("extent", [0, "n"])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_an_image_without_elements_has_the_size_of_the_formula(stride: int, dilation: int, extent: int | str) -> None:
    """ONNX: ``stride * (input - 1) + output_padding + (kernel - 1) * dilation + 1 - pads``; a bias fills it."""
    weights = {"w": np.ones((1, 1, 4), np.float32), "b": np.array([5], np.float32)}
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[stride], dilations=[dilation], pads=[1, 0])
    graph = graph_of(model([node], {"x": [2, 1, extent]}, ["y"], weights), None, {})
    for count in (0, 1, 3)[: 1 if extent == 0 else 3]:
        size = stride * (count - 1) + 3 * dilation + 1 - 1
        answer = interpret(graph, {"x": np.zeros((2, 1, count), np.float32)})["y"]
        np.testing.assert_array_equal(answer, np.full((2, 1, size), 5, np.float32))


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("size", "stride"), [(1, 2), (2, 3), (2, 5), (1, 4)])
def test_same_of_windows_smaller_than_strides_has_extent_times_stride_elements(size: int, stride: int, auto: str) -> None:
    """The text: "pad the input so that `output_shape[i] = input_shape[i] * strides[i]`"; ONNX Runtime has fewer."""
    from onnx.reference import ReferenceEvaluator

    x, w = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 4), np.ones((1, 1, size), np.float32)
    file = model([helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[stride], auto_pad=auto)],
                 {"x": [1, 1, "n"]}, ["y"], {"w": w})  # fmt: skip
    answer = interpret(graph_of(file, None, {}), {"x": x})["y"]
    assert answer.shape == (1, 1, 4 * stride)
    np.testing.assert_array_equal(answer, ReferenceEvaluator(file).run(None, {"x": x})[0])
