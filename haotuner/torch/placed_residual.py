"""Operators of a pack on a device whose epilogue adds a residual: what that reads comes with the call."""

from __future__ import annotations

import torch

from haotuner.runtime.streams import stream_of
from haotuner.torch.placed import PlacedCall, refuse_grad


class ResidualCall(PlacedCall):
    """Calls of one op ``(x, weight[, bias], residual)`` with any weight."""

    def into(self, x: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor, out: torch.Tensor) -> None:
        """Queue the call; x and the residual of any strides, as torch's own operators take them."""
        refuse_grad(self.name, x, weight, *extra)
        *bias, residual = extra
        record, stream = self.bind(weight, *bias), stream_of(x)
        try:
            self._call(x, record, out, self._setting, stream, residual)
        except ValueError:
            if x.is_contiguous() and residual.is_contiguous():
                raise
            self._call(x.contiguous(), record, out, self._setting, stream, residual.contiguous())

    def fresh(self, x: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        """The result as a new tensor."""
        out = x.new_empty((*x.shape[:-1], self.n))
        self.into(x, weight, *extra, out=out)
        return out

    def shape(self, x: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        """What ``fresh`` gives, without numbers."""
        self._check(x, weight)
        self._check_residual(x, extra[-1])
        return x.new_empty((*x.shape[:-1], self.n))

    def nothing(self, x: torch.Tensor, weight: torch.Tensor, *extra: torch.Tensor, out: torch.Tensor) -> None:
        """What ``into`` checks, without numbers."""
        self._check(x, weight)
        self._check_residual(x, extra[-1])

    def _check_residual(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        torch._check(
            residual.dim() == x.dim() and residual.shape[-1] == self.n,
            lambda: f"{self.name}: residual must be like the result, (..., {self.n})",
        )
