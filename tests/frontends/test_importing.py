"""ONNX models as graphs: ONNX's own cases, shapes as expressions, and files that must be refused."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.errors import HaotunerError, UsageError
from haotuner.frontends.onnx.read import graph_of, read
from haotuner.graph.control_flow import HOST
from haotuner.graph.extents import dimension, same
from haotuner.graph.interpret import interpret
from haotuner.partition.products import Finder
from haotuner.spec.op import Op

onnx = pytest.importorskip("onnx")
from tests.bench.onnx_nodes import answer, cases_of  # noqa: E402, after the skip

helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
FAMILIES = (
    "Softmax",
    "Conv",
    "ConvTranspose",
    "AveragePool",
    "Slice",
    "Split",
    "LSTM",
    "TopK",
    "GatherND",
    "Gelu",
    "Einsum",
    "NonZero",
    "GridSample",
    "DeformConv",
    "NonMaxSuppression",
    "Acos",
    "DFT",
    "STFT",
    "BitwiseNot",
    "Compress",
    "MaxUnpool",
)


@pytest.mark.parametrize("op", FAMILIES)
def test_onnx_own_cases_pass(op):
    with warnings.catch_warnings():  # of onnx's own references
        warnings.simplefilter("ignore")
        answers = [answer(case, op) for case in cases_of(op)]
    assert answers
    assert [case_answer for case_answer in answers if case_answer.why] == []


def model(nodes: list[Any], inputs: dict[str, Any], outputs: list[str], weights: dict[str, Any] | None = None) -> Any:
    ins = [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()]
    outs = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    initializers = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()]
    return helper.make_model(
        helper.make_graph(nodes, "g", ins, outs, initializers), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )


def heads() -> Any:
    """A reshape by shape arithmetic, as exporters of torch write it: (batch, seq, 12) -> (batch, seq, 3, 4)."""
    n = helper.make_node
    nodes = [
        n("Shape", ["x"], ["s"]),
        n("Gather", ["s", "zero"], ["b"]),
        n("Gather", ["s", "one"], ["t"]),
        n("Unsqueeze", ["b", "axes"], ["b1"]),
        n("Unsqueeze", ["t", "axes"], ["t1"]),
        n("Concat", ["b1", "t1", "tail"], ["shape"], axis=0),
        n("Reshape", ["x", "shape"], ["y"]),
    ]
    weights = {"zero": np.int64(0), "one": np.int64(1), "axes": np.array([0]), "tail": np.array([3, -1])}
    return model(nodes, {"x": ["batch", "seq", 12]}, ["y"], weights)


def test_shape_arithmetic_is_gone_after_reading():
    graph = graph_of(heads(), None, {})
    assert [node.primitive for node in graph.nodes] == ["reshape"]
    expected = (dimension("batch"), dimension("seq"), 3, 4)
    assert all(same(extent, other) for extent, other in zip(graph.types["y"].shape, expected, strict=True))
    for batch, seq in ((1, 1), (2, 7)):
        x = np.random.default_rng(0).standard_normal((batch, seq, 12)).astype(np.float32)
        np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], x.reshape(batch, seq, 3, 4))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_single_pixel_is_spread_and_not_gathered(mode):
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode)
    graph = graph_of(model([node], {"x": ["b", 3, 1, 1]}, ["y"], {"scales": np.array([1, 1, 4, 5], np.float32)}), None, {})
    assert {node.primitive for node in graph.nodes} == {"broadcast"}
    x = np.arange(6, dtype=np.float32).reshape(2, 3, 1, 1)
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], np.broadcast_to(x, (2, 3, 4, 5)))


@pytest.mark.parametrize("op", ["GatherElements", "GatherND"])
def test_gathered_elements_keep_their_axes(op):
    """Of flat indices a loop would divide its place by every extent, element by element."""
    node = helper.make_node(op, ["x", "at"], ["y"])
    onnx_model = model([node], {"x": ["m", "n"]}, ["y"])
    shape = ["m", "k"] if op == "GatherElements" else ["m", "k", 2]
    onnx_model.graph.input.append(helper.make_tensor_value_info("at", INT64, shape))
    graph = graph_of(onnx_model, None, {})
    indices = next(node.inputs[1] for node in graph.nodes if node.primitive == "gather")
    assert graph.types[indices].shape == (dimension("m"), dimension("k"))


def test_constants_are_computed_while_reading():
    nodes = [helper.make_node("Transpose", ["w"], ["t"]), helper.make_node("MatMul", ["x", "t"], ["y"])]
    graph = graph_of(model(nodes, {"x": ["m", 3]}, ["y"], {"w": np.ones((2, 3), np.float32)}), None, {})
    assert [node.primitive for node in graph.nodes] == ["contract"]


def test_constants_that_pass_through_fp64_are_computed_while_reading():
    nodes = [helper.make_node("Pow", ["w", "two"], ["s"]), helper.make_node("MatMul", ["x", "s"], ["y"])]
    weights = {"w": np.ones((320, 459), np.float32), "two": np.int64(2)}
    graph = graph_of(model(nodes, {"x": ["m", 320]}, ["y"], weights), None, {})
    assert [node.primitive for node in graph.nodes] == ["contract"]


def test_weights_of_fewer_bits_are_weights_of_kernels():
    n, weight = helper.make_node, np.arange(600 * 700, dtype=np.int64).reshape(600, 700).astype(np.int8)
    nodes = [n("Cast", ["w"], ["f"], to=FLOAT), n("Mul", ["f", "scale"], ["s"]), n("MatMul", ["x", "s"], ["y"])]
    weights = {"w": weight, "scale": np.full(700, 0.5, np.float32)}
    graph = graph_of(model(nodes, {"x": ["m", 600]}, ["y"], weights), None, {})
    (product,) = Finder(graph).products()
    assert product.op == Op.parse("dense:n=700,k=600")
    np.testing.assert_array_equal(product.weight, weight.T * np.float32(0.5))


def test_fourier_transforms_are_products_of_kernels():
    n, signal = helper.make_node, {"x": ["b", "n"]}
    weights = {"step": np.int64(3), "window": np.hanning(8).astype(np.float32)}
    short = graph_of(model([n("STFT", ["x", "step", "window"], ["y"])], signal, ["y"], weights), None, {})
    assert [product.op for product in Finder(short).products()] == [Op.parse("conv1d:c=1,f=10,s=8,stride=3,layout=nwc")]
    nodes = [n("Mul", ["window", "z"], ["w"]), n("STFT", ["x", "step", "w"], ["y"])]  # a window that comes with the request
    windowed = graph_of(model(nodes, signal | {"z": [8]}, ["y"], weights), None, {})
    assert [product.op for product in Finder(windowed).products()] == [Op.parse("dense:n=10,k=8")]
    whole = graph_of(model([n("DFT", ["x"], ["y"], axis=1)], {"x": ["b", 6, 2]}, ["y"]), None, {})
    assert [product.op for product in Finder(whole).products()] == [Op.parse("dense:n=12,k=12")]


@pytest.mark.parametrize("length", [1, 6, 7])
def test_a_request_decides_how_long_a_fourier_transform_is(length):
    n, draw = helper.make_node, np.random.default_rng(length)
    nodes = [
        n("DFT", ["x"], ["half"], onesided=1),
        n("DFT", ["z"], ["back"], inverse=1),
        n("Shape", ["x"], ["long"], start=1, end=2),
        n("Squeeze", ["long"], ["t"]),
        n("DFT", ["half", "t"], ["again"], inverse=1, onesided=1),
    ]
    shapes = {"x": ["b", "t", 1], "z": ["b", "t", 2]}
    graph = graph_of(model(nodes, shapes, ["half", "back", "again"]), None, {})
    x, z = (draw.standard_normal((2, length, last)).astype(np.float32) for last in (1, 2))
    outputs = interpret(graph, {"x": x, "z": z})
    expected = np.fft.rfft(x[..., 0], axis=1), np.fft.ifft(z[..., 0] + 1j * z[..., 1], axis=1)
    for name, spectrum in zip(("half", "back"), expected, strict=True):
        np.testing.assert_allclose(outputs[name], np.stack([spectrum.real, spectrum.imag], -1), atol=1e-5)
    np.testing.assert_allclose(outputs["again"], x, atol=1e-5)


def test_outputs_keep_their_names_even_where_they_are_inputs():
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["x"], ["z"])]
    graph = graph_of(model(nodes, {"x": ["m"]}, ["y", "z"]), None, {})
    outputs = interpret(graph, {"x": np.arange(3, dtype=np.float32)})
    assert list(outputs) == ["y", "z"]


def test_every_unknown_operator_is_listed_with_where_it_is():
    nodes = [
        helper.make_node("StringNormalizer", ["x"], ["a"], name="first"),
        helper.make_node("Mystery", ["x"], ["b"], name="second", domain="acme"),
        helper.make_node("Mystery", ["x"], ["c"], name="third", domain="acme"),
    ]
    with pytest.raises(UsageError, match=r"acme\.Mystery: 2 \(second, third\); StringNormalizer: 1 \(first\)"):
        graph_of(model(nodes, {"x": ["m"]}, ["b"]), None, {})


def test_sizes_of_the_data_are_dimensions():
    """A range up to the largest of some lengths, twice as long a noise, and the elements above 0, each of them once."""
    n = helper.make_node
    nodes = [
        n("ReduceMax", ["s"], ["most"], keepdims=0),
        n("Cast", ["most"], ["high"], to=FLOAT),
        n("Range", ["nought", "high", "one"], ["steps"]),
        n("Unsqueeze", ["most", "axes"], ["shape"]),
        n("Mul", ["shape", "two"], ["twice"]),
        n("ConstantOfShape", ["twice"], ["like"]),
        n("RandomNormalLike", ["like"], ["noise"], scale=0.0, mean=3.0),
        n("Greater", ["x", "nought"], ["mask"]),
        n("NonZero", ["mask"], ["places"]),
        n("NonZero", ["mask"], ["again"]),
        n("Transpose", ["again"], ["rows"]),
        n("GatherND", ["x", "rows"], ["kept"]),
    ]
    weights = {"nought": np.float32(0), "one": np.float32(1), "axes": np.array([0]), "two": np.array([2])}
    whole = model(nodes, {"x": ["m", 3]}, ["steps", "noise", "kept"], weights)
    whole.graph.input.append(helper.make_tensor_value_info("s", INT64, ["batch"]))
    graph = graph_of(whole, None, {})
    host_primitives = [node.primitive for node in graph.nodes if node.primitive in HOST]
    assert sorted(host_primitives) == ["counted", "nonzero", "random"]
    assert [str(graph.types[output].shape[0]) for output in graph.outputs] == ["length_0", "2*length_0", "count_0"]
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    outputs = interpret(graph, {"x": x, "s": np.array([2, 5, 1])})
    np.testing.assert_array_equal(outputs["kept"], x[x > 0])
    np.testing.assert_array_equal(outputs["steps"], np.arange(5, dtype=np.float32))
    np.testing.assert_array_equal(outputs["noise"], np.full(10, 3, np.float32))


def bad_models() -> dict[str, tuple[Any, str]]:
    n = helper.make_node
    cycle = model([n("Relu", ["b"], ["a"]), n("Relu", ["a"], ["b"])], {"x": [1]}, ["b"])
    twice = model([n("Relu", ["x"], ["a"]), n("Exp", ["x"], ["a"])], {"x": [1]}, ["a"])
    outside = model([n("Add", ["x", "w"], ["y"])], {"x": [1]}, ["y"], {"w": np.zeros(1, np.float32)})
    weight = outside.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = 1
    weight.external_data.add(key="location", value="../../etc/passwd")
    huge = model([n("Add", ["x", "w"], ["y"])], {"x": [1]}, ["y"], {"w": np.zeros(1, np.float32)})
    huge.graph.initializer[0].dims[:] = [1 << 40, 1 << 40]
    free = model([n("Relu", ["x"], ["y"])], {"x": [1]}, ["y"])
    free.graph.input[0].type.tensor_type.ClearField("shape")
    data = model([n("Reshape", ["x", "s"], ["y"])], {"x": [4]}, ["y"])
    data.graph.input.append(helper.make_tensor_value_info("s", INT64, ["n"]))
    lost = model([n("Add", ["x", "w"], ["y"])], {"x": [1]}, ["y"], {"w": np.zeros(1, np.float32)})
    lost.graph.initializer[0].ClearField("raw_data")
    lost.graph.initializer[0].data_location = 1
    lost.graph.initializer[0].external_data.add(key="location", value="nowhere.bin")
    deep = model([n("Relu", ["x"], ["y"])], {"x": [1]}, ["y"]).graph
    for _ in range(20):
        deep = helper.make_graph([n("If", ["x"], ["y"], then_branch=deep, else_branch=deep)], "g", [], deep.output)
        del deep.node[0].attribute[1].g.node[:]
    nested = model([n("Relu", ["x"], ["y"])], {"x": [1]}, ["y"])
    nested.graph.node[0].CopyFrom(deep.node[0])
    loop = model(
        [n("Loop", ["x"], ["y"], name="again", body=deep), n("Scan", ["x"], ["z"], name="rows", body=deep)],
        {"x": [1]},
        ["y"],
    )
    new = model([n("Relu", ["x"], ["y"])], {"x": [1]}, ["y"])
    new.opset_import[0].version = 99
    filled = model([n("ConstantOfShape", ["s"], ["c"]), n("ReduceSum", ["c"], ["r"]), n("Add", ["x", "r"], ["y"])],
                   {"x": [1]}, ["y"], {"s": np.array([1 << 20, 1 << 20])})  # fmt: skip
    return {
        "filled": (filled, "more than 68719476736 elements"),
        "a cycle": (cycle, "no node before it makes"),
        "made twice": (twice, "made already"),
        "outside": (outside, "only files beside the model"),
        "huge": (huge, "more than"),
        "lost": (lost, "nowhere.bin"),
        "nested": (nested, "nested more than 16 deep"),
        "loop": (loop, "nested more than 16 deep"),
        "attribute": (model([n("Resize", ["x"], ["y"], mode="odd")], {"x": [1, 1, 4]}, ["y"]), r"node y \(Resize\)"),
        "no such attribute": (model([n("Relu", ["x"], ["y"], wobble=3)], {"x": [1]}, ["y"]), r"\(Relu\): attribute wobble"),
        "units": (
            model([n("RNN", ["x", "w", "r"], ["y"])], {"x": ["t", 1, 2], "w": [1, "h", 2], "r": [1, "h", "h"]}, ["y"]),
            r"\(RNN\): .*number of units, h, depends on the request",
        ),
        "few gates": (
            lstm(r=(1, 7, 3)),
            r"\(LSTM\): .*weights of the state, turned: expected fp32\[3, 12\], got fp32\[3, 7\]",
        ),
        "few biases": (lstm(bias=(1, 5)), r"\(LSTM\): slice: elements 0 to 11 of axis 0 of fp32\[5\]"),
        "one way": (lstm(r=(1, 12, 3), direction="bidirectional"), r"\(LSTM\): slice: elements 1 to 1 of axis 0"),
        "too few": (model([n("Mul", ["x"], ["y"])], {"x": [1]}, ["y"]), r"\(Mul\): 1 inputs: opset .. has at least 2"),
        "too many": (
            model([n("Relu", ["x", "x"], ["y"])], {"x": [1]}, ["y"]),
            r"\(Relu\): 2 inputs: opset .. has at most 1",
        ),
        "results": (
            model([n("Relu", ["x"], ["y", "z"])], {"x": [1]}, ["y"]),
            r"\(Relu\): 2 outputs: opset .. has at most 1",
        ),
        "window": (
            model([n("MaxPool", ["x"], ["y"], kernel_shape=[3])], {"x": ["b", 1, 2]}, ["y"]),
            "a window of 3 does not",
        ),
        "rank": (free, "number of axes"),
        "data": (data, "depends on data"),
        "opset": (new, "opset 99"),
        "axis": (model([n("Softmax", ["x"], ["y"], axis=5)], {"x": [4]}, ["y"]), r"node y \(Softmax\)"),
        "order": (
            model([n("TopK", ["x", "k"], ["y", "z"], largest=-2)], {"x": [4]}, ["y"], {"k": np.array([2])}),
            "largest=-2; it is 0 or 1",
        ),
        "offsets": (
            deformed((1, 9, 3, 3)),
            r"4 channels, a weight \[2, 4, 2, 2\] in 1 groups and offsets \[1, 9, 3, 3\] in 1",
        ),
        "a window beside its weight": (deformed((1, 8, 3, 3), kernel_shape=[2, 3]), r"\[2, 3\] contradicts the weight"),
        "an output twice": (model([n("Relu", ["x"], ["y"])], {"x": [4]}, ["y", "y"]), "output y is listed twice"),
        "labels": (model([n("Einsum", ["x"], ["y"], equation="ab->a")], {"x": [4]}, ["y"]), "Einsum"),
    }


def deformed(offsets: tuple[int, ...], **settings: Any) -> Any:
    ends = {"x": [1, 4, 4, 4], "w": [2, 4, 2, 2], "o": list(offsets)}
    onnx_model = model([helper.make_node("DeformConv", list(ends), ["y"], **settings)], ends, ["y"])
    onnx_model.opset_import[0].version = 19
    return onnx_model


def lstm(r: tuple[int, ...] = (1, 12, 3), bias: tuple[int, ...] = (1, 24), **settings: Any) -> Any:
    from onnx.helper import make_node

    node = make_node("LSTM", ["x", "w", "r", "bias"], ["y"], hidden_size=3, **settings)
    return model([node], {"x": ["t", "b", 2], "w": [1, 12, 2], "r": r, "bias": bias}, ["y"])


@pytest.mark.parametrize("name", bad_models())
def test_what_cannot_be_read_is_refused_in_words(name):
    bad, words = bad_models()[name]
    with pytest.raises(UsageError, match=words):
        graph_of(bad, Path(), {})


def test_damaged_files_never_end_in_anything_but_words(tmp_path):
    whole, draw, path = heads().SerializeToString(), random.Random(0), tmp_path / "m.onnx"
    with pytest.raises(UsageError, match="cannot be read"):
        read(path)
    path.write_bytes(b"this is no model at all\n" * 9)
    with pytest.raises(UsageError, match=r"m\.onnx"):
        read(path)
    read_well = 0
    for _ in range(150):
        damaged = bytearray(whole[: draw.randrange(len(whole))] if draw.random() < 0.3 else whole)
        for _ in range(draw.randrange(1, 6)):
            if damaged:
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            read(path)
            read_well += 1
        except HaotunerError:
            pass
    assert read_well < 150


def spread_sum(x: Any, w: Any, strides: list[int], pads: list[int], more: list[int], groups: int) -> Any:
    """A transposed convolution by its definition: every element adds its window to the result."""
    n, own, *sizes = w.shape
    whole = [(e - 1) * s + r + m for e, s, r, m in zip(x.shape[2:], strides, sizes, more, strict=True)]
    output = np.zeros((len(x), own * groups, *whole))
    for channel, *position in np.ndindex(n, *x.shape[2:]):
        first = channel * groups // n * own
        box = tuple(slice(p * s, p * s + r) for p, s, r in zip(position, strides, sizes, strict=True))
        at = (slice(None), channel, *position)
        output[:, first : first + own, *box] += np.multiply.outer(x[at], w[channel])
    rank = len(sizes)
    cut = [slice(b, e - a) for b, a, e in zip(pads[:rank], pads[rank:], whole, strict=True)]
    return output[:, :, *cut]


@pytest.mark.parametrize(
    ("weight", "strides", "pads", "more", "groups"),
    [
        ((3, 2, 16), [8], [4, 4], [0], 1),  # a vocoder's
        ((4, 3, 2, 2), [2, 2], [0, 0, 0, 0], [0, 0], 1),  # a segmenter's
        ((4, 1, 5, 3), [2, 3], [1, 0, 2, 1], [1, 2], 2),
        ((2, 1, 1), [4], [0, 0], [3], 1),  # windows with places between them that nobody adds to
        ((2, 1, 4, 3), [1, 2], [3, 1, 0, 1], [0, 1], 2),
    ],
)
def test_a_transposed_convolution_multiplies_no_zeros(weight, strides, pads, more, groups):
    draw = np.random.default_rng(0)
    w, rank = draw.standard_normal(weight).astype(np.float32), len(strides)
    node = helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], strides=strides, pads=pads, output_padding=more, group=groups
    )
    graph = graph_of(model([node], {"x": ["b", weight[0], *"hw"[:rank]]}, ["y"], {"w": w}), None, {})
    (contraction,) = [node for node in graph.nodes if node.primitive == "contract"]
    constant = graph.constants[contraction.inputs[1]]
    assert constant.size <= np.prod([*weight[:2]]) * np.prod(
        [-(-r // s) * s for r, s in zip(weight[2:], strides, strict=True)]
    )
    for extents in ((1, 3), (4, 2)):
        x = draw.standard_normal((2, weight[0], *extents[:rank])).astype(np.float32)
        expected = spread_sum(x, w, strides, pads, more, groups)
        np.testing.assert_allclose(interpret(graph, {"x": x})["y"], expected, atol=1e-5)
