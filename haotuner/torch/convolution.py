"""``PackedConvolution``: an ``nn.Conv1d``, ``nn.Conv2d`` or transposed one served from a pack, and the op that it needs."""

from __future__ import annotations

from typing import Any

import torch

from haotuner.runtime.convolution import Convolution
from haotuner.torch.folding import Fold
from haotuner.torch.layer import PackedLinear
from haotuner.torch.ops import Registered

# Layers that are served, and their kinds of operator. Subclasses are not: they may compute something else.
KINDS: dict[type[torch.nn.Module], str] = {
    torch.nn.Conv1d: "conv1d",
    torch.nn.Conv2d: "conv2d",
    torch.nn.ConvTranspose1d: "conv_transpose1d",
    torch.nn.ConvTranspose2d: "conv_transpose2d",
}


LAYERS = (torch.nn.Linear, *KINDS)

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}  # that a pack on the CPU takes


def is_layer(module: Any) -> bool:
    """True if a module is a linear or a convolution of a kind that is served, and of no subclass."""
    return type(module) in LAYERS


def spec_of(layer: Any, *, last: bool) -> str:
    """The ``--op`` spec of a convolution; ``last``: for images with channels last."""
    kind = KINDS[type(layer)]
    sides = len(layer.kernel_size)
    words = [f"c={layer.in_channels}", f"f={layer.out_channels}"]
    words += [f"{axis}={taps}" for axis, taps in zip(("r", "s")[-sides:], layer.kernel_size, strict=True)]
    options = {
        "stride": (_joined(layer.stride), "1"),
        "pad": (_pads(layer), "0"),
        "dilation": (_joined(layer.dilation), "1"),
        "groups": (str(layer.groups), "1"),
        "opad": (_joined(layer.output_padding), "0"),
        "layout": ({1: "nwc", 2: "nhwc"}[sides] if last else "", ""),
    }
    lines = [f"{name}={value}" for name, (value, usual) in options.items() if value != usual]
    return f"{kind}:{','.join([*words, *lines])}{dtype_word(layer)}"


def dtype_word(layer: Any) -> str:
    """The element type of a layer's weight as a spec has it; empty for float32."""
    name = DTYPES[layer.weight.dtype]
    return "" if name == "fp32" else f",dtype={name}"


def prefers_last(layer: Any, *, others: bool = False) -> bool:
    """True if the layer's weight was put into torch's channels-last memory, as its images are then.

    ``others``: that of some layer of the model was, which decides for windows of one tap or one channel: they lie both ways.
    """
    weight = layer.weight
    if weight.dim() != 4 or not weight.is_contiguous(memory_format=torch.channels_last):
        return False
    return others or not weight.is_contiguous()


def any_last(model: torch.nn.Module) -> bool:
    """True if a convolution of the model has its weight in channels-last memory, and in that alone."""
    layers = (layer for layer in model.modules() if type(layer) in KINDS)
    return any(prefers_last(layer) for layer in layers)


def reason_of(layer: Any) -> str:
    """Reason that a convolution stays torch's whatever a pack holds; empty if it may be served."""
    if layer.padding_mode != "zeros":
        return f"it pads with padding_mode={layer.padding_mode!r}, and only zeros are served"
    return ""


def _joined(numbers: Any) -> str:
    return str(numbers[0]) if len(set(numbers)) == 1 else ".".join(map(str, numbers))


def _pads(layer: Any) -> str:
    if layer.padding == "valid":
        return "0"
    if layer.padding == "same":  # torch pads one more behind where the sum is odd
        reach = [dilation * (taps - 1) for dilation, taps in zip(layer.dilation, layer.kernel_size, strict=True)]
        return _joined([*(r // 2 for r in reach), *(r - r // 2 for r in reach)])
    return _joined(layer.padding)


_SETTINGS = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode", "output_padding", "transposed")


class PackedConvolution(PackedLinear):
    """A convolution served from a pack; inference only. Takes any strides that torch's own layer takes.

    Types, ``state_dict``, deep copies and pickles are as those of ``PackedLinear``. With an op of channels last the result
    has torch's channels-last memory.
    """

    def __init__(
        self, served: Convolution, source: Any, registered: Registered | None = None, *, plain: str = "",
        fold: Fold | None = None,
    ) -> None:  # fmt: skip
        self._last = served.bound.op.operands[0].dims[-1] == "c"  # its layout is channels last
        super().__init__(served, source, registered, plain=plain, fold=fold)

    def __setattr__(self, name: str, value: Any) -> None:
        before = self.__dict__.get(name) if name in _SETTINGS else None
        if before is None:
            super().__setattr__(name, value)
            return
        same = (value,) * len(before) if isinstance(before, tuple) and isinstance(value, int) else value
        if before != (tuple(same) if isinstance(same, list) else same):
            raise TypeError(
                f"{self._linear.name}: {name} = {value}, which is {before}; a served convolution keeps its settings: "
                "change the layer first, then swap"
            )

    def forward(self, input: torch.Tensor, output_size: Any = None) -> torch.Tensor:
        """The convolution of ``input``, plus the bias. ``output_size``: as the layer's own output_padding makes it."""
        self._check_call(input, output_size)
        return super().forward(input)

    def _check_call(self, input: torch.Tensor, output_size: Any = None) -> None:
        if output_size is None:
            return
        served: Any = self._linear
        sides = list(served.windows.values())
        inputs, size = tuple(output_size)[-len(sides) :], tuple(input.shape[-len(sides) :])
        own = tuple(side.out(extent) for side, extent in zip(sides, size, strict=True))
        if inputs != own:
            raise ValueError(
                f"{served.name}: output_size {inputs}, where an image of {size} becomes {own}: a served layer has one "
                "output_padding; make the layer with the one that is wanted, then swap"
            )

    def extra_repr(self) -> str:
        """Text that print(model) shows."""
        return f"{self.in_channels}, {self.out_channels}, op={self._linear.name}"

    def _bias_shape(self) -> tuple[int, ...]:
        return (self.out_channels,)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        if not self._through_operator(x):
            return self._computed(x)
        more = () if self.row is None and self._fused else (self.row,)
        result: torch.Tensor = self._operator(self._image(x), self.packed, *more)  # type: ignore[misc]
        return result.movedim(-1, -self._sides()) if self._last else result

    def _computed(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._linear(self._image(x))
        return result.movedim(-1, -self._sides()) if self._last else result

    def _image(self, x: torch.Tensor) -> torch.Tensor:
        """The image as the op takes it: its axes in the op's order, the last one without gaps."""
        image = x.movedim(-self._sides(), -1) if self._last else x
        return image.contiguous() if image.shape[-1] > 1 and image.stride(-1) != 1 else image

    def _by_torch(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        compute: Any = getattr(torch.nn.functional, KINDS[self._kind])
        if not self.transposed:
            return compute(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        return compute(x, weight, bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation)

    def _sides(self) -> int:
        """Axes of an image behind its batch, the channels among them."""
        return 1 + len(self.kernel_size)
