"""``TiedParameter``: a parameter that a served layer shares with other modules, whose changes the layer serves.

Torch ties weights by sharing a parameter (an embedding and the last linear of a language model). A served layer packs a
copy of it. The version that torch counts shows a change in place, and ``data`` gives a tensor whose writes are served.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from haotuner.torch.weights import PackedWeight

if TYPE_CHECKING:
    from haotuner.torch.layer import PackedLinear

_DATA: Any = torch.Tensor.data
_LAYERS = "served_layers"


class TiedParameter(torch.nn.Parameter):  # type: ignore[misc]
    """A parameter of torch's, with the served layers that share it. Copies and files have a plain parameter."""

    @property
    def data(self) -> torch.Tensor:
        """Numbers without history, in the same memory. Writes to them are served."""
        numbers: torch.Tensor = _DATA.__get__(self)
        layers = [] if torch.compiler.is_compiling() else served_with(self)
        return PackedWeight.of(*layers[0], self.shape, numbers) if layers else numbers

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        _DATA.__set__(self, value.numbers() if isinstance(value, PackedWeight) else value)
        for layer, _ in served_with(self):
            layer.written()

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = torch.nn.Parameter(self.detach().clone(), self.requires_grad)
        copy: torch.nn.Parameter = memo[id(self)]
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        return torch.nn.Parameter(self.detach(), self.requires_grad).__reduce_ex__(protocol)


def served_with(parameter: torch.Tensor) -> list[tuple[PackedLinear, str]]:
    """Served layers that share a parameter, each with the name that it has there."""
    layers = [(reference(), name) for reference, name in getattr(parameter, _LAYERS, ())]
    return [(layer, name) for layer, name in layers if layer is not None]


class Tie:
    """A layer's share in a parameter, and whether that was changed since it was packed."""

    def __init__(self, layer: PackedLinear, name: str, parameter: torch.nn.Parameter) -> None:
        parameter.__class__ = TiedParameter
        setattr(parameter, _LAYERS, [*getattr(parameter, _LAYERS, ()), (weakref.ref(layer), name)])
        self.parameter, self.name, self._layer = parameter, name, weakref.ref(layer)
        self._state = _state(parameter)

    @staticmethod
    def possible(parameter: torch.nn.Parameter, dtype: torch.dtype) -> bool:
        """True for a parameter of torch's own class, in memory of the CPU, of this type, whose changes torch counts."""
        is_plain = type(parameter) in (torch.nn.Parameter, TiedParameter) and not parameter.is_inference()
        return is_plain and parameter.dtype is dtype and parameter.device.type == "cpu" and parameter.layout is torch.strided

    def changed(self) -> bool:
        """True where the parameter was changed since ``packed``."""
        return _state(self.parameter) != self._state

    def packed(self) -> None:
        """Note that the current numbers are served."""
        self._state = _state(self.parameter)

    def end(self) -> None:
        """Changes of the parameter are no longer the layer's."""
        layer = self._layer()
        others = [entry for entry in getattr(self.parameter, _LAYERS) if entry[0]() is not layer or entry[1] != self.name]
        setattr(self.parameter, _LAYERS, others)


def _state(parameter: torch.Tensor) -> tuple[int, int]:
    return parameter._version, parameter.data_ptr()


class SharesParameters:
    """A served layer's ties: parameters that other modules have, too, by the names that they have in the layer."""

    _ties: dict[str, Tie]
    _numbers: dict[str, torch.Tensor]
    dtype: torch.dtype
    written: Callable[[], None]
    numbers: Callable[[str], torch.Tensor]

    def tie(self, name: str, parameter: torch.Tensor) -> None:
        """Share a parameter of other modules; nothing where it is no plain parameter of the layer's type on the CPU."""
        if isinstance(parameter, torch.nn.Parameter) and Tie.possible(parameter, self.dtype):
            self._numbers[name] = parameter.detach()
            self._ties[name] = Tie(self, name, parameter)  # type: ignore[arg-type]

    def parameter(self, name: str) -> torch.Tensor:
        """The parameter that ties other layers which are assigned this layer's weight or bias. Tensors show it as before."""
        if name not in self._ties:
            with torch.inference_mode(False):
                self.tie(name, torch.nn.Parameter(self.numbers(name), requires_grad=False))
        return self._ties[name].parameter

    def untie(self, name: str) -> None:
        """Serve the current numbers, whatever becomes of the parameter that was shared."""
        tie = self._ties.pop(name, None)
        if tie is not None:
            tie.end()
            with torch.inference_mode(False):
                self._numbers[name] = self._numbers[name].clone()

    def _follow(self) -> None:
        """Serve changes of shared parameters."""
        changed = [tie for tie in self._ties.values() if tie.changed()]
        if changed and not torch._C._len_torch_dispatch_stack():
            self.written()

    def _follow_shared(self) -> None:
        if not torch.compiler.is_compiling():
            self._follow()
        elif self._operator is None:  # type: ignore[attr-defined]  # the graph breaks here anyway
            self._follow_apart()

    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def _follow_apart(self) -> None:
        self._follow()

    def written_all(self, name: str) -> None:
        """Serve changes in every layer that shares the parameter of this name."""
        for layer in [self] if name not in self._ties else [other for other, _ in served_with(self._ties[name].parameter)]:
            layer.written()
