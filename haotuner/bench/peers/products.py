"""Contenders for batch_matmul: calls on the same first factor and copies of the second, into one output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.peers.on_host import HostPack, HostTorch, onnxruntime_options
from haotuner.bench.products import Factors, copy
from haotuner.spec.op import Op

OPSET, IR = 17, 8


class _Products(ABC):
    """What they share: views of the factors as ``(b, m, k)`` and ``(b, k, n)``, and a poisoned output."""

    width = 1
    alone = False

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Nothing is bound."""
        self._op = op
        self._runs: list[Call] = []
        self._held: list[Factors] = []
        layout = op.option("layout")
        self._turned = layout == "tn", layout == "nt"

    def aim(self, factors: Factors, count: int) -> Sequence[Call]:
        """One call a copy of the second factor, all into the same output."""
        self._runs = []
        self._held = [copy(factors, index) for index in range(count)]  # libraries point into them
        for stored in self._held:
            x, w = (f.swapaxes(1, 2) if turned else f for f, turned in zip(stored, self._turned, strict=True))
            if not self._runs:
                self._y = np.empty((*x.shape[:2], w.shape[2]), np.float32)
            self._runs.append(self.call(x, w, self._y, stored))
        return self._runs

    def result(self, index: int) -> Array:
        """An element that nobody writes shows."""
        self._y.fill(np.nan)
        self._runs[index]()
        return self._y

    @abstractmethod
    def call(self, x: Array, w: Array, y: Array, stored: tuple[Array, Array]) -> Callable[[], Any]:
        """What is timed: the product of ``x`` and ``w`` into ``y``."""


class TorchProducts(HostTorch, _Products):
    """``torch.bmm(x, w, out=y)`` under inference mode, on views where the op stores factors turned."""

    def call(self, x: Array, w: Array, y: Array, stored: tuple[Array, Array]) -> Callable[[], Any]:
        """One bmm."""
        x_, w_, y_ = map(self._torch.from_numpy, (x, w, y))
        return partial(self._torch.bmm, x_, w_, out=y_)


class NumpyProducts(_Products):
    """``np.matmul(x, w, out=y)``."""

    def __init__(self, setting: Setting) -> None:
        self.version = np.__version__

    def call(self, x: Array, w: Array, y: Array, stored: tuple[Array, Array]) -> Callable[[], Any]:
        """One matmul."""
        return partial(np.matmul, x, w, out=y)


class OnnxruntimeProducts(_Products):
    """A model of one MatMul, behind a Transpose where the op stores a factor turned: ONNX Runtime fuses the two."""

    def __init__(self, setting: Setting) -> None:
        import onnx
        import onnxruntime

        self._onnx, self._runtime = onnx, onnxruntime
        self.version = str(onnxruntime.__version__)
        self._options = onnxruntime_options(onnxruntime, setting.threads)

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """A session for all sizes and copies: no factor is a constant."""
        super().prepare(op, weights)
        self._session = self._runtime.InferenceSession(self._model(), self._options, providers=["CPUExecutionProvider"])

    def call(self, x: Array, w: Array, y: Array, stored: tuple[Array, Array]) -> Callable[[], Any]:
        """One run with everything bound."""
        binding = self._session.io_binding()
        for name, values in zip(("x", "w"), stored, strict=True):
            binding.bind_input(name, "cpu", 0, np.float32, values.shape, values.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        return partial(self._session.run_with_iobinding, binding)

    def _model(self) -> bytes:
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        nodes, names = [], []
        for name, turned in zip(("x", "w"), self._turned, strict=True):
            names.append(f"{name}t" if turned else name)
            if turned:
                nodes.append(helper.make_node("Transpose", [name], [f"{name}t"], perm=[0, 2, 1]))
        inputs = [helper.make_tensor_value_info(n, kind, list("bij")) for n in ("x", "w")]
        graph = helper.make_graph(
            [*nodes, helper.make_node("MatMul", names, ["y"])],
            "product",
            inputs,
            [helper.make_tensor_value_info("y", kind, list("bmn"))],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = IR
        data: bytes = model.SerializeToString()
        return data


class OurProducts(HostPack, _Products):
    """``op.run(x, w, out=y)`` of a pack."""

    def call(self, x: Array, w: Array, y: Array, stored: tuple[Array, Array]) -> Callable[[], Any]:
        """One call as a server makes it."""
        return partial(self._pack.op(self._op.name).run, *stored, out=y)

    def plan(self, shape: Mapping[str, int]) -> str:
        """What is served at this shape."""
        return f"cell {self._pack.op(self._op.name).cell(shape)}"

    def overhead_ns(self, seconds: float) -> float | None:
        """Not told: there is no bare call to compare with."""
        return None
