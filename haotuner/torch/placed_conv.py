"""Convolutions of a pack on a device under ``torch.ops``: torch's own weight, on torch's current stream."""

from __future__ import annotations

import torch

from haotuner.runtime.convolution import weight_shape
from haotuner.runtime.pack import Pack
from haotuner.runtime.streams import stream_of
from haotuner.torch.conv_ops import result_size
from haotuner.torch.placed import WeightCall, refuse_grad
from haotuner.words.op import Op


class PlacedConvCall(WeightCall):
    """Calls of one convolution ``(x, weight, bias)``."""

    def __init__(self, pack: Pack, name: str) -> None:
        super().__init__(pack, name)
        self._size, self._stored = result_size(self.entry), weight_shape(Op.parse(name))

    def into(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, out: torch.Tensor) -> None:
        """Queue the call; x of any strides, as torch's own operators take it."""
        refuse_grad(self.name, x, weight, bias)
        self._call(x, self.bind(weight, bias), out, self._setting, stream_of(x))

    def fresh(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The convolution as a new tensor."""
        out = x.new_empty(self._size(x))
        self.into(x, weight, bias, out=out)
        return out

    def shape(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """What ``fresh`` gives, without numbers."""
        self._check_weight(x, weight, self._stored)
        return x.new_empty(self._size(x))

    def nothing(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, out: torch.Tensor) -> None:
        """What ``into`` checks, without numbers."""
        self._check_weight(x, weight, self._stored)
        self._size(x)
