"""Operators of grouped ops of a pack on a device: as those of dense, and with where the groups of rows end."""

from __future__ import annotations

from typing import Any

import torch

from haotuner.runtime.pack import Pack
from haotuner.runtime.streams import stream_of
from haotuner.torch.device_layer import DeviceCall
from haotuner.torch.op_definition import define_pair, refuse_grad


class GroupedCall(DeviceCall):
    """Calls of one grouped op with any weights (g, n, k)."""

    def __init__(self, pack: Pack, name: str) -> None:
        super().__init__(pack, name)
        self._channels = sum(operand.role == "constant" for operand in self.entry.extra) if self.entry.op.epilogue else 1

    def into_groups(
        self, x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, *extra: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        """Queue the call; x of any strides, as torch's own operators take it. Rows behind the last end stay as they are."""
        refuse_grad(self.name, x, weight, *extra)
        record, stream = self.bind(weight, *extra[: self._channels]), stream_of(x)
        whole = extra[self._channels :]
        try:
            self._call(x, record, out, self._setting, stream, offsets, *whole)
        except ValueError:
            if x.is_contiguous():
                raise
            self._call(x.contiguous(), record, out, self._setting, stream, offsets, *whole)

    def fresh_groups(
        self, x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, *extra: torch.Tensor | None
    ) -> torch.Tensor:
        """The products as a new tensor; rows behind the last end hold anything."""
        out = x.new_empty((*x.shape[:-1], self.n), dtype=self.gives)
        self.into_groups(x, weight, offsets, *extra, out=out)
        return out

    def shape_of_groups(
        self, x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, *extra: torch.Tensor | None
    ) -> torch.Tensor:
        """Fake result of ``fresh_groups``, without numbers."""
        self._check_offsets(x, offsets)
        return self.shape(x, weight)

    def nothing_of_groups(
        self, x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, *extra: torch.Tensor | None, out: torch.Tensor
    ) -> None:
        """Checks of ``into_groups``, without numbers."""
        self._check_offsets(x, offsets)
        self.nothing(x, weight, out=out)

    def _check_offsets(self, x: torch.Tensor, offsets: torch.Tensor) -> None:
        groups = self.entry.axis("g").extent
        torch._check(
            tuple(offsets.shape) == (groups,) and offsets.dtype is torch.int32 and offsets.device == x.device,
            lambda: (
                f"{self.name}: offsets must be int32 ({groups},) on {x.device}, got {offsets.dtype} "
                f"{tuple(offsets.shape)} on {offsets.device}"
            ),
        )


def define_grouped(library: Any, call: GroupedCall) -> None:
    """``torch.ops.haotuner.<op>(x, weight, offsets, bias=None)`` and ``.out`` for CUDA tensors, and their fakes.

    An op with an epilogue takes what that reads in the place of the bias.
    """
    name = call.name
    extra = "".join(f", Tensor {operand.name}" for operand in call.entry.extra)
    takes = f"Tensor x, Tensor weight, Tensor offsets{extra if call.entry.op.epilogue else ', Tensor? bias=None'}"
    shape, nothing = call.shape_of_groups, call.nothing_of_groups
    define_pair(library, name, takes, "CUDA", fresh=call.fresh_groups, into=call.into_groups, shape=shape, nothing=nothing)
