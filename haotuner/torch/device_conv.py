"""Convolutions of a pack on a device under ``torch.ops``: torch's own weight, on torch's current stream."""

from __future__ import annotations

import torch

from haotuner.runtime.device_call import stream_of
from haotuner.runtime.pack import Pack
from haotuner.runtime.weights import weight_shape
from haotuner.torch.device_layer import WeightCall
from haotuner.torch.layer_ops import image_size
from haotuner.torch.op_definition import refuse_grad


class DeviceConvCall(WeightCall):
    """Calls of one convolution ``(x, weight, bias)``, or with what its epilogue reads in the place of the bias."""

    def __init__(self, pack: Pack, name: str) -> None:
        super().__init__(pack, name)
        self._size, self._stored = image_size(self.entry), weight_shape(self.entry.op)
        self._channels = sum(operand.role == "constant" for operand in self.entry.extra) if self.entry.op.epilogue else 1

    def into(self, x: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor | None, out: torch.Tensor) -> None:
        """Queue the call; x of any strides, as torch's own operators take it."""
        refuse_grad(self.name, x, weight, *extra)
        record = self.bind(weight, *extra[: self._channels])
        self._call(x, record, out, self._setting, stream_of(x), *extra[self._channels :])

    def fresh(self, x: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor | None) -> torch.Tensor:
        """The convolution as a new tensor."""
        out = x.new_empty(self._size(x), dtype=self.gives)
        self.into(x, weight, *extra, out=out)
        return out

    def shape(self, x: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor | None) -> torch.Tensor:
        """Fake result of ``fresh``, without numbers."""
        self._check_weight(x, weight, self._stored)
        return x.new_empty(self._size(x), dtype=self.gives)

    def nothing(self, x: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor | None, out: torch.Tensor) -> None:
        """Checks of ``into``, without numbers."""
        self._check_weight(x, weight, self._stored)
        self._size(x)
