"""A batch norm in eval mode, folded into the weight of the convolution before it; state and copies stay those of both."""

from __future__ import annotations

import copy
from typing import Any

import torch

from haotuner.runtime.pack import Pack
from haotuner.torch.convolution import KINDS, PackedConvolution
from haotuner.torch.ops import Registered


def unfoldable(norm: Any, layer: Any) -> str:
    """Why a norm stays behind a convolution; empty if it may be folded."""
    if type(layer) not in KINDS:
        return "it follows no convolution"
    if norm.training or norm.running_mean is None or norm.running_var is None:
        return "it takes its statistics from the batch: call model.eval() first"
    if norm.num_features != layer.out_channels:
        return "it is made for another number of features"
    return ""


def folded(layer: Any, norm: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias, float32, of the convolution that computes both."""
    scale = torch.rsqrt(norm.running_var.detach().float() + norm.eps)
    scale = scale if norm.weight is None else scale * norm.weight.detach().float()
    shift = -norm.running_mean.detach().float() * scale
    shift = shift if norm.bias is None else shift + norm.bias.detach().float()
    weight = layer.weight.detach().float()
    if "Transpose" in type(layer).__name__:  # (c, f/groups, ...)
        whole = weight.unflatten(0, (layer.groups, -1))
        per = scale.reshape(layer.groups, 1, -1, *(1,) * (weight.dim() - 2))
        made = (whole * per).flatten(0, 1)
    else:
        made = weight * scale.reshape(-1, *(1,) * (weight.dim() - 1))
    return made, shift if layer.bias is None else shift + layer.bias.detach().float() * scale


class FoldedConvolution(PackedConvolution):
    """A convolution and the norm behind it as one; ``weight`` and ``bias`` are the convolution's own, which are kept."""

    def __init__(
        self, served: Any, stands_for: dict[str, Any], pair: tuple[Any, Any], registered: Registered | None
    ) -> None:
        self.__dict__["pair"] = pair  # no children: their names in a state_dict are this module's, and the norm's own
        super().__init__(served, stands_for, registered)

    @staticmethod
    def serving(pack: Pack, name: str, source: Any, norm: Any, registered: Registered | None) -> FoldedConvolution:
        """The layer that serves ``source`` and ``norm`` by the pack's op ``name``."""
        weight, bias = folded(source, norm)
        served = pack.op(name).bind(weight.to(source.weight.dtype).contiguous(), bias)
        kept = PackedConvolution.words_of(source)
        return FoldedConvolution(served, kept, (source, norm), registered).train(source.training)  # type: ignore[no-any-return]

    @property
    def weight(self) -> torch.Tensor:
        """The convolution's own weight, in a new tensor."""
        found: torch.Tensor = self.pair[0].weight.detach().to(self.dtype, copy=True)
        return found

    @property
    def bias(self) -> torch.Tensor | None:
        """The convolution's own bias, or None."""
        own = self.pair[0].bias
        return None if own is None else own.detach().to(self.dtype, copy=True)

    def refold(self) -> None:
        """Serve what the convolution and the norm hold now."""
        weight, bias = folded(*self.pair)
        self._linear.rebind(weight.to(self._own).contiguous(), bias)
        self._show()

    def _has_bias(self) -> bool:
        return self.pair[0].bias is not None

    def _replace(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        source = self.pair[0]
        with torch.no_grad():
            source.weight = torch.nn.Parameter(
                weight.detach().to("cpu", source.weight.dtype, copy=True), requires_grad=False
            )
            if bias is not None:
                source.bias = torch.nn.Parameter(bias.detach().to("cpu", source.bias.dtype, copy=True), requires_grad=False)
        self.refold()

    def __deepcopy__(self, memo: dict[int, Any]) -> FoldedConvolution:
        served: Any = self._linear
        pair = copy.deepcopy(self.pair[0], memo), copy.deepcopy(self.pair[1], memo)
        twin = FoldedConvolution(served.twin(), self._stands_for, pair, self._registered)
        twin.dtype = self.dtype
        memo[id(self)] = twin
        return twin.train(self.training)  # type: ignore[no-any-return]


class FoldedNorm(torch.nn.Module):  # type: ignore[misc]
    """Stands where a norm was that the layer before computes, with its state. Pickled, it becomes that norm again."""

    def __init__(self, layer: FoldedConvolution) -> None:
        super().__init__()
        self.__dict__["layer"] = layer
        self.train(layer.pair[1].training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` itself."""
        return x

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"{self.layer.pair[1]}, in the layer before"

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self.layer.pair[1]._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.layer.pair[1]._load_from_state_dict(state_dict, prefix, *rest)
        self.layer.refold()

    def __deepcopy__(self, memo: dict[int, Any]) -> FoldedNorm:
        twin = FoldedNorm(copy.deepcopy(self.layer, memo))
        memo[id(self)] = twin
        return twin

    def __copy__(self) -> FoldedNorm:
        return self.__deepcopy__({})

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.layer.pair[1],)


def _itself(module: torch.nn.Module) -> torch.nn.Module:
    return module
