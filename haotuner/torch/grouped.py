"""Operators of grouped ops of a pack on a device: as those of dense, and with where the groups of rows end."""

from __future__ import annotations

from typing import Any

import torch

from haotuner.runtime.streams import stream_of
from haotuner.torch.placed import PlacedCall, refuse_grad


class GroupedCall(PlacedCall):
    """Calls of one grouped op with any weights (g, n, k)."""

    def into_groups(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        offsets: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        out: torch.Tensor,
    ) -> None:
        """Queue the call; x of any strides, as torch's own operators take it. Rows behind the last end stay as they are."""
        refuse_grad(self.name, x, weight, bias)
        record, stream = self.bind(weight, bias), stream_of(x)
        try:
            self._call(x, record, out, self._setting, stream, offsets)
        except ValueError:
            if x.is_contiguous():
                raise
            self._call(x.contiguous(), record, out, self._setting, stream, offsets)

    def fresh_groups(
        self, x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The products as a new tensor; rows behind the last end hold anything."""
        out = x.new_empty((*x.shape[:-1], self.n))
        self.into_groups(x, weight, offsets, bias, out=out)
        return out

    def shape_of_groups(
        self, x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """What ``fresh_groups`` gives, without numbers."""
        self._check_offsets(x, offsets)
        return self.shape(x, weight, bias)

    def nothing_of_groups(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        offsets: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        out: torch.Tensor,
    ) -> None:
        """What ``into_groups`` checks, without numbers."""
        self._check_offsets(x, offsets)
        self.nothing(x, weight, bias, out=out)

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
    """``torch.ops.haotuner.<op>(x, weight, offsets, bias=None)`` and ``.out`` for CUDA tensors, and their fakes."""
    name, tags = call.name, (torch.Tag.pt2_compliant_tag,)
    takes = "Tensor x, Tensor weight, Tensor offsets, Tensor? bias=None"
    library.define(f"{name}({takes}) -> Tensor", tags=tags)
    library.define(f"{name}.out({takes}, *, Tensor(a!) out) -> ()", tags=tags)
    library.impl(name, call.fresh_groups, "CUDA")
    library.impl(f"{name}.out", call.into_groups, "CUDA")
    torch.library.register_fake(f"haotuner::{name}", call.shape_of_groups, lib=library)
    torch.library.register_fake(f"haotuner::{name}.out", call.nothing_of_groups, lib=library)
