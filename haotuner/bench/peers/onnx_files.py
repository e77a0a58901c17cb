"""ONNX Runtime and OpenVINO: a file of one op, what a server binds as its constants, operands and result bound in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.contender import Call, Operands, Setting, only, poison
from haotuner.bench.images import channels_last
from haotuner.bench.operands import bound, images_of, plain_layer
from haotuner.bench.peers.on_host import onnxruntime_options, openvino_settings
from haotuner.bench.peers.onnx_builder import model
from haotuner.spec.op import Op


class _OfFiles(ABC):
    """What both share: images channels first, a file for each copy of what is bound, loaded when a call asks for it."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import onnx

        self._onnx = onnx
        self._op: Any = None
        self._last = False
        self._made: list[Any] = []  # what was loaded of a file for each copy: dynamic extents are open
        self._fed: list[Operands] = []
        self._calls: list[Call] = []
        self._y: NDArray[Any] = np.empty(0)

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Files are loaded as soon as a call asks for them."""
        only(op.dtype, "fp32", "int8")
        self._made, self._calls, self._fed = [], [], []
        self._op, self._last = op, channels_last(op)

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One call a copy, all into the same output."""
        selected = bound(self._op)
        images = {name: _channels_first(calls[0][name]) for name in images_of(self._op)} if self._last else {}
        inputs = [{**operands, **images} for operands in calls]
        if self._last:
            y = np.empty(np.moveaxis(y, -1, 1).shape, y.dtype)
        y = self.output(y)
        files = inputs if selected else inputs[:1]
        self._made += [self.loaded(file, y) for file in files[len(self._made) :]]
        self._fed = [{name: values for name, values in item.items() if name not in selected} for item in inputs]
        self._y = y  # libraries point into both
        self._calls = [self.call(self._made[index % len(self._made)], fed, y) for index, fed in enumerate(self._fed)]
        return self._calls

    def result(self, index: int) -> NDArray[Any]:
        """Into a poisoned output."""
        poison(self._y)
        self._calls[index]()
        return np.moveaxis(self._y, 1, -1) if self._last else self._y

    def output(self, y: NDArray[Any]) -> NDArray[Any]:
        """Room for the result: of the op's type, where the library has that."""
        return y

    def file(self, operands: Operands, y: NDArray[Any]) -> bytes:
        """The op as a file; what is bound is a constant."""
        return model(self._onnx, self._op, operands, y)

    @abstractmethod
    def loaded(self, operands: Operands, y: NDArray[Any]) -> Any:
        """The op, ready to run; what is bound is a constant."""

    @abstractmethod
    def call(self, loaded: Any, fed: Mapping[str, NDArray[Any]], y: NDArray[Any]) -> Callable[[], Any]:
        """What is timed."""


class Onnxruntime(_OfFiles):
    """``InferenceSession.run_with_iobinding``."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        import onnxruntime

        self._runtime, self._options = onnxruntime, onnxruntime_options(onnxruntime, setting.threads)
        self.version = str(onnxruntime.__version__)

    def loaded(self, operands: Operands, y: NDArray[Any]) -> Any:
        """A session."""
        return self._runtime.InferenceSession(self.file(operands, y), self._options, providers=["CPUExecutionProvider"])

    def call(self, loaded: Any, fed: Mapping[str, NDArray[Any]], y: NDArray[Any]) -> Callable[[], Any]:
        """One run with everything bound."""
        binding = loaded.io_binding()
        for name, values in fed.items():
            binding.bind_input(name, "cpu", 0, values.dtype, values.shape, values.ctypes.data)
        binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)
        return partial(loaded.run_with_iobinding, binding)


class Openvino(_OfFiles):
    """``InferRequest.infer()``, latency hint, in fp32 unless the op is of bytes."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        import openvino
        import openvino.opset13

        self._openvino = openvino
        self.version = str(openvino.__version__)
        self._core = openvino.Core()
        self._config = openvino_settings(setting.threads)

    def output(self, y: NDArray[Any]) -> NDArray[Any]:
        """Sums of bytes come as fp32."""
        return np.empty(y.shape, np.float32) if self._sums_bytes else y

    def loaded(self, operands: Operands, y: NDArray[Any]) -> Any:
        """A compiled model."""
        read = self._of_bytes(operands["weight"]) if self._sums_bytes else self._core.read_model(self.file(operands, y))
        return self._core.compile_model(read, "CPU", self._config)

    def call(self, loaded: Any, fed: Mapping[str, NDArray[Any]], y: NDArray[Any]) -> Callable[[], Any]:
        """One inference on tensors that share numpy's memory."""
        request = loaded.create_infer_request()
        for name, values in fed.items():
            request.set_tensor(name, self._openvino.Tensor(values, shared_memory=True))
        request.set_tensor("y", self._openvino.Tensor(y, shared_memory=True))
        return partial(request.infer)

    @property
    def _sums_bytes(self) -> bool:
        return plain_layer(self._op) and self._op.sums == "int32"

    def _of_bytes(self, weight: NDArray[Any]) -> Any:
        """Model that the rules for quantised layers look for, to multiply bytes; conversions it would compute in fp32."""
        build, rows = self._openvino.opset13, weight.shape[0]
        x = build.parameter([-1, weight.shape[1]], np.uint8, name="x")
        low, high = (build.constant(np.array(value, np.float32)) for value in (0, 255))
        quantised = build.fake_quantize(build.convert(x, np.float32), low, high, low, high, 256)
        scaled = build.multiply(
            build.convert(build.constant(weight), np.float32), build.constant(np.ones((rows, 1), np.float32))
        )
        result = build.result(build.matmul(quantised, scaled, False, True))
        x.output(0).set_names({"x"})
        result.output(0).set_names({"y"})
        return self._openvino.Model([result], [x])


def _channels_first(image: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(np.moveaxis(image, -1, 1))
