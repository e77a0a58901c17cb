"""What other libraries compute row by row, ready to be called: torch, ONNX Runtime, OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Call = Callable[[], Any]
OPSET, IR = 17, 9  # LayerNormalization came with 17; every ONNX Runtime since 1.13 reads both

# Kinds that race, with how torch and ONNX say them: nodes as (op, inputs, attributes), the last one gives y.
TORCH: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "softmax": lambda f, t: f.softmax(t["x"], -1),
    "layer_norm_scalebias": lambda f, t: f.layer_norm(t["x"], t["x"].shape[-1:], t["scale"], t["bias"]),
    "rms_norm_scale": lambda f, t: f.rms_norm(t["x"], t["x"].shape[-1:], t["scale"], 1e-5),
    "add_layer_norm_scalebias": lambda f, t: f.layer_norm(t["x"] + t["residual"], t["x"].shape[-1:], t["scale"], t["bias"]),
    "bias_gelu": lambda f, t: f.gelu(t["x"] + t["bias"]),
    "silu": lambda f, t: f.silu(t["x"]),
    "reduce_sum": lambda f, t: t["x"].sum(-1),
    "transpose_b1": lambda f, t: t["x"].transpose(1, 2).contiguous(),
    "instance_norm_b1_scalebias_relu": lambda f, t: f.relu(f.instance_norm(t["x"], weight=t["scale"], bias=t["bias"])),
    "group_norm_b1_d4_scalebias": lambda f, t: f.group_norm(
        t["x"].flatten(1, 2), t["x"].shape[1], t["scale"].flatten(), t["bias"].flatten()
    ),
    "reduce_mean": lambda f, t: t["x"].mean(-1),
}
Node = tuple[str, list[str], dict[str, Any]]
ONNX: Mapping[str, list[Node]] = {
    "softmax": [("Softmax", ["x"], {"axis": -1})],
    "layer_norm_scalebias": [("LayerNormalization", ["x", "scale", "bias"], {"axis": -1})],
    "add_layer_norm_scalebias": [
        ("Add", ["x", "residual"], {}),
        ("LayerNormalization", ["t0", "scale", "bias"], {"axis": -1}),
    ],
    "reduce_sum": [("ReduceSum", ["x", "axes"], {"keepdims": 0})],
    "instance_norm_b1_scalebias_relu": [
        ("InstanceNormalization", ["x", "scale", "bias"], {"epsilon": 1e-5}),
        ("Relu", ["t0"], {}),
    ],
    "reduce_mean": [("ReduceMean", ["x"], {"axes": [-1], "keepdims": 0})],
    "transpose_b1": [("Transpose", ["x"], {"perm": [0, 2, 1]})],
    "silu": [("Sigmoid", ["x"], {}), ("Mul", ["x", "t0"], {})],
    "bias_gelu": [
        ("Add", ["x", "bias"], {}),
        ("Div", ["t0", "root"], {}),
        ("Erf", ["t1"], {}),
        ("Add", ["t2", "one"], {}),
        ("Mul", ["t0", "t3"], {}),
        ("Mul", ["t4", "half"], {}),
    ],
}
CONSTANTS = {
    "axes": np.array([-1], np.int64),
    "root": np.float32(np.sqrt(2)),
    "one": np.float32(1),
    "half": np.float32(0.5),
}


def torch_call(name: str, arrays: Mapping[str, Any]) -> Call:
    """Eager, under inference mode (the caller's)."""
    import torch

    tensors = {key: torch.from_numpy(value) for key, value in arrays.items()}
    functional, kind = torch.nn.functional, TORCH[name]
    return lambda: kind(functional, tensors)


def model(name: str, arrays: Mapping[str, Any], output: tuple[int, ...]) -> bytes:
    """A model of one group with every dimension of x unknown; what a server binds once is a constant of it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node(op, inputs, ["y" if index == len(ONNX[name]) - 1 else f"t{index}"], **attributes)
        for index, (op, inputs, attributes) in enumerate(ONNX[name])
    ]
    read = {tensor for node in nodes for tensor in node.input}
    bound = {key: value for key, value in arrays.items() if key in ("scale", "bias")} | CONSTANTS
    initializers = [numpy_helper.from_array(np.asarray(value), key) for key, value in bound.items() if key in read]
    fed = [key for key in arrays if key not in bound]
    inputs = [
        helper.make_tensor_value_info(key, TensorProto.FLOAT, [f"{key}{axis}" for axis in range(arrays[key].ndim)])
        for key in fed
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [f"y{axis}" for axis in range(len(output))])
    graph = helper.make_graph(nodes, name, inputs, [result], initializers)
    model_proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model_proto.ir_version = IR
    onnx.checker.check_model(model_proto)
    serialized: bytes = model_proto.SerializeToString()
    return serialized


def onnxruntime_call(name: str, arrays: Mapping[str, Any], out: Any, threads: int) -> Call:
    """With input and output bound in place."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(model(name, arrays, out.shape), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for end in session.get_inputs():
        array = arrays[end.name]
        binding.bind_input(end.name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    return lambda: session.run_with_iobinding(binding)


def openvino_call(name: str, arrays: Mapping[str, Any], out: Any, threads: int) -> Call:
    """With tensors that share numpy's memory, in fp32."""
    import openvino

    core = openvino.Core()
    read = core.read_model(model(name, arrays, out.shape))
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "f32"}  # fmt: skip
    request = core.compile_model(read, "CPU", settings).create_infer_request()
    for end in read.inputs:
        request.set_tensor(end.get_any_name(), openvino.Tensor(arrays[end.get_any_name()], shared_memory=True))
    request.set_output_tensor(openvino.Tensor(out, shared_memory=True))
    return lambda: request.infer()
