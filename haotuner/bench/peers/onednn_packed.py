"""oneDNN through torch, the weight reordered once into oneDNN's own blocked form, as Inductor's freezing does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting, only
from haotuner.bench.encoding import encoded
from haotuner.bench.images import ConvAttributes
from haotuner.bench.peers.on_host import HostTorch
from haotuner.ops.convolution import is_convolution
from haotuner.spec.op import Op


class OnednnPacked(HostTorch):
    """``torch.ops.mkldnn._linear_pointwise`` on a weight from ``_reorder_linear_weight``; of bytes ``qlinear_pointwise``."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        torch = self._torch
        if not torch.backends.mkldnn.is_available():
            raise ImportError("this torch was built without oneDNN")
        self.version = f"{torch.__version__} ({_line(torch.__config__.show(), 'MKL-DNN')})"
        self._weights: list[Any] = []
        self._x: Any = None
        self._told: ConvAttributes | None = None
        self._kind = "float32"

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Reorder without a batch size, which is not known; naming the true one gained nothing (m = 1..512)."""
        self._kind = only(op.dtype, "fp32", "fp16", "bf16", "int8")
        if self._kind == "int8":
            if op.kind != "dense":
                raise NotImplementedError("in int8 it is raced on dense layers")
            self._weights = [self._of_bytes(self._torch.from_numpy(encoded(weight, "int8"))) for weight in weights]
            return
        self._weights, self._told = [], ConvAttributes.of(op) if is_convolution(op.kind) else None
        if self._told is not None:
            if self._told.transposed:
                raise NotImplementedError("torch has no transposed convolution of a reordered weight")
            self._weights = [self._packed(self._torch.from_numpy(weight)) for weight in weights]
            return
        reorder = self._torch.ops.mkldnn._reorder_linear_weight
        self._weights = [reorder(self._torch.from_numpy(weight).to(getattr(self._torch, self._kind))) for weight in weights]

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """One call a weight; the operator has no ``out=``. ``.default`` saves the search for the overload."""
        if self._kind == "int8":
            self._x = self._torch.from_numpy(encoded(x, "uint8"))
            return [self._call(weight) for weight in self._weights[:count]]
        self._x = self._torch.from_numpy(x if self._told is None else self._told.first(x)).to(
            getattr(self._torch, self._kind)
        )
        return [self._call(weight) for weight in self._weights[:count]]

    def result(self, index: int) -> Array:
        """Result of one call with the weight of that index, as it is timed."""
        result: Array = self._call(self._weights[index])().float().numpy()  # type: ignore[attr-defined]
        return result if self._told is None else self._told.stored(result)

    def _of_bytes(self, weight: Any) -> tuple[Any, ...]:
        """A weight in oneDNN's own form, with scales and zero points that change nothing."""
        torch, rows = self._torch, weight.shape[0]
        packed = torch.ops.onednn.qlinear_prepack(weight, None)
        return packed, torch.ones(rows), torch.zeros(rows, dtype=torch.int32)

    def _packed(self, weight: Any) -> Any:
        """A convolution's weight, reordered without an image's size, as Inductor does where it is not known."""
        description = self._told
        assert description is not None
        reorder = self._torch.ops.mkldnn._reorder_convolution_weight
        return reorder(weight, description.pad, description.stride, description.dilation, description.groups, [])

    def _call(self, weight: Any) -> Call:
        if self._told is not None:
            description, convolution = self._told, self._torch.ops.mkldnn._convolution_pointwise.default
            return partial(
                convolution,
                self._x,
                weight,
                None,
                description.pad,
                description.stride,
                description.dilation,
                description.groups,
                "none",
                [],
                "",
            )
        if self._kind == "int8":
            product = self._torch.ops.onednn.qlinear_pointwise.default
            return partial(product, self._x, 1.0, 0, *weight, None, 1.0, 0, self._torch.float32, "none", [], "")
        linear = self._torch.ops.mkldnn._linear_pointwise.default
        return partial(linear, self._x, weight, None, "none", [], "")


def _line(text: str, word: str) -> str:
    """The first line that has the word, without its bullet."""
    return next((line.strip(" -") for line in text.splitlines() if word in line), "oneDNN")
