"""Modules that follow a layer: batch norms in eval mode folded into its weight, activations as its op's epilogue.

``Snapshot``: test that a tensor still has the numbers that it had, for half a microsecond a look.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch

_PLAIN: dict[type[torch.nn.Module], str] = {
    torch.nn.ReLU: "relu",
    torch.nn.ReLU6: "relu6",
    torch.nn.SiLU: "silu",
    torch.nn.Sigmoid: "sigmoid",
    torch.nn.Tanh: "tanh",
    torch.nn.Hardswish: "hardswish",
    torch.nn.Hardsigmoid: "hardsigmoid",
    torch.nn.Mish: "mish",
}


def is_plain(module: Any) -> bool:
    """True if a call of a module runs its class's forward and nothing else: it has no hooks and no forward of its own."""
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return not hooked and "forward" not in module.__dict__


def step_of(module: Any) -> str:
    """The epilogue step that an activation is now; empty where it is none, has hooks or a forward of its own."""
    kind = type(module)
    step = _PLAIN.get(kind, "")
    if kind is torch.nn.GELU:
        step = "gelu" if module.approximate == "none" else "gelutanh"
    return step if step and is_plain(module) else ""


def with_step(spec: str, step: str, *, bias: bool) -> str:
    """The spec of the same op with an activation behind it."""
    return f"{spec},epilogue={'bias+' if bias else ''}{step}"


class Snapshot:
    """The numbers of a small tensor on the CPU, as they were.

    A tensor's version counts no writes through ``.data`` or through memory that it shares, so its bytes are compared.
    ``torch.equal`` takes ten times as long.
    """

    __slots__ = ("_address", "_alias", "_bytes", "_dtype", "_memory", "_size", "_tensor", "copy")
    _memory: Any

    def __init__(self, tensor: Any) -> None:
        self.copy: torch.Tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._dtype, self._size = tensor.dtype, tensor.nbytes
        self._bytes = ctypes.string_at(self.copy.data_ptr(), self._size) if _is_plain(self.copy) else b""
        self._look_at(tensor)

    def of_none(self) -> Snapshot:
        """Snapshot of the same numbers, which the next tensor that is looked at may have."""
        other = Snapshot.__new__(Snapshot)
        other.copy, other._bytes, other._dtype, other._size = self.copy, self._bytes, self._dtype, self._size
        other._tensor = other._alias = other._address = other._memory = None
        return other

    def shows(self, tensor: Any) -> bool:
        """True if a tensor has these numbers, type and shape."""
        if (
            tensor is self._tensor
            and tensor.data_ptr() == self._address
            and tensor.dtype is self._dtype
            and tensor.nbytes == self._size
            and tensor.is_contiguous()
        ):
            same: bool = self._memory.raw == self._bytes
            return same
        copy = self.copy
        if tensor is None or tensor.dtype is not copy.dtype or tensor.device != copy.device or tensor.shape != copy.shape:
            return False
        if not torch.equal(tensor, copy):
            return False
        self._look_at(tensor)
        return True

    def _look_at(self, tensor: Any) -> None:
        """Compare the bytes of ``tensor`` from now on, where they lie in plain memory side by side."""
        self._tensor, self._alias, self._address, self._memory = tensor, None, None, None
        if self._bytes and _is_plain(tensor):
            self._alias = tensor.detach()  # while it lives, no other memory has its address
            self._address = tensor.data_ptr()
            self._memory = (ctypes.c_char * self._size).from_address(self._address)


def _is_plain(tensor: Any) -> bool:
    """True if the numbers of a tensor lie side by side in memory of the CPU."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu" and tensor.is_contiguous()


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
        other._eps, other._seen = self._eps, tuple(seen and seen.of_none() for seen in self._seen)
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
