"""ONNX Runtime and OpenVINO in a race of any op: a file of one op, operands and result bound in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner import judge
from haotuner.bench.any_op import Operands, bound, images_of, shape_of
from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.images import Told
from haotuner.bench.peers.on_host import openvino_settings
from haotuner.bench.peers.onnx_words import model
from haotuner.ops.convolution import is_convolution
from haotuner.words.op import Op


class _OfFiles(ABC):
    """What both share: images channels first, a result that nobody wrote yet."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import onnx

        self._onnx = onnx
        self._op: Any = None
        self._made: tuple[bytes, Any] = b"", None  # a file and what was loaded of it: extents are open
        self._held: Any = None
        self._call: Callable[[], Any] = lambda: None
        self._y: NDArray[Any] = np.empty(0)

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Operands come with the shape."""
        self._op = op

    def aim(self, operands: Operands, count: int) -> Sequence[Call]:
        """The same call as often as asked."""
        op, output = self._op, self._op.meaning.output
        kept = np.empty(op.operand_shape(output, shape_of(op, operands)), judge.numpy_dtype(op.dtype_of(output)))
        given, y = dict(operands), kept
        if self._last:
            y = np.empty(np.moveaxis(kept, -1, 1).shape, kept.dtype)
            given |= {name: np.ascontiguousarray(np.moveaxis(given[name], -1, 1)) for name in images_of(op)}
        data = model(self._onnx, op, given, y)
        if self._made[0] != data:
            self._made = data, self.loaded(data)
        fed = {name: values for name, values in given.items() if name not in bound(op)}
        self._held, self._y = fed, y  # libraries point into them
        self._call = self.call(self._made[1], fed, y)
        return [self._call] * count

    def result(self, index: int) -> Array:
        """Into a poisoned output."""
        self._y.view(np.uint8).fill(0x7F)
        self._call()
        found: Array = np.moveaxis(self._y, 1, -1) if self._last else self._y
        return found

    @property
    def _last(self) -> bool:
        return is_convolution(self._op.kind) and Told.of(self._op).last

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

        self._runtime = onnxruntime
        self.version, self._threads = str(onnxruntime.__version__), setting.threads

    def loaded(self, data: bytes) -> Any:
        """A session."""
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.log_severity_level = 3
        return self._runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

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
        """A request."""
        return self._core.compile_model(self._core.read_model(data), "CPU", self._config).create_infer_request()

    def call(self, loaded: Any, fed: Mapping[str, NDArray[Any]], y: NDArray[Any]) -> Callable[[], Any]:
        """One inference on tensors that share numpy's memory."""
        for name, values in fed.items():
            loaded.set_tensor(name, self._openvino.Tensor(values, shared_memory=True))
        loaded.set_tensor("y", self._openvino.Tensor(y, shared_memory=True))
        return loaded.infer  # type: ignore[no-any-return]
