"""OpenVINO: one compiled MatMul a weight, m dynamic, latency hint, in fp32 or, of bytes, in int8."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from haotuner.bench.contender import Array, Call, Setting, only
from haotuner.bench.encoding import encoded
from haotuner.bench.images import ConvAttributes, output_shape
from haotuner.bench.peers.on_host import openvino_settings
from haotuner.ops.convolution import is_convolution
from haotuner.spec.op import Op


class OpenvinoCpu:
    """``InferRequest.infer()`` with input and output tensors that share numpy's memory."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import openvino
        import openvino.opset13

        self._openvino = openvino
        self.version = str(openvino.__version__)
        self._core = openvino.Core()
        self._config = openvino_settings(setting.threads)
        self._requests: list[Any] = []
        self._y = np.empty((0, 0), np.float32)
        self._n = 0
        self._op: Any = None
        self._x: Any = None
        self._told: ConvAttributes | None = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Compile a model a weight; the weight is a constant, so it is packed here or at the first call."""
        only(op.dtype, "fp32", "int8")
        self._requests = []
        self._told = ConvAttributes.of(op) if is_convolution(op.kind) else None
        self._op, self._n = op, 0 if self._told else op["n"]
        self._requests = [
            self._core.compile_model(self._model(w), "CPU", self._config).create_infer_request() for w in weights
        ]

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """One call a weight, all into the same output."""
        tensor = self._openvino.Tensor
        self._y = np.empty((x.shape[0], self._n), np.float32)
        if self._told is not None:  # its layout is channels first
            x, self._y = np.ascontiguousarray(self._told.first(x)), np.empty(output_shape(self._op, x), np.float32)
            self._x = x
        elif self._op.dtype == "int8":
            x = self._x = encoded(x, "uint8")
        for request in self._requests:
            request.set_input_tensor(tensor(x, shared_memory=True))
            request.set_output_tensor(tensor(self._y, shared_memory=True))
        return [partial(request.infer) for request in self._requests[:count]]

    def result(self, index: int) -> Array:
        """Into a poisoned output."""
        self._y.fill(np.nan)
        self._requests[index].infer()
        return self._y if self._told is None else self._told.stored(self._y)

    def _model(self, weight: Array) -> Any:
        build, description = self._openvino.opset13, self._told
        if description is not None:
            sides = [-1] * len(description.stride)
            image = build.parameter([-1, self._op["c"], *sides], np.float32)
            window = (description.stride, description.pad, description.pad, description.dilation)
            if description.transposed:
                result = self._transposed(image, weight, description)
            elif description.groups == 1:
                result = build.convolution(image, build.constant(weight), *map(list, window))
            else:
                parts = weight.reshape(description.groups, weight.shape[0] // description.groups, *weight.shape[1:])
                result = build.group_convolution(image, build.constant(parts), *map(list, window))
            return self._openvino.Model([build.result(result)], [image])
        if self._op.dtype == "int8":
            return self._of_bytes(weight)
        x = build.parameter([-1, weight.shape[1]], np.float32)
        product = build.matmul(x, build.constant(weight), False, True)
        return self._openvino.Model([build.result(product)], [x])

    def _of_bytes(self, weight: Array) -> Any:
        """What its rules for quantised layers look for, to multiply bytes; plain conversions it would compute in fp32."""
        build, rows = self._openvino.opset13, weight.shape[0]
        x = build.parameter([-1, weight.shape[1]], np.uint8)
        low, high = (build.constant(np.array(value, np.float32)) for value in (0, 255))
        quantised = build.fake_quantize(build.convert(x, np.float32), low, high, low, high, 256)
        stored = build.convert(build.constant(encoded(weight, "int8")), np.float32)
        scaled = build.multiply(stored, build.constant(np.ones((rows, 1), np.float32)))
        return self._openvino.Model([build.result(build.matmul(quantised, scaled, False, True))], [x])

    def _transposed(self, image: Any, weight: Array, facts: ConvAttributes) -> Any:
        build = self._openvino.opset13
        window = dict(strides=list(facts.stride), pads_begin=list(facts.pad), pads_end=list(facts.pad),
                      dilations=list(facts.dilation), output_padding=list(facts.more))  # fmt: skip
        if facts.groups == 1:
            return build.convolution_backprop_data(image, build.constant(weight), **window)
        parts = weight.reshape(facts.groups, weight.shape[0] // facts.groups, *weight.shape[1:])
        return build.group_convolution_backprop_data(image, build.constant(parts), **window)
