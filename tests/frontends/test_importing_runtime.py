"""Nodes whose attributes, element types or shapes few models have: the graph answers what ONNX Runtime answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret
from haotuner.spec.shape import Span

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
from onnx import helper, numpy_helper  # noqa: E402, after the skip

DRAW = np.random.default_rng(0)
ANY = ["n", "c", "h", "w"]


def numbers(*shape: int) -> Any:
    return DRAW.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def model(nodes: str, inputs: Mapping[str, Any], weights: Mapping[str, Any], opset: int, outputs: int) -> Any:
    """A model of nodes in ONNX's text, separated by semicolons, with the outputs y0, y1 ....

    Every extent of an input is dynamic: tensors of 3 axes are (n, c, h).
    """
    ends = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [*ANY[: value.ndim]])
        for name, value in inputs.items()
    ]
    graph = helper.make_graph(
        [onnx.parser.parse_node(text.strip()) for text in nodes.split(";")],
        "nodes",
        ends,
        [helper.make_empty_tensor_value_info(f"y{index}") for index in range(outputs)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def as_runtime(
    nodes: str,
    requests: list[dict[str, Any]],
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 20,
    outputs: int = 1,
    fixed: tuple[int, ...] = (),
    last: int = 64,
) -> None:
    """Compare each request. ``fixed``: axes of the inputs that have their extent in the file."""
    onnx_model = model(nodes, requests[0], weights or {}, opset, outputs)
    for end, value in zip(onnx_model.graph.input, requests[0].values(), strict=True):
        for axis in fixed:
            if axis < value.ndim:
                end.type.tensor_type.shape.dim[axis].dim_value = value.shape[axis]
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(onnx_model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    graph = graph_of(onnx_model, None, {}, lambda inputs: {dim: Span(first=1, last=last) for dim in ANY})
    for request in requests:
        results = interpret(graph, request)
        for expected, name in zip(session.run(None, request), graph.outputs, strict=True):
            assert results[name].dtype == expected.dtype and results[name].shape == expected.shape, name
            np.testing.assert_allclose(results[name], expected, rtol=1e-5, atol=1e-5, err_msg=nodes)


IMAGES = [(1, 2, 3, 3), (2, 2, 7, 5), (1, 2, 8, 8), (1, 2, 6, 9)]


@pytest.mark.parametrize("op", ["AveragePool", "LpPool"])
@pytest.mark.parametrize(("window", "stride"), [(1, 2), (1, 3), (2, 3), (2, 4), (3, 4)])
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_pools_smaller_than_their_strides_cut_both_ends(op: str, window: int, stride: int, auto: str) -> None:
    settings = f'kernel_shape=[{window},{window}],strides=[{stride},{stride}],auto_pad="{auto}"'
    as_runtime(f"y0 = {op}<{settings}>(x)", [{"x": numbers(*shape)} for shape in IMAGES], fixed=(1,))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_ceil_mode_counts_windows_of_auto_pad_valid(op: str) -> None:
    settings = 'kernel_shape=[3,3],strides=[2,3],auto_pad="VALID",ceil_mode=1'
    as_runtime(f"y0 = {op}<{settings}>(x)", [{"x": numbers(*shape)} for shape in IMAGES], fixed=(1,))


@pytest.mark.parametrize("scales", [(1, 1, 1.7, 0.6), (1, 1, 0.3, 2.0)])
def test_the_nearest_pixel_before_opset_11(scales: tuple[float, ...]) -> None:
    weights = {"s": np.array(scales, np.float32)}
    requests = [{"x": numbers(*shape)} for shape in IMAGES]
    as_runtime('y0 = Resize<mode="nearest">(x, s)', requests, weights, opset=10, fixed=(1,))
    if min(scales) >= 1:
        as_runtime('y0 = Upsample<mode="nearest">(x, s)', requests, weights, opset=9, fixed=(1,))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("scales", [(1, 1, 1.7, 0.6), (1, 1, 2, 0.5), (1, 1, 1, 1.3)])
def test_images_of_whole_numbers_are_interpolated_as_real_ones(dtype: str, scales: tuple[float, ...]) -> None:
    """Each pixel is the same: what lies behind the point of a sum is dropped, so that its last bit counts."""
    weights = {"s": np.array(scales, np.float32)}
    requests = [{"x": np.abs(numbers(1, 2, h, w) * 40).astype(dtype)} for h, w in ((3, 6), (8, 8), (16, 9))]
    as_runtime('y0 = Resize<mode="linear">(x, , s)', requests, weights, fixed=(0, 1))


def test_c_of_gemm_is_not_read_where_beta_is_0() -> None:
    weights = {"w": numbers(4, 2), "c": np.array([np.nan, np.inf], np.float32)}
    as_runtime("y0 = Gemm<beta=0.0>(x, w, c)", [{"x": numbers(3, 4)}], weights, fixed=(1,))


@pytest.mark.parametrize("equation", ["iij->j", "iji->ij", "iij->ji", "ijj->i", "iii->i"])
def test_letters_that_an_operand_has_twice(equation: str) -> None:
    extents = dict(zip("ij", (3, 3 if equation == "iii->i" else 2), strict=True))
    shape = [extents[letter] for letter in equation.partition("->")[0]]
    as_runtime(f'y0 = Einsum<equation="{equation}">(x)', [{"x": numbers(*shape)}], fixed=(0, 1, 2))


@pytest.mark.parametrize(
    ("equation", "first", "other"),
    [("...ij,...jk->...ik", (1, 3, 4), (2, 4, 5)), ("ij,jk->ik", (3, 1), (4, 2)), ("aij,aij->a", (2, 1, 3), (2, 4, 3))],
)
def test_axes_of_one_element_are_spread_by_einsum(equation: str, first: tuple[int, ...], other: tuple[int, ...]) -> None:
    request = {"x": numbers(*first), "z": numbers(*other)}
    as_runtime(f'y0 = Einsum<equation="{equation}">(x, z)', [request], fixed=(0, 1, 2))


@pytest.mark.parametrize(
    "activations",
    [
        ('"Sigmoid","LeakyRelu"', "activation_alpha=[0.3]"),
        ('"HardSigmoid","ThresholdedRelu"', "activation_alpha=[0.3,0.1],activation_beta=[0.4]"),
    ],
)
def test_alphas_belong_to_activations_that_take_one(activations: tuple[str, str]) -> None:
    names, values = activations
    weights = {"w": numbers(1, 12, 3), "r": numbers(1, 12, 4)}
    text = f"y0, y1 = GRU<hidden_size=4,activations=[{names}],{values}>(x, w, r)"
    as_runtime(text, [{"x": numbers(5, 2, 3)}], weights, outputs=2, fixed=(2,))


@pytest.mark.parametrize(
    ("op", "gates", "outputs", "options"),
    [("RNN", 1, 2, ""), ("GRU", 3, 2, ""), ("GRU", 3, 2, ",linear_before_reset=1"),
     ("LSTM", 4, 3, ""), ("LSTM", 4, 3, ",input_forget=1")],
)  # fmt: skip
def test_a_clip_bounds_gates_and_no_cell(op: str, gates: int, outputs: int, options: str) -> None:
    weights = {"w": numbers(1, gates * 4, 3), "r": numbers(1, gates * 4, 4), "h": numbers(1, 2, 4)}
    weights |= {"c": 3 + numbers(1, 2, 4), "p": numbers(1, 12)} if op == "LSTM" else {}
    results = ", ".join(f"y{index}" for index in range(outputs))
    ends = ", c, p" if op == "LSTM" else ""
    text = f"{results} = {op}<hidden_size=4,clip=0.5{options}>(x, w, r, , , h{ends})"
    as_runtime(text, [{"x": numbers(5, 2, 3)}], weights, outputs=outputs, fixed=(1, 2))


@pytest.mark.parametrize(("op", "gates", "outputs"), [("RNN", 1, 2), ("LSTM", 4, 3)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_the_last_state_of_no_tokens_is_0(op: str, gates: int, outputs: int, direction: str) -> None:
    ways = 2 if direction == "bidirectional" else 1
    weights = {"w": numbers(ways, gates * 4, 3), "r": numbers(ways, gates * 4, 4), "h": numbers(ways, 2, 4)}
    results = ", ".join(f"y{index}" for index in range(outputs))
    text = f'{results} = {op}<hidden_size=4,direction="{direction}">(x, w, r, , , h)'
    as_runtime(text, [{"x": numbers(3, 2, 3)}], weights, outputs=outputs, fixed=(1, 2))
    empty = {"x": numbers(0, 2, 3)}  # ONNX Runtime's result has the shape, and whatever its memory held
    onnx_model = model(text, empty, weights, 20, outputs)
    for axis in (1, 2):
        onnx_model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = empty["x"].shape[axis]
    states = interpret(graph_of(onnx_model, None, {}), empty)
    for name in list(states)[1:]:
        np.testing.assert_array_equal(states[name], np.zeros((ways, 2, 4)))


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("length", [7, 8])
def test_a_signal_of_any_length_is_padded_or_cut_to_a_transform(half: int, length: int) -> None:
    requests = [{"x": numbers(2, size, 1)} for size in (5, 8, 11)]
    as_runtime(f"y0 = DFT<onesided={half}>(x, length)", requests, {"length": np.array(length, np.int64)}, fixed=(2,))


def test_zeros_are_quantised_by_a_scale_of_1() -> None:
    requests = [{"x": np.zeros((2, 3), np.float32)}, {"x": numbers(2, 3)}]
    as_runtime("y0, y1, y2 = DynamicQuantizeLinear(x)", requests, outputs=3)


def test_acosh_below_1_is_no_number() -> None:
    values = np.array([-1e30, -1e5, -88.7, -3, -1, -0.5, 0.5, 1, 1.0001, 2, 1e5, 3e38, np.inf, np.nan], np.float32)
    as_runtime("y0 = Acosh(x)", [{"x": values}])


def test_hardmax_of_an_empty_axis_is_empty() -> None:
    as_runtime("y0 = Hardmax<axis=0>(x)", [{"x": numbers(3, 4)}, {"x": numbers(0, 4)}])


def test_a_pad_may_come_with_the_request() -> None:
    nodes = "y0 = Pad(x, pads, z)"
    as_runtime(nodes, [{"x": numbers(3, 4), "z": np.array(7, np.float32)}], {"pads": ints(1, -1, 0, 2)})


def test_an_empty_axis_read_backwards_is_empty() -> None:
    bounds = {name: ints(value) for name, value in (("start", -1), ("stop", -(2**62)), ("step", -1))}
    onnx_model = model("y0 = Slice(x, start, stop, axis, step)", {"x": numbers(3, 4)} | bounds, {"axis": ints(0)}, 20, 1)
    for end in onnx_model.graph.input[1:]:
        end.type.tensor_type.shape.dim[0].dim_value = 1
    graph = graph_of(onnx_model, None, {})
    for rows in (3, 0):
        x = numbers(rows, 4)
        np.testing.assert_array_equal(interpret(graph, {"x": x} | bounds)["y0"], x[::-1])


@pytest.mark.parametrize("length", ["k = ReduceSum<keepdims=1>(padded)", "k = ReduceMax<keepdims=1>(padded)"])
def test_sizes_are_padded_as_numbers(length: str) -> None:
    nodes = f"s = Shape(x); padded = Pad(s, one, three); {length}; y0 = Slice(x, zero, k)"
    weights = {"one": ints(1, 1), "three": np.array(3, np.int64), "zero": ints(0)}
    as_runtime(nodes, [{"x": numbers(size)} for size in (1, 2, 5, 40)], weights)


def test_a_step_of_a_slice_may_be_a_size() -> None:
    nodes = "s = Shape(x); half = Div(s, two); step = Max(half, one); y0 = Slice(x, zero, s, zero, step)"
    weights = {"two": ints(2), "one": ints(1), "zero": ints(0)}
    as_runtime(nodes, [{"x": numbers(size)} for size in (1, 2, 5, 12)], weights)


def test_a_transposed_convolution_with_windows_smaller_than_strides_has_extent_times_stride() -> None:
    """The text of ONNX and its reference; ONNX Runtime leaves the last zeros out."""
    from onnx.reference import ReferenceEvaluator

    for auto, window, stride in (("SAME_UPPER", 1, 2), ("SAME_UPPER", 1, 3), ("SAME_LOWER", 1, 3), ("SAME_UPPER", 2, 3)):
        nodes = f'y0 = ConvTranspose<auto_pad="{auto}",strides=[{stride},{stride}]>(x, w)'
        onnx_model = model(nodes, {"x": numbers(1, 2, 3, 4)}, {"w": numbers(2, 3, window, window)}, 20, 1)
        onnx_model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2
        graph, x = graph_of(onnx_model, None, {}), numbers(1, 2, 3, 4)
        np.testing.assert_allclose(
            interpret(graph, {"x": x})["y0"], ReferenceEvaluator(onnx_model).run(None, {"x": x})[0], atol=1e-5
        )


REALS = np.array([0, -0.0, 1.5, -2.25, 65504, 1e-7, np.inf, -np.inf], np.float64)
PAIRS = [("float32", "int32"), ("float32", "uint32"), ("float64", "int64"), ("float16", "uint16"), ("float16", "int16")]


@pytest.mark.parametrize(("real", "whole"), PAIRS)
def test_bits_are_taken_as_another_type_of_their_width(real: str, whole: str) -> None:
    values = REALS.astype(real)
    for stored, target in ((values, whole), (values.view(whole), real)):
        code = helper.np_dtype_to_tensor_dtype(np.dtype(target))
        graph = graph_of(model(f"y0 = BitCast<to={code}>(x)", {"x": stored}, {}, 26, 1), None, {})
        np.testing.assert_array_equal(interpret(graph, {"x": stored})["y0"], stored.view(target))


def test_whole_numbers_of_a_width_wrap_around() -> None:
    x = np.array([-1, 0, 127, -128], np.int8)
    graph = graph_of(model("y0 = BitCast<to=2>(x)", {"x": x}, {}, 26, 1), None, {})
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y0"], x.view(np.uint8))


def test_bits_of_another_width_are_refused() -> None:
    with pytest.raises(UsageError, match="fp32 as int64; both must be of the same width"):
        graph_of(model("y0 = BitCast<to=7>(x)", {"x": numbers(3)}, {}, 26, 1), None, {})


def test_a_number_of_the_data_that_is_clamped_makes_a_size() -> None:
    nodes = "p = Max(zero, m); q = Min(p, three); e = Unsqueeze(q, zeros); y0 = Slice(x, zeros, e); y1 = ConstantOfShape(e)"
    requests = [{"x": numbers(5, 3), "m": np.array(number, np.int64)} for number in (-4, 0, 2, 9)]
    as_runtime(nodes, requests, {"zero": np.int64(0), "three": np.int64(3), "zeros": ints(0)}, outputs=2)
