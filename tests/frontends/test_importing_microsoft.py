"""Operators that ONNX Runtime's optimisers write, a node each: against ONNX Runtime itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
DRAW = np.random.default_rng(0)
B, S, T, H, D = 2, 5, 7, 4, 8  # batch, queries, keys, heads, depth
W = H * D


def n(*shape: int) -> Any:
    return (DRAW.standard_normal(shape) / 2).astype(np.float32)


def whole(low: int, high: int, *shape: int, dtype: Any = np.int32) -> Any:
    return DRAW.integers(low, high, shape).astype(dtype)


def scale(value: float) -> Any:
    return np.float32(value)


def zero(value: int, dtype: Any = np.uint8) -> Any:
    return np.array(value, dtype)


X, MASK = n(B, S, W), np.array([[1] * S, [1, 1, 1, 0, 0]], np.int32)
IDS, PAST = whole(0, 9, B, S), n(2, B, H, 3, D)
Q = whole(0, 255, B, 3, 6, 6, dtype=np.uint8)
BYTES = [Q, scale(0.04), zero(120)]
ANGLES = n(16, D // 2), n(16, D // 2)
G = 16  # depth of heads that share keys
CACHE, CACHES = (n(1, 2, 3, G), n(1, 2, 3, G)), (n(B, 2, 3, G), n(B, 2, 3, G))
KEYS = [np.full(1, 2 + S, np.int32), np.array(3 + S, np.int32)]
# operator, inputs (None: left out), attributes, outputs that are compared
CASES: dict[str, tuple[str, list[Any], Mapping[str, Any], int]] = {
    "gelu": ("Gelu", [X], {}, 1),
    "bias_gelu": ("BiasGelu", [X, n(W)], {}, 1),
    "fast_gelu": ("FastGelu", [X, n(W)], {}, 1),
    "quick_gelu": ("QuickGelu", [X], {"alpha": 1.5}, 1),
    "fused_matmul": ("FusedMatMul", [n(2, 3, 5), n(2, 4, 5)], {"transB": 1, "alpha": 0.5}, 1),
    "fused_matmul_a": ("FusedMatMul", [n(2, 5, 3), n(2, 5, 4)], {"transA": 1}, 1),
    "fused_gemm": ("FusedGemm", [n(3, 5), n(4, 5), n(4)],
                   {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.2}, 1),
    "fused_conv": ("FusedConv", [n(1, 3, 6, 7), n(4, 3, 3, 3), n(4)], {"pads": [1] * 4, "activation": "Relu"}, 1),
    "fused_conv_sum": ("FusedConv", [n(1, 3, 6, 7), n(4, 3, 1, 1), n(4), n(1, 4, 6, 7)],
                       {"kernel_shape": [1, 1], "activation": "Clip", "activation_params": [0.0, 0.3]}, 1),
    "skip_norm": ("SkipLayerNormalization", [X, n(B, S, W), n(W), n(W), n(W)], {"epsilon": 1e-5}, 4),
    "skip_rms": ("SkipSimplifiedLayerNormalization", [X, n(B, S, W), n(W)], {"epsilon": 1e-5}, 4),
    "embedded": ("EmbedLayerNormalization", [IDS, IDS % 2, n(9, W), n(16, W), n(2, W), n(W), n(W), MASK], {}, 2),
    "attention": ("Attention", [X, n(W, 3 * W), n(3 * W), MASK], {"num_heads": H}, 1),
    "attention_lengths": ("Attention", [X, n(W, 3 * W), n(3 * W), np.array([5, 3], np.int32)], {"num_heads": H}, 1),
    "attention_past": ("Attention", [X, n(W, 3 * W), n(3 * W), None, PAST], {"num_heads": H, "unidirectional": 1}, 2),
    "heads": ("MultiHeadAttention", [X, n(B, T, W), n(B, T, W), n(3 * W), None, n(1, H, S, T)], {"num_heads": H}, 1),
    "heads_masked": ("MultiHeadAttention", [X, X, X, None, MASK], {"num_heads": H, "scale": 0.3}, 1),
    "heads_past": ("MultiHeadAttention", [X, X, X, n(3 * W), None, None, *PAST], {"num_heads": H}, 3),
    "grouped": ("GroupQueryAttention",
                [n(1, S, H * G), n(1, S, 2 * G), n(1, S, 2 * G), *CACHE, *KEYS, n(16, G // 2), n(16, G // 2)],
                {"num_heads": H, "kv_num_heads": 2, "do_rotary": 1}, 3),
    "grouped_one": ("GroupQueryAttention",
                    [n(B, 1, H * G), n(B, 1, 2 * G), n(B, 1, 2 * G), *CACHES, np.full(B, 3, np.int32), KEYS[1] // 2],
                    {"num_heads": H, "kv_num_heads": 2, "softcap": 2.0}, 3),
    "grouped_window": ("GroupQueryAttention", [n(1, S, (H + 4) * G), None, None, *CACHE, *KEYS],
                       {"num_heads": H, "kv_num_heads": 2, "local_window_size": 4}, 3),
    "rotary": ("RotaryEmbedding", [n(B, H, S, D), whole(0, 16, B, S, dtype=np.int64), *ANGLES], {"interleaved": 1}, 1),
    "rotary_from": ("RotaryEmbedding", [n(B, S, W), np.array([3], np.int64), *ANGLES], {}, 1),
    "bits4": ("MatMulNBits", [n(3, 64), whole(0, 256, 5, 2, 16, dtype=np.uint8), n(10), whole(0, 256, 5, dtype=np.uint8)],
              {"N": 5, "K": 64, "bits": 4, "block_size": 32}, 1),
    "q_add": ("QLinearAdd", [*BYTES, Q[:, :, :1], scale(0.03), zero(99), scale(0.06), zero(128)], {}, 1),
    "q_mul": ("QLinearMul", [*BYTES, Q, scale(0.03), zero(99), scale(0.09), zero(128)], {}, 1),
    "q_sigmoid": ("QLinearSigmoid", [*BYTES, scale(1 / 256), zero(0)], {}, 1),
    "q_leaky": ("QLinearLeakyRelu", [*BYTES, scale(0.03), zero(60)], {"alpha": 0.1}, 1),
    "q_pool": ("QLinearGlobalAveragePool", [*BYTES, scale(0.02), zero(100)], {}, 1),
    "q_average": ("QLinearAveragePool", [*BYTES, scale(0.02), zero(100)], {"kernel_shape": [2, 2]}, 1),
    "q_concat": ("QLinearConcat", [scale(0.05), zero(100), *BYTES, Q, scale(0.03), zero(9)], {"axis": 1}, 1),
    "q_gemm": ("QGemm", [Q[0, 0], scale(0.04), zero(120), whole(-9, 9, 4, 6, dtype=np.int8), scale(0.1), zero(0, np.int8),
                         whole(-99, 99, 4), scale(0.3), zero(128)], {"transB": 1}, 1),
    "integers": ("MatMulIntegerToFloat", [Q[0, 0], Q[0, 1], scale(0.04), scale(0.02), zero(120), zero(90), n(6)], {}, 1),
    "dynamic": ("DynamicQuantizeMatMul", [n(3, 6), Q[0, 1], scale(0.02), zero(90), n(6)], {}, 1),
}  # fmt: skip

CONSTANTS = {"MatMulNBits": (1, 2, 3), "DynamicQuantizeLSTM": (1, 2, 8, 9, 10, 11)}  # inputs that hold weights
# Rounded to bytes at each token: the states of all sequences together by ONNX Runtime, those of each by itself by ours.
# Weights of at most 63: two products of bytes then fit 16 bits, in which ONNX Runtime adds them on AVX2 without VNNI.
LSTMS: dict[str, tuple[str, list[Any], Mapping[str, Any], int]] = {
    "signed": (
        "DynamicQuantizeLSTM",
        [n(6, B, 5), whole(-63, 63, 1, 5, 16, dtype=np.int8), whole(-63, 63, 1, 4, 16, dtype=np.int8), n(1, 32), None,
         None, None, None, np.full(1, 0.008, np.float32), np.zeros(1, np.int8), np.full(1, 0.01, np.float32),
         np.zeros(1, np.int8)],
        {"hidden_size": 4}, 3,
    ),
    "both_ways_by_column": (
        "DynamicQuantizeLSTM",
        [n(6, B, 5), whole(0, 250, 2, 5, 16, dtype=np.uint8), whole(0, 250, 2, 4, 16, dtype=np.uint8), n(2, 32),
         np.array([6, 4], np.int32), n(2, B, 4), n(2, B, 4), n(2, 12),
         DRAW.uniform(0.002, 0.004, (2, 16)).astype(np.float32), np.full((2, 16), 117, np.uint8),
         DRAW.uniform(0.002, 0.004, (2, 16)).astype(np.float32), np.full((2, 16), 131, np.uint8)],
        {"hidden_size": 4, "direction": "bidirectional"}, 3,
    ),
}  # fmt: skip


def model(op: str, inputs: list[Any], attributes: Mapping[str, Any], outputs: int) -> tuple[Any, dict[str, Any]]:
    helper = onnx.helper
    feeds = {f"x{index}": np.asarray(value) for index, value in enumerate(inputs) if value is not None}
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    weights = {f"x{index}" for index in CONSTANTS.get(op, ())} & feeds.keys()
    ins = [
        helper.make_tensor_value_info(name, types[name], array.shape) for name, array in feeds.items() if name not in weights
    ]
    initializers = [onnx.numpy_helper.from_array(feeds[name], name) for name in sorted(weights)]
    skipped = {1, 2} if outputs == 4 else set()
    names = ["" if index in skipped else f"y{index}" for index in range(outputs)]
    outs = [onnx.ValueInfoProto(name=name) for name in names if name]
    node = helper.make_node(
        op,
        [f"x{index}" if value is not None else "" for index, value in enumerate(inputs)],
        names,
        domain="com.microsoft",
        **attributes,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", ins, outs, initializers)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9), {k: v for k, v in feeds.items() if k not in weights}


@pytest.mark.parametrize("name", CASES)
def test_a_node_computes_what_onnx_runtime_does(name: str) -> None:
    whole_model, feeds = model(*CASES[name])
    expected = ort.InferenceSession(whole_model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    outputs = interpret(graph_of(whole_model, None, {}), feeds)
    for mine, theirs in zip(outputs.values(), expected, strict=True):
        assert mine.dtype == theirs.dtype
        if theirs.dtype.kind in "iu":  # a number between two bytes may be rounded to either
            assert np.max(np.abs(mine.astype(int) - theirs.astype(int)), initial=0) <= 1
        else:
            np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", LSTMS)
def test_an_lstm_of_bytes_is_within_the_steps_that_onnx_runtime_rounds_to(name: str) -> None:
    whole_model, feeds = model(*LSTMS[name])
    expected = ort.InferenceSession(whole_model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    outputs = interpret(graph_of(whole_model, None, {}), feeds)
    for mine, theirs in zip(outputs.values(), expected, strict=True):
        assert mine.shape == theirs.shape and np.max(np.abs(theirs)) > 0.1
        np.testing.assert_allclose(mine, theirs, atol=5e-3)


def _first(inputs: list[Any]) -> list[Any]:
    """Of an LSTM's inputs those of the first sequence: x, the first states, lengths."""
    along = {0: 1, 4: 0, 5: 1, 6: 1}
    return [
        np.take(array, [0], along[at]) if at in along and array is not None else array for at, array in enumerate(inputs)
    ]


@pytest.mark.parametrize("name", LSTMS)
def test_an_lstm_of_bytes_rounds_what_onnx_runtime_rounds_of_one_sequence(name: str) -> None:
    op, inputs, attributes, outputs = LSTMS[name]
    whole_model, feeds = model(op, _first(inputs), attributes, outputs)
    expected = ort.InferenceSession(whole_model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    results = interpret(graph_of(whole_model, None, {}), feeds)
    for mine, theirs in zip(results.values(), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-6)


def test_what_no_rule_knows_is_refused_in_words() -> None:
    whole_model, _ = model("Attention", [X, n(W, 3 * W), n(3 * W)], {"num_heads": H, "do_rotary": 1}, 1)
    with pytest.raises(UsageError, match="do_rotary"):
        graph_of(whole_model, None, {})
