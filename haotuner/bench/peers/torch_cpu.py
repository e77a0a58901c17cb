"""torch on CPUs: eager, compiled by Inductor, and with weights packed once for oneDNN or ZenDNN.

Layers of bytes in torch: oneDNN's fused int8 kernels, a scale a channel, a bias and a relu behind them.

torch on CPUs: eager, what a model does that is not compiled; and compiled by Inductor.

oneDNN through torch, the weight reordered once into oneDNN's own blocked form, as Inductor's freezing does.

zentorch: AMD's ZenDNN as torch operators, the weight packed once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from numpy.typing import NDArray

from haotuner.bench.contender import Call, Operands, Setting, UnsupportedOp, only, poison
from haotuner.bench.images import ConvAttributes, channels_last
from haotuner.bench.operands import binds_weight, bound, images_of, plain_layer, plain_product
from haotuner.bench.peers.on_host import array, tensor, torch_for
from haotuner.bench.peers.torch_expressions import expression, factors
from haotuner.ops.convolution import is_convolution
from haotuner.spec.op import Op

EPILOGUES = ((), ("scale",), *(("scale", *more) for more in (("bias",), ("relu",), ("bias", "relu"))))


def layer_of_bytes(torch: Any, op: Op, constants: Mapping[str, Any]) -> Callable[[Any], Call]:
    """A function of the input that makes a call of it; the weight is packed here. UnsupportedOp for other layers."""
    if op.epilogue not in EPILOGUES:
        raise UnsupportedOp("oneDNN's layers of bytes have scale, bias and relu behind them, in this order")
    if not binds_weight(op) or (op.kind == "dense" and op.meaning.operands[1].axes(op.all_options()) != ("n", "k")):
        raise UnsupportedOp("of bytes torch is raced on layers alone")
    weight, ops = constants["weight"], torch.ops.onednn
    scales, zeros = constants.get("scale", torch.ones(weight.shape[0])), torch.zeros(weight.shape[0], dtype=torch.int32)
    kind = {"uint8": torch.uint8, "int8": torch.int8}.get(op.dtype_of(op.meaning.output), torch.float32)
    end: tuple[Any, ...] = (1.0, 0, kind, "relu" if "relu" in op.epilogue else "none", [], "")
    window: tuple[Any, ...] = ()
    if op.kind == "dense":
        packed, layer = ops.qlinear_prepack(weight, None), ops.qlinear_pointwise.default
    else:
        a = ConvAttributes.of(op)
        if a.transposed:
            raise UnsupportedOp("torch has no transposed convolution of bytes that takes scales")
        packed = ops.qconv_prepack(weight, scales, 1.0, 0, a.stride, a.pad, a.dilation, a.groups, None)
        window, layer = (a.stride, a.pad, a.dilation, a.groups), ops.qconv_pointwise.default
    bias = constants.get("bias")
    return lambda x: partial(layer, x, 1.0, 0, packed, scales, zeros, bias, *window, *end)


SEEN_ROWS = 37  # rows when the dynamic graph is compiled: neither 0 nor 1, which torch always specialises


class Torch:
    """Eager under inference mode; each call makes its output, but that of a plain batch of products.

    Layers of bytes run oneDNN's fused int8 kernels.
    """

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        self._torch = torch_for(setting.threads, inference=not self.alone)
        self.version = str(self._torch.__version__)
        self._op: Any = None
        self._last = False
        self._function: Callable[..., Any] = lambda: None
        self._constants: list[dict[str, Any]] = []
        self._layers: list[Callable[[Any], Call]] = []
        self._calls: list[Call] = []

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Keep weights as ``torch.nn.Linear`` and ``Conv2d`` do; channels last where images are."""
        self._op, self._last, self._calls, self._layers = op, channels_last(op), [], []
        self._constants = [{name: tensor(self._torch, values) for name, values in copy.items()} for copy in copies]
        if op.sums == "int32":
            self._layers = [layer_of_bytes(self._torch, op, constants) for constants in self._constants]
            return
        self._function = expression(self._torch, op)
        if self._last and "h" in op.axes:
            for constants in self._constants:
                constants["weight"] = constants["weight"].contiguous(memory_format=self._torch.channels_last)

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One call a copy."""
        self._calls = [self._call(index, operands, y) for index, operands in enumerate(calls)]
        return self._calls

    def result(self, index: int) -> NDArray[Any]:
        """Of one call, as it is timed."""
        made: Any = self._calls[index]()
        return array(made.movedim(1, -1) if self._last else made)

    def _call(self, index: int, operands: Operands, y: NDArray[Any]) -> Call:
        constants = self._constants[index] if bound(self._op) else {}
        tensors = {
            name: constants[name] if name in constants else tensor(self._torch, values) for name, values in operands.items()
        }
        tensors |= {name: tensors[name].movedim(-1, 1) for name in images_of(self._op) if self._last}
        if self._layers:
            return self._layers[index](tensors["x"])
        if plain_product(self._op) and not self.alone:  # compiled code makes its output
            return partial(self._torch.bmm, *factors(self._op, **tensors), out=tensor(self._torch, y))
        more = {name: tensors.pop(name) for name in self._op.epilogue_operands}
        return partial(self._function, *tensors.values(), **more)


class Inductor(Torch):
    """``torch.compile`` for extents that are left open; a round of plain layers is one compiled graph.

    A compiled model has its layers so: entering compiled code (20 us) is paid once for all. With one weight the graph has
    one layer: a graph that uses a weight eight times packs it eight times over, which is no longer hot (94 us a layer became
    222, m=1, n=2304, k=768, torch 2.13).
    """

    alone = True  # it times candidates while it compiles

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        from torch._inductor import config

        config.compile_threads = 1  # no pool of compiler processes beside the one that is timed
        config.max_autotune_gemm_backends = "ATEN,CPP"  # oneDNN, and Inductor's own micro-GEMM
        self._config, self._mode = config, ExitStack()
        self._graphs: dict[int, Callable[[Any], Any]] = {}  # of so many layers

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Compiled at the first call of a shape, which the race does not time; graphs of layers for any number of rows."""
        if op.sums == "int32":
            raise UnsupportedOp("it is raced in fp32, fp16 and bf16, not in int8")
        layers = plain_layer(op)
        if layers:
            only(op.dtype, "fp32")
        self._mode.close()
        if not layers:  # under inference mode nothing is frozen
            self._mode.enter_context(self._torch.inference_mode())
        super().prepare(op, copies)
        self._config.freezing = self._config.max_autotune = layers  # weights become constants, packed at compile time
        self._torch.compiler.reset()
        self._graphs = {}
        self._function = self._torch.compile(self._function, dynamic=True, fullgraph=True)

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One call a copy; of plain layers one call that computes them all."""
        self.width = len(calls) if plain_layer(self._op) else 1
        if not plain_layer(self._op):
            return super().aim(calls, y)
        if self.width not in self._graphs:
            self._graphs[self.width] = self._graph([constants["weight"] for constants in self._constants[: self.width]])
        self._calls = [partial(self._graphs[self.width], tensor(self._torch, calls[0]["x"]))]
        return self._calls

    def result(self, index: int) -> NDArray[Any]:
        """Of one call; of a graph of layers its first or its last output."""
        if not plain_layer(self._op):
            return super().result(index)
        outputs: Any = self._calls[0]()
        return array(outputs[0 if index == 0 else 1])

    def _graph(self, weights: list[Any]) -> Callable[[Any], Any]:
        """Layers of these weights. It returns its first and its last result whole and one element of each of the others.

        So none can be dropped, yet their outputs need not all live at once, and the compiler reuses the memory as it would
        between a model's layers.
        """
        torch = self._torch

        class Layers(torch.nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.layers = torch.nn.ParameterList(torch.nn.Parameter(w, requires_grad=False) for w in weights)

            def forward(self, x: Any) -> Any:
                ys = [torch.nn.functional.linear(x, w) for w in self.layers]
                return ys[0], ys[-1], [y[0, 0] for y in ys[1:-1]]

        graph = torch.compile(Layers().eval(), dynamic=True, fullgraph=True)

        def run(x: Any) -> Any:
            with torch.no_grad():
                return graph(x)

        sample = torch.zeros(SEEN_ROWS, weights[0].shape[1])
        torch._dynamo.mark_dynamic(sample, 0)
        run(sample)
        return run


class OnednnPacked:
    """``torch.ops.mkldnn._linear_pointwise`` on a weight from ``_reorder_linear_weight``; of bytes ``qlinear_pointwise``."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        torch = self._torch = torch_for(setting.threads)
        if not torch.backends.mkldnn.is_available():
            raise ImportError("this torch was built without oneDNN")
        self.version = f"{torch.__version__} ({_line(torch.__config__.show(), 'MKL-DNN')})"
        self._last = False
        self._layers: list[Callable[[Any], Call]] = []
        self._calls: list[Call] = []

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Reorder without a batch size, which is not known; naming the true one gained nothing (m = 1..512)."""
        only(op.dtype, "fp32", "fp16", "bf16", "int8")
        self._layers, self._calls, self._last = [], [], channels_last(op)
        if op.dtype == "int8" and op.kind != "dense":
            raise UnsupportedOp("in int8 it is raced on dense layers")
        if is_convolution(op.kind) and ConvAttributes.of(op).transposed:
            raise UnsupportedOp("torch has no transposed convolution of a reordered weight")
        self._layers = [self._layer(op, {name: tensor(self._torch, copy[name]) for name in copy}) for copy in copies]

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One call a weight; the operator has no ``out=``. ``.default`` saves the search for the overload."""
        x = tensor(self._torch, calls[0]["x"])
        x = x.movedim(-1, 1) if self._last else x
        self._calls = [layer(x) for layer in self._layers[: len(calls)]]
        return self._calls

    def result(self, index: int) -> NDArray[Any]:
        """Result of one call, as it is timed."""
        made: Any = self._calls[index]()
        return array(made.movedim(1, -1) if self._last else made)

    def _layer(self, op: Op, constants: dict[str, Any]) -> Callable[[Any], Call]:
        """A function of the input that makes a call of it."""
        ops, weight = self._torch.ops.mkldnn, constants["weight"]
        if op.dtype == "int8":
            return layer_of_bytes(self._torch, op, constants)
        if not is_convolution(op.kind):
            packed, linear = ops._reorder_linear_weight(weight), ops._linear_pointwise.default
            return lambda x: partial(linear, x, packed, None, "none", [], "")
        a = ConvAttributes.of(op)
        # Without an image's size, as Inductor does where it is not known.
        packed = ops._reorder_convolution_weight(weight, a.pad, a.stride, a.dilation, a.groups, [])
        window, convolution = (a.pad, a.stride, a.dilation, a.groups), ops._convolution_pointwise.default
        return lambda x: partial(convolution, x, packed, None, *window, "none", [], "")


def _line(text: str, word: str) -> str:
    """The first line that has the word, without its bullet."""
    return next((line.strip(" -") for line in text.splitlines() if word in line), "oneDNN")


class ZentorchPacked:
    """``zentorch_linear_unary.out`` on a weight from ``zentorch_weight_prepack_for_linear``."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import torch

        zentorch = importlib.import_module("zentorch")
        self._torch = torch_for(setting.threads)
        self._op = torch.ops.zentorch
        self.version = str(zentorch.__version__)
        self._weights: list[Any] = []
        self._calls: list[Call] = []
        self._y: Any = None

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Pack copies: packing writes into the very memory that it is given (zentorch 2.13)."""
        only(op.dtype, "fp32")
        self._weights, self._calls = [], []
        pack = self._op.zentorch_weight_prepack_for_linear
        self._weights = [pack(self._torch.from_numpy(copy["weight"]).clone()) for copy in copies]

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One call a weight, all into the same output."""
        x, out, linear = self._torch.from_numpy(calls[0]["x"]), self._torch.from_numpy(y), self._op.zentorch_linear_unary.out
        self._calls = [
            partial(linear, x, weight, is_weight_prepacked=True, out=out) for weight in self._weights[: len(calls)]
        ]
        self._y = y
        return self._calls

    def result(self, index: int) -> NDArray[Any]:
        """Into a poisoned output."""
        poison(self._y)
        self._calls[index]()
        result: NDArray[Any] = self._y
        return result
