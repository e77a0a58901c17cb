"""oneDNN through torch, the weight reordered once into oneDNN's own blocked form, as Inductor's freezing does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from numpy.typing import NDArray

from haotuner.bench.contender import Call, Operands, Setting, UnsupportedOp, only
from haotuner.bench.images import ConvAttributes, channels_last
from haotuner.bench.peers.on_host import array, tensor, torch_for
from haotuner.bench.peers.torch_bytes import layer_of_bytes
from haotuner.ops.convolution import is_convolution
from haotuner.spec.op import Op


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
