"""Layers and operators of a pack on a device: the weight stays torch's own tensor, calls go to torch's current stream."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from haotuner.ops.dtypes import DTYPES
from haotuner.runtime.call import REFUSED
from haotuner.runtime.device_call import stream_of
from haotuner.runtime.device_linear import DeviceBound
from haotuner.runtime.pack import Pack
from haotuner.torch.op_definition import define_pair, refuse_grad

if TYPE_CHECKING:
    from haotuner.torch.device_conv import DeviceConvCall

MOST_RECORDS = 4096  # of one op: weights at so many addresses; then they are worked out anew


class WeightCall:
    """Calls of one op with any weight: what binding works out follows from addresses alone, so it is kept by them."""

    def __init__(self, pack: Pack, name: str) -> None:
        self._pack, self.entry, self.name = pack, pack.op_entry(name), name
        self.dtype: torch.dtype = getattr(torch, DTYPES[self.entry.operands[0].dtype].numpy)
        self._call, self._setting = pack.entry(self.entry)
        self.gives: torch.dtype = getattr(torch, DTYPES[self.entry.output.dtype].numpy)
        self._records: dict[tuple[int, ...], Any] = {}

    def bind(self, weight: torch.Tensor, *channels: torch.Tensor | None) -> Any:
        """The record of a weight and what has one value a channel; ValueError or TypeError say what is wrong with them.

        Safe while a stream is captured.
        """
        key = weight.data_ptr(), *(0 if channel is None else channel.data_ptr() for channel in channels)
        result = self._records.get(key)
        if result is None:
            if len(self._records) >= MOST_RECORDS:
                self._records.clear()
            result = self._records[key] = DeviceBound.of(self._pack, self.entry, weight, channels).record
        return result

    def _check_weight(self, x: torch.Tensor, weight: torch.Tensor, stored: tuple[int | None, ...]) -> None:
        torch._check(x.dtype == self.dtype, lambda: f"{self.name}: x has dtype {x.dtype}; expected {self.dtype}")
        torch._check(
            tuple(weight.shape) == stored, lambda: f"{self.name}: weight must be {stored}, got {tuple(weight.shape)}"
        )
        torch._check(weight.device == x.device, lambda: f"{self.name}: x is on {x.device}, the weight on {weight.device}")


class DeviceCall(WeightCall):
    """Calls of a linear op ``(x, weight, bias)``."""

    def __init__(self, pack: Pack, name: str) -> None:
        super().__init__(pack, name)
        self.n, self.k = self.entry.n, self.entry.k
        extents = {axis.name: axis.extent for axis in self.entry.axes}
        self._stored = tuple(extents[axis] for axis in self.entry.operands[1].dims)  # (n, k), or (k, n) for weight=kn

    def into(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, out: torch.Tensor) -> None:
        """Queue the call; x of any strides, as torch's own operators take it."""
        refuse_grad(self.name, x, weight, bias)
        record, stream = self.bind(weight, bias), stream_of(x)
        try:
            self._call(x, record, out, self._setting, stream)
        except ValueError:
            if x.is_contiguous():
                raise
            self._call(x.contiguous(), record, out, self._setting, stream)

    def fresh(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The product as a new tensor."""
        refuse_grad(self.name, x, weight, bias)
        try:
            result: torch.Tensor = self._call(x, self.bind(weight, bias), None, self._setting, stream_of(x))
            return result
        except REFUSED:  # or torch has no exchange table, and the output comes from here
            if x.dim() == 0:
                raise
        out = x.new_empty((*x.shape[:-1], self.n), dtype=self.gives)
        self.into(x, weight, bias, out=out)
        return out

    def shape(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Fake result of ``fresh``, without numbers."""
        self._check(x, weight)
        return x.new_empty((*x.shape[:-1], self.n), dtype=self.gives)

    def nothing(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, out: torch.Tensor) -> None:
        """Checks of ``into``, without numbers."""
        self._check(x, weight)

    def _check(self, x: torch.Tensor, weight: torch.Tensor) -> None:
        torch._check(x.dim() >= 1 and x.shape[-1] == self.k, lambda: f"{self.name}: x must be (..., {self.k})")
        self._check_weight(x, weight, self._stored)


def define(library: Any, call: DeviceCall | DeviceConvCall) -> None:
    """``torch.ops.haotuner.<op>(x, weight, bias=None)`` and ``.out`` for CUDA tensors, and their fakes.

    An op with an epilogue takes what that reads in the place of the bias.
    """
    name = call.name
    extra = "".join(f", Tensor {operand.name}" for operand in call.entry.extra)
    taken = f"Tensor x, Tensor weight{extra if call.entry.op.epilogue else ', Tensor? bias=None'}"
    define_pair(library, name, taken, "CUDA", fresh=call.fresh, into=call.into, shape=call.shape, nothing=call.nothing)


class DeviceLayer(torch.nn.Linear):  # type: ignore[misc]
    """An ``nn.Linear`` whose products come from a pack on its device; inference only.

    Weight and bias are the parameters that the layer had: they can be read, loaded, moved and saved as before. Where they or
    x are no longer what the pack serves (another dtype or device, a strided weight), torch itself computes. Pickled, it
    becomes the ``nn.Linear`` that it stands for: swap again after loading.
    """

    def __init__(self, source: torch.nn.Linear, call: DeviceCall, operator: Any = None) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = source.in_features, source.out_features
        self.weight, self.bias = source.weight, source.bias
        self._served = call
        self._operator = operator
        self.train(source.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``input`` times the weight, plus the bias."""
        x = input
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if x.dtype is not self._served.dtype or not self._is_served(x):
            return torch.nn.functional.linear(x, self.weight, self.bias)
        weight, bias = self.weight.detach(), None if self.bias is None else self.bias.detach()
        if self._operator is not None and torch.compiler.is_compiling():
            result: torch.Tensor = self._operator(x, weight, bias)
            return result
        return self._served.fresh(x, weight, bias)

    def _is_served(self, x: torch.Tensor) -> bool:
        weight = self.weight
        return weight.dtype is x.dtype and weight.device == x.device and x.device.type == "cuda" and weight.is_contiguous()

    def extra_repr(self) -> str:
        """Text that print(model) shows."""
        return f"{super().extra_repr()}, op={self._served.name}"

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceLayer:
        copy = DeviceLayer(deepcopy(plain(self), memo), self._served, self._operator)
        memo[id(self)] = copy
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        return _linear, (self.weight, self.bias, self.training)


def plain(layer: torch.nn.Linear) -> torch.nn.Linear:
    """An ``nn.Linear`` with the same parameters."""
    return _linear(layer.weight, layer.bias, layer.training)


def _linear(weight: torch.nn.Parameter, bias: torch.nn.Parameter | None, training: bool) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta", dtype=weight.dtype)
    layer.weight = weight
    if bias is not None:
        layer.bias = bias
    return layer.train(training)
