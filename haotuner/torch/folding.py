"""A batch norm in eval mode, folded into the weight of the convolution before it; both stay what they are in the model."""

from __future__ import annotations

import threading
from typing import Any

import torch

from haotuner.torch.activations import is_plain
from haotuner.torch.snapshot import Snapshot

NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)


def is_norm(module: Any) -> bool:
    """True if a module is a batch norm of one or two axes, or of a subclass of theirs."""
    return isinstance(module, NORMS)


def unfoldable(norm: Any, channels: int | None) -> str:
    """Reason that a norm is not folded into the layer before it; empty if it is. ``channels``: None of no convolution."""
    if type(norm) not in NORMS:
        return (
            f"{type(norm).__module__}.{type(norm).__name__} is not folded, only nn.BatchNorm1d and nn.BatchNorm2d themselves"
        )
    if not is_plain(norm):
        return "its forward was replaced" if "forward" in norm.__dict__ else "it has hooks"
    if channels is None:
        return "it follows no convolution"
    if norm.training or norm.running_mean is None or norm.running_var is None:
        return "it takes its statistics from the batch: call model.eval() first"
    if norm.num_features != channels:
        return "it is made for another number of features"
    return ""


class Fold:
    """A norm, and its numbers as they were when they were folded."""

    def __init__(self, norm: Any) -> None:
        self.norm, self.lock = norm, threading.Lock()
        self._eps: float | None = None
        self._seen: tuple[Snapshot | None, ...] = ()

    def moved(self, norm: Any) -> Fold:
        """Fold of a copy of the norm, with the same numbers."""
        other = Fold(norm)
        other._eps, other._seen = self._eps, tuple(None if one is None else one.of_none() for one in self._seen)
        return other

    def usable(self) -> bool:
        """True if the norm computes now what a fold of its numbers does."""
        norm = self.norm
        return type(norm) in NORMS and not norm.training and is_plain(norm) and norm._buffers.get("running_var") is not None

    def current(self) -> bool:
        """True if the norm's numbers are those that were folded. They are compared, so that no write goes unseen."""
        seen = self._seen
        if not seen or self.norm.eps != self._eps:
            return False
        return all(
            tensor is None if snapshot is None else snapshot.shows(tensor)
            for tensor, snapshot in zip(_numbers(self.norm), seen, strict=True)
        )

    def forget(self) -> None:
        """Fold anew at the next call: the convolution's own weight is another."""
        self._seen = ()

    def folded(
        self, weight: torch.Tensor, bias: torch.Tensor | None, groups: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Weight and bias, float32, of the convolution that computes both. ``groups``: of a transposed one, else None."""
        eps = self.norm.eps
        snapshots = tuple(None if number is None else Snapshot(number) for number in _numbers(self.norm))
        self._eps, self._seen = eps, snapshots
        numbers = (None if number is None else number.copy for number in snapshots)
        gain, offset, mean, variance = (None if number is None else number.float() for number in numbers)
        scale = torch.rsqrt(variance + eps)
        scale = scale if gain is None else scale * gain
        shift = -mean * scale  # type: ignore[operator]
        shift = shift if offset is None else shift + offset
        weight = weight.float()
        if groups is None:
            made = weight * scale.reshape(-1, *(1,) * (weight.dim() - 1))
        else:  # (c, f/groups, ...)
            whole = weight.unflatten(0, (groups, -1))
            made = (whole * scale.reshape(groups, 1, -1, *(1,) * (weight.dim() - 2))).flatten(0, 1)
        return made, shift if bias is None else shift + bias.float() * scale


def _numbers(norm: Any) -> tuple[Any, ...]:
    parameters, buffers = norm._parameters, norm._buffers
    return parameters["weight"], parameters["bias"], buffers["running_mean"], buffers["running_var"]
