"""ONNX Runtime: one MatMul model a weight, the weight a constant so that it is packed when the session is made."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from haotuner.bench.contender import Array, Call, Setting, only
from haotuner.bench.encoding import encoded
from haotuner.bench.images import ConvAttributes, output_shape
from haotuner.bench.peers.on_host import onnxruntime_options
from haotuner.ops.convolution import is_convolution
from haotuner.spec.op import Op

OPSET = 17  # any opset has Gemm; 17 is read by every ONNX Runtime since 1.13
IR = 9  # what opset 17 came with: a newer onnx package would otherwise write a file that an older runtime refuses


class OnnxruntimeCpu:
    """``InferenceSession.run_with_iobinding`` with input and output bound in place."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import onnx
        import onnxruntime

        self._onnx, self._runtime = onnx, onnxruntime
        self.version = str(onnxruntime.__version__)
        self._options = onnxruntime_options(onnxruntime, setting.threads)
        self._sessions: list[Any] = []
        self._y: Any = np.empty((0, 0), np.float32)
        self._x: Any = self._y
        self._bindings: list[Any] = []
        self._n = 0
        self._op: Any = None
        self._told: ConvAttributes | None = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """A session a weight; m stays symbolic."""
        only(op.dtype, "fp32", "int8")
        self._bindings, self._sessions = [], []
        self._told = ConvAttributes.of(op) if is_convolution(op.kind) else None
        self._op, self._n = op, 0 if self._told else op["n"]
        for weight in weights:
            model = self._model(weight)
            self._sessions.append(self._runtime.InferenceSession(model, self._options, providers=["CPUExecutionProvider"]))

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """One call a weight, all into the same output."""
        self._x, self._y = x, np.empty((x.shape[0], self._n), np.float32)
        if self._op.dtype == "int8":
            self._x, self._y = encoded(x, "uint8"), np.empty((x.shape[0], self._n), np.int32)
        if self._told is not None:  # its layout is channels first
            self._x, self._y = np.ascontiguousarray(self._told.first(x)), np.empty(output_shape(self._op, x), np.float32)
        self._bindings = [self._bind(session) for session in self._sessions]
        return [
            partial(session.run_with_iobinding, binding)
            for session, binding in zip(self._sessions[:count], self._bindings, strict=False)
        ]

    def result(self, index: int) -> Array:
        """Into a poisoned output."""
        self._y.fill(np.nan if self._y.dtype.kind == "f" else np.iinfo(self._y.dtype).max)
        self._sessions[index].run_with_iobinding(self._bindings[index])
        result: Array = self._y if self._told is None else self._told.stored(self._y)
        return result

    def _bind(self, session: Any) -> Any:
        binding = session.io_binding()
        binding.bind_input("x", "cpu", 0, self._x.dtype.type, self._x.shape, self._x.ctypes.data)
        binding.bind_output("y", "cpu", 0, self._y.dtype.type, self._y.shape, self._y.ctypes.data)
        return binding

    def _model(self, weight: Array) -> bytes:
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        if self._told is not None:
            return self._convolution(weight, self._told)
        n, k = weight.shape
        node, stored, kinds = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1), weight, (kind, kind)
        if self._op.dtype == "int8":
            node, stored = helper.make_node("MatMulInteger", ["x", "w"], ["y"]), np.ascontiguousarray(weight.T)
            stored, kinds = encoded(stored, "int8"), (self._onnx.TensorProto.UINT8, self._onnx.TensorProto.INT32)
        graph = helper.make_graph(
            [node],
            "linear",
            [helper.make_tensor_value_info("x", kinds[0], ["m", k])],
            [helper.make_tensor_value_info("y", kinds[1], ["m", n])],
            [self._onnx.numpy_helper.from_array(stored, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = IR
        data: bytes = model.SerializeToString()
        return data

    def _convolution(self, weight: Array, facts: ConvAttributes) -> bytes:
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        more = {"output_padding": facts.more} if facts.transposed else {}
        node = helper.make_node(
            "ConvTranspose" if facts.transposed else "Conv",
            ["x", "w"],
            ["y"],
            strides=facts.stride,
            pads=(*facts.pad, *facts.pad),
            dilations=facts.dilation,
            group=facts.groups,
            **more,
        )
        sides = ["w"] if facts.flat else ["h", "w"]
        after = ["q"] if facts.flat else ["p", "q"]
        graph = helper.make_graph(
            [node],
            "convolution",
            [helper.make_tensor_value_info("x", kind, ["b", self._op["c"], *sides])],
            [helper.make_tensor_value_info("y", kind, ["b", self._op["f"], *after])],
            [self._onnx.numpy_helper.from_array(weight, "w")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = IR
        data: bytes = model.SerializeToString()
        return data
