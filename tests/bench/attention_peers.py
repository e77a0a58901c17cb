"""Attention as other libraries compute it, ready to be called: torch's SDPA, ONNX Runtime (two ways), OpenVINO's SDPA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Call = Callable[[], Any]
Arrays = Mapping[str, Any]  # q, k, v: heads x tokens x depth
OPSET, IR = 17, 9


def torch_call(arrays: Arrays, causal: bool) -> Call:
    """Eager, under inference mode (the caller's): on a CPU that is torch's own flash kernel."""
    import torch

    q, k, v = (torch.from_numpy(arrays[name])[None] for name in "qkv")
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=causal)


def plain_model(depth: int) -> bytes:
    """Product, scale, softmax, product: what an exporter writes. Not causal."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Transpose", ["k"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "turned"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", "t" if n == "q" else "s", depth]) for n in "qkv"]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "t", depth])
    scale = numpy_helper.from_array(np.float32(depth**-0.5), "scale")
    return _written(helper.make_graph(nodes, "plain", inputs, [result], [scale]))


def multi_head_model(heads: int, depth: int, causal: bool) -> bytes:
    """ONNX Runtime's own operator, in its own layout: tokens x (heads x depth)."""
    from onnx import TensorProto, helper

    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=heads, unidirectional=int(causal)
    )
    width = heads * depth
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, "t" if n == "q" else "s", width]) for n in "qkv"]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "t", width])
    return _written(helper.make_graph([node], "multi_head", inputs, [result]))


def _written(graph: Any) -> bytes:
    from onnx import helper

    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = IR
    serialized: bytes = model.SerializeToString()
    return serialized


def onnxruntime_call(model: bytes, arrays: Arrays, out: Any, threads: int) -> Call:
    """With input and output bound in place."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name in "qkv":
        binding.bind_input(name, "cpu", 0, np.float32, arrays[name].shape, arrays[name].ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    bound = (arrays, out)  # what is bound lives as long as the call

    def call() -> Any:
        assert bound
        session.run_with_iobinding(binding)

    return call


def multi_head_arrays(arrays: Arrays) -> dict[str, Any]:
    """The same numbers as that operator has them."""
    return {name: np.ascontiguousarray(a.transpose(1, 0, 2)).reshape(1, a.shape[1], -1) for name, a in arrays.items()}


def openvino_call(arrays: Arrays, out: Any, causal: bool, threads: int) -> Call:
    """Its ScaledDotProductAttention, in fp32, with tensors that share numpy's memory."""
    import openvino
    from openvino import opset13

    depth = arrays["q"].shape[-1]
    nodes = [opset13.parameter([1, -1, -1, depth], np.float32, name=name) for name in "qkv"]
    model = openvino.Model([opset13.scaled_dot_product_attention(*nodes, causal=causal)], nodes)
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "f32"}  # fmt: skip
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    for index, name in enumerate("qkv"):
        request.set_input_tensor(index, openvino.Tensor(arrays[name][None], shared_memory=True))
    request.set_output_tensor(openvino.Tensor(out[None], shared_memory=True))
    return lambda: request.infer()
