"""Operators of a pack on a device with an epilogue that reads something: values of a channel, tensors like the result."""

from __future__ import annotations

import torch

from haotuner.runtime.pack import Pack
from haotuner.runtime.streams import stream_of
from haotuner.torch.device_layer import DeviceCall
from haotuner.torch.op_definition import refuse_grad


class FusedCall(DeviceCall):
    """Calls of one op ``(x, weight, what its epilogue reads…)`` with any weight."""

    def __init__(self, pack: Pack, name: str) -> None:
        super().__init__(pack, name)
        self._channels = sum(operand.role == "constant" for operand in self.entry.extra)

    def into(self, x: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor, out: torch.Tensor) -> None:
        """Queue the call; x and a residual of any strides, as torch's own operators take them."""
        refuse_grad(self.name, x, weight, *extra)
        whole = extra[self._channels :]
        record, stream = self.bind(weight, *extra[: self._channels]), stream_of(x)
        try:
            self._call(x, record, out, self._setting, stream, *whole)
        except ValueError:
            if all(item.is_contiguous() for item in (x, *whole)):
                raise
            self._call(x.contiguous(), record, out, self._setting, stream, *(item.contiguous() for item in whole))

    def fresh(self, x: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        """The result as a new tensor."""
        out = x.new_empty((*x.shape[:-1], self.n), dtype=self.gives)
        self.into(x, weight, *extra, out=out)
        return out

    def shape(self, x: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        """Fake result of ``fresh``, without numbers."""
        self._check(x, weight)
        self._check_whole(x, extra)
        return x.new_empty((*x.shape[:-1], self.n), dtype=self.gives)

    def nothing(self, x: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor, out: torch.Tensor) -> None:
        """Checks of ``into``, without numbers."""
        self._check(x, weight)
        self._check_whole(x, extra)

    def _check_whole(self, x: torch.Tensor, extra: tuple[torch.Tensor, ...]) -> None:
        for residual in extra[self._channels :]:
            torch._check(
                residual.dim() == x.dim() and residual.shape[-1] == self.n,
                lambda: f"{self.name}: residual must be like the result, (..., {self.n})",
            )
