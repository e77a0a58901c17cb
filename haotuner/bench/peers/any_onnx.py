"""ONNX Runtime and OpenVINO in a race of any op: a file of one op, operands and result bound in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.any_op import Operands, bound, images_of, of_call, shape_of
from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.images import ConvAttributes
from haotuner.bench.peers.on_host import onnxruntime_options, openvino_settings
from haotuner.bench.peers.onnx_builder import model
from haotuner.ops.convolution import is_convolution
from haotuner.spec import numerics
from haotuner.spec.op import Op


class _OfFiles(ABC):
    """What both share: images channels first, a result that nobody wrote yet."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import onnx

        self._onnx = onnx
        self._op: Any = None
        self._weights: Sequence[Operands] = ()
        self._made: list[Any] = []  # what was loaded of a file for each weight: extents are open
        self._held: list[Any] = []
        self._calls: list[Call] = []
        self._y: NDArray[Any] = np.empty(0)

    def prepare(self, op: Op, weights: Sequence[Operands]) -> None:
        """Keep the weights; files of them are loaded as soon as a call asks for them."""
        self._made, self._calls, self._held = [], [], []
        self._op, self._weights = op, weights

    def aim(self, operands: Operands, count: int) -> Sequence[Call]:
        """One call a copy, all into the same output."""
        op, output = self._op, self._op.meaning.output
        output_ = np.empty(op.operand_shape(output, shape_of(op, operands)), numerics.numpy_dtype(op.dtype_of(output)))
        inputs, y = dict(operands), output_
        if self._last:
            y = np.empty(np.moveaxis(output_, -1, 1).shape, output_.dtype)
            inputs |= {name: np.ascontiguousarray(np.moveaxis(inputs[name], -1, 1)) for name in images_of(op)}
        every = [of_call(op, inputs, self._weights, index) for index in range(count)]
        files = every if bound(op) else every[:1]
        self._made += [self.loaded(model(self._onnx, op, file, y)) for file in files[len(self._made) :]]
        self._held = [{name: values for name, values in item.items() if name not in bound(op)} for item in every]
        self._y = y  # libraries point into both
        self._calls = [self.call(self._made[index % len(self._made)], fed, y) for index, fed in enumerate(self._held)]
        return self._calls

    def result(self, index: int) -> Array:
        """Into a poisoned output."""
        self._y.view(np.uint8).fill(0x7F)
        self._calls[index]()
        result: Array = np.moveaxis(self._y, 1, -1) if self._last else self._y
        return result

    @property
    def _last(self) -> bool:
        return is_convolution(self._op.kind) and ConvAttributes.of(self._op).last

    @abstractmethod
    def loaded(self, data: bytes) -> Any:
        """A file, ready to run."""

    @abstractmethod
    def call(self, loaded: Any, fed: Mapping[str, NDArray[Any]], y: NDArray[Any]) -> Callable[[], Any]:
        """What is timed."""


class OnnxruntimeAnyOp(_OfFiles):
    """``InferenceSession.run_with_iobinding``."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        import onnxruntime

        self._runtime, self._options = onnxruntime, onnxruntime_options(onnxruntime, setting.threads)
        self.version = str(onnxruntime.__version__)

    def loaded(self, data: bytes) -> Any:
        """A session."""
        return self._runtime.InferenceSession(data, self._options, providers=["CPUExecutionProvider"])

    def call(self, loaded: Any, fed: Mapping[str, NDArray[Any]], y: NDArray[Any]) -> Callable[[], Any]:
        """One run with everything bound."""
        binding = loaded.io_binding()
        for name, values in fed.items():
            binding.bind_input(name, "cpu", 0, values.dtype, values.shape, values.ctypes.data)
        binding.bind_output("y", "cpu", 0, y.dtype, y.shape, y.ctypes.data)
        return lambda: loaded.run_with_iobinding(binding)


class OpenvinoAnyOp(_OfFiles):
    """``InferRequest.infer()``, latency hint, in fp32 unless the file quantises."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        import openvino

        self._openvino = openvino
        self.version = str(openvino.__version__)
        self._core = openvino.Core()
        self._config = openvino_settings(setting.threads)

    def loaded(self, data: bytes) -> Any:
        """A compiled model."""
        return self._core.compile_model(self._core.read_model(data), "CPU", self._config)

    def call(self, loaded: Any, fed: Mapping[str, NDArray[Any]], y: NDArray[Any]) -> Callable[[], Any]:
        """One inference on tensors that share numpy's memory."""
        request = loaded.create_infer_request()
        for name, values in fed.items():
            request.set_tensor(name, self._openvino.Tensor(values, shared_memory=True))
        request.set_tensor("y", self._openvino.Tensor(y, shared_memory=True))
        return request.infer  # type: ignore[no-any-return]
