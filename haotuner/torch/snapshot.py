"""``Snapshot``: test that a tensor still has the numbers that it had, for half a microsecond a look."""

from __future__ import annotations

import ctypes
from typing import Any

import torch


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
