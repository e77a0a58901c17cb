"""ONNX Runtime and OpenVINO: an op as an ONNX file, its constants, operands and results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.contender import Call, Operands, Setting, UnsupportedOp, only, poison
from haotuner.bench.images import ConvAttributes, channels_last
from haotuner.bench.operands import bound, images_of, plain_layer
from haotuner.bench.peers.on_host import onnxruntime_options, openvino_settings
from haotuner.ops.convolution import is_convolution, windows
from haotuner.spec.op import Op

OPSET, IR = 20, 9  # Gelu came with 20; the runtimes of 2024 and later read both
Array = NDArray[Any]


class Graph:
    """A file in the making: nodes one behind the other, constants, what is fed."""

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The name of what a new node makes."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, values: Any) -> str:
        """The name of a constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def file(self, op: Op, fed: Mapping[str, Array], last: str, output: Array) -> bytes:
        """The file: dynamic extents of what is fed, and of the result, are open."""
        helper, extents = self._onnx.helper, _extents(op)

        def described(name: str, values: Array) -> Any:
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values.dtype), extents[name])

        nodes = [*self.nodes, helper.make_node("Identity", [last], ["y"])]
        if self.nodes and self.nodes[-1].output[0] == last:  # the last node writes the result itself
            self.nodes[-1].output[0], nodes = "y", self.nodes
        inputs = [described(name, values) for name, values in fed.items()]
        graph = helper.make_graph(nodes, "op", inputs, [described("y", output)], self.constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        made.ir_version = IR
        data: bytes = made.SerializeToString()
        return data


def model(onnx: Any, op: Op, operands: Mapping[str, Array], output: Array) -> bytes:
    """A file of one op; what a server binds is a constant. ``operands`` and ``output`` have images' channels first.

    UnsupportedOp for what it has no nodes for.
    """
    graph, selected = Graph(onnx), bound(op)
    fed = {name: values for name, values in operands.items() if name not in selected}
    constants = {name: operands[name] for name in selected}
    if op.dtype == "int8":
        return graph.file(op, fed, _of_bytes(graph, op, constants, output), output)
    if is_convolution(op.kind):
        own = op.epilogue[:1] == ("bias",)  # a bias that comes first is the node's
        read = ["x", graph.constant(constants["weight"]), *([graph.constant(constants["bias"])] if own else [])]
        last = graph.node(_window(op), *read, **_where(op))
        return graph.file(op, fed, _steps(graph, op, last, constants, 1, skip=own), output)
    if plain_layer(op):
        last = graph.node("Gemm", "x", graph.constant(constants["weight"]), transB=1)
        return graph.file(op, fed, last, output)
    if op.kind == "dense":
        last = graph.node("MatMul", "x", graph.constant(_of_columns(op, constants["weight"])))
        return graph.file(op, fed, _steps(graph, op, last, constants, -1), output)
    if op.kind == "batch_matmul":
        names = [
            graph.node("Transpose", name, perm=[0, 2, 1]) if turned in op.option("layout") else name
            for name, turned in (("x", "tn"), ("w", "nt"))
        ]
        return graph.file(op, fed, _steps(graph, op, graph.node("MatMul", *names), constants, -1), output)
    return graph.file(op, fed, _rows(graph, op, list(fed)), output)


def _extents(op: Op) -> dict[str, list[str | int]]:
    """Of what a call reads, and of its result, the extents with images' channels first: numbers, or names of open ones."""
    options, static, last = op.all_options(), dict(op.static), channels_last(op)
    axes = {operand.name: operand.axes(options) for operand in op.meaning.inputs} | op.epilogue_operands
    axes["y"] = op.meaning.output.axes(options)
    for name in (*images_of(op), "y") if last else ():
        axes[name] = (axes[name][0], axes[name][-1], *axes[name][1:-1])
    return {name: [static.get(axis, axis) for axis in of_axes] for name, of_axes in axes.items()}


def _of_columns(op: Op, weight: Array) -> Array:
    """A layer's weight ``(k, n)``, as MatMul takes it."""
    return weight if op.meaning.operands[1].axes(op.all_options()) == ("k", "n") else weight.T


def _window(op: Op) -> str:
    return "ConvTranspose" if ConvAttributes.of(op).transposed else "Conv"


def _where(op: Op) -> dict[str, Any]:
    attributes = ConvAttributes.of(op)
    sides = list(windows(op.kind, dict(op.static), op.all_options()).values())
    pads = [side.before for side in sides] + [side.after for side in sides]
    more = {"output_padding": attributes.more} if attributes.transposed else {}
    return {"strides": attributes.stride, "pads": pads, "dilations": attributes.dilation, "group": attributes.groups, **more}


def _steps(graph: Graph, op: Op, last: str, constants: Mapping[str, Array], channel: int, *, skip: bool = False) -> str:
    """The steps of an epilogue behind ``last``; ``skip``: the first one is there already."""

    def values(name: str) -> str:
        if name not in constants:
            return name
        rank = len(op.meaning.output.axes(op.all_options()))
        return graph.constant(constants[name] if channel == -1 else constants[name].reshape(-1, *[1] * (rank - 2)))

    for step in op.epilogue[skip:]:
        if step in ("bias", "residual"):
            last = graph.node("Add", last, values(step))
        elif step in ("scale", "mul"):
            last = graph.node("Mul", last, values("multiplier" if step == "mul" else step))
        elif step == "prelu":
            last = graph.node("PRelu", last, values("slope"))
        elif step == "clamp":
            last = graph.node("Min", graph.node("Max", last, values("low")), values("high"))
        elif step in ("gelu", "gelutanh"):
            last = graph.node("Gelu", last, approximate="tanh" if step == "gelutanh" else "none")
        elif step == "silu":
            last = graph.node("Mul", last, graph.node("Sigmoid", last))
        elif step == "hardsigmoid":
            last = graph.node("HardSigmoid", last, alpha=1 / 6, beta=0.5)
        elif step == "relu6":
            last = graph.node("Clip", last, graph.constant(np.float32(0)), graph.constant(np.float32(6)))
        else:
            known = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "hardswish": "HardSwish", "mish": "Mish"}
            if step not in known:
                raise UnsupportedOp(f"ONNX files are not written with the epilogue step {step}")
            last = graph.node(known[step], last)
    return last


def _of_bytes(graph: Graph, op: Op, constants: Mapping[str, Array], output: Array) -> str:
    """A quantised layer as exporters write it: operands dequantised, the layer, its result quantised again.

    The integers are exact, so scales of one on their way change nothing. Products whose results are not quantised again are
    MatMulInteger: the other form would be computed in fp32.
    """
    if "weight" not in constants or (op.epilogue and op.epilogue[0] != "scale"):
        raise UnsupportedOp("files of bytes are raced on layers whose epilogue begins with a scale")
    weight = constants["weight"]
    scale = constants.get("scale", np.ones(weight.shape[0], np.float32)).astype(np.float32)
    first, zero = graph.constant(np.float32(1)), graph.constant(np.uint8(0))
    x = graph.node("DequantizeLinear", "x", first, zero)
    zeros = graph.constant(np.zeros(len(scale), np.int8))
    quantised = output.dtype in (np.uint8, np.int8)
    stored = _of_columns(op, weight)
    if op.kind == "dense" and not quantised:
        last = graph.node("MatMulInteger", "x", graph.constant(stored))
        return last if output.dtype == np.int32 else _steps(graph, op, graph.node("Cast", last, to=1), constants, -1)
    if op.kind == "dense":
        w = graph.node("DequantizeLinear", graph.constant(stored), graph.constant(scale), zeros, axis=1)
        last, channel = graph.node("MatMul", x, w), -1
    else:
        w = graph.node("DequantizeLinear", graph.constant(weight), graph.constant(scale), zeros, axis=0)
        last, channel = graph.node(_window(op), x, w, **_where(op)), 1
    last = _steps(graph, op, last, constants, channel, skip=bool(op.epilogue))
    if quantised:
        return graph.node("QuantizeLinear", last, first, graph.constant(output.dtype.type(0)))
    return graph.node("Cast", last, to=6) if output.dtype == np.int32 else last


def _rows(graph: Graph, op: Op, fed: Sequence[str]) -> str:
    """Generated kinds that ONNX has a node for, or a few."""
    option, node = op.all_options().get, graph.node
    eps, first = float(option("eps", "0")), option("over") == "first"
    if op.kind in ("softmax", "log_softmax"):
        return node("Softmax" if op.kind == "softmax" else "LogSoftmax", "x", axis=-1)
    if op.kind == "attention" and not set(op.options) - {("causal", "none"), ("mask", "none")} and len(fed) == 3:
        scale = graph.constant(np.float32(op["d"] ** -0.5))
        scores = node("Mul", node("MatMul", fed[0], node("Transpose", fed[1], perm=[0, 2, 1])), scale)
        return node("MatMul", node("Softmax", scores, axis=-1), fed[2])
    if op.kind == "silu":
        return node("Mul", "x", node("Sigmoid", "x"))
    if op.kind in ("gelu", "gelu_tanh", "bias_gelu"):
        x = node("Add", "x", "bias") if op.kind == "bias_gelu" else "x"
        return node("Gelu", x, approximate="tanh" if op.kind == "gelu_tanh" else "none")
    if op.kind in ("layer_norm", "add_layer_norm") and "scale" in fed:
        x = node("Add", "x", "residual") if op.kind == "add_layer_norm" else "x"
        return node("LayerNormalization", x, "scale", *(["bias"] if "bias" in fed else []), axis=-1, epsilon=eps)
    if op.kind == "transpose":
        return node("Transpose", "x", perm=[0, 2, 1])
    if op.kind.startswith("reduce_"):
        kind = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}
        axes = graph.constant(np.array([0 if first else -1], np.int64))
        return node(kind[op.kind.removeprefix("reduce_")], "x", axes, keepdims=0)
    raise UnsupportedOp(f"ONNX files are not written of {op.kind}")


class _OfFiles(ABC):
    """Base of both contenders: images channels first, a file for each copy of what is bound, loaded when a call wants it."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import onnx

        self._onnx = onnx
        self._op: Any = None
        self._last = False
        self._sessions: list[Any] = []  # what was loaded of a file for each copy: dynamic extents are open
        self._fed: list[Operands] = []
        self._calls: list[Call] = []
        self._y: NDArray[Any] = np.empty(0)

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Files are loaded as soon as a call asks for them."""
        only(op.dtype, "fp32", "int8")
        self._sessions, self._calls, self._fed = [], [], []
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
        self._sessions += [self.loaded(file, y) for file in files[len(self._sessions) :]]
        self._fed = [{name: values for name, values in item.items() if name not in selected} for item in inputs]
        self._y = y  # libraries point into both
        self._calls = [self.call(self._sessions[index % len(self._sessions)], fed, y) for index, fed in enumerate(self._fed)]
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
        """The call that is timed."""


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
