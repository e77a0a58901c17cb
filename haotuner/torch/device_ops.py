"""Operators of a pack on a device under ``torch.ops.haotuner``: with an epilogue, and grouped ones."""

from __future__ import annotations

from typing import Any

import torch

from haotuner.runtime.device_call import stream_of
from haotuner.runtime.pack import Pack
from haotuner.torch.device_layer import DeviceCall
from haotuner.torch.op_definition import define_pair, refuse_grad


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
