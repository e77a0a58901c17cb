"""The layers of a model that have a weight, the ops that can serve them, and why one stays torch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from haotuner.torch.attention import unserved
from haotuner.torch.convolution import DTYPES, KINDS, LAYERS, dtype_word, prefers_last, reason_of, spec_of
from haotuner.torch.device_layer import DeviceLayer
from haotuner.torch.layer import PackedLinear
from haotuner.torch.weights import PackedWeight

SERVED = (PackedLinear, DeviceLayer)
_FORWARDS = {kind: kind.forward for kind in LAYERS}  # a class whose forward is another now computes something else


def layers_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, torch.nn.Module]]:
    """(name, parent, key in the parent, layer) of all layers with a weight of two or more axes, also those used twice."""
    for path, parent in list(model.named_modules(remove_duplicate=True)):
        if isinstance(parent, SERVED):
            continue
        if isinstance(parent, torch.nn.MultiheadAttention):
            yield f"{path}.in_proj_weight" if path else "in_proj_weight", parent, "", parent
        for key, child in list(parent._modules.items()):  # named_children leaves out layers that are used twice
            if child is None or isinstance(child, SERVED):  # an earlier swap's
                continue
            weight = getattr(child, "weight", None)
            own = isinstance(weight, torch.Tensor) and not _of_a_child(child, weight)
            if is_lazy(child) or _quantised(child) or (own and _matrix(child, weight)):
                yield f"{path}.{key}" if path else key, parent, key, child


def is_lazy(child: torch.nn.Module) -> bool:
    """True if its weight has no size yet."""
    return isinstance(child, torch.nn.modules.lazy.LazyModuleMixin) and child.has_uninitialized_params()


def stored_by_input(layer: Any) -> bool:
    """True if a layer is ``Conv1D`` of transformers: a linear whose weight is stored (in, out)."""
    kind = type(layer)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


def specs_of(layer: Any, others: bool) -> list[str]:
    """The ops that can serve a layer, the one for how its images lie in memory first. ``others``: see ``prefers_last``."""
    if type(layer) not in KINDS:
        return [first_spec(layer)]
    last = prefers_last(layer, others=others)
    return [spec_of(layer, last=last), spec_of(layer, last=not last)]


def first_spec(layer: Any, others: bool = False) -> str:
    """The first of ``specs_of``."""
    if type(layer) in KINDS:
        return spec_of(layer, last=prefers_last(layer, others=others))
    if stored_by_input(layer):
        return f"dense:n={layer.weight.shape[1]},k={layer.weight.shape[0]},weight=kn{dtype_word(layer)}"
    return f"dense:n={layer.out_features},k={layer.in_features}{dtype_word(layer)}"


def projection_of(attention: torch.nn.MultiheadAttention) -> torch.nn.Linear:
    """The layer that an attention's input projection is; it shares the parameters."""
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight, layer.bias = weight, bias
    return layer.train(attention.training)


def why_left(parent: torch.nn.Module, layer: Any, position: str | None) -> str:
    """Reason that a layer stays torch's whatever a pack there (None: the layer's) holds; empty if it may be served."""
    if isinstance(layer, torch.nn.MultiheadAttention):
        if position is None or position != "cpu":
            return "attention's input projection is no layer of its own"
        return unserved(layer) or f"not in the pack: tune it with --op {first_spec(projection_of(layer))}"
    if isinstance(parent, torch.nn.MultiheadAttention):
        return "attention reads its output projection's weight itself, unless its input projection is served"
    if is_lazy(layer):
        return "its weight has no size yet: call the model once, then swap"
    if why := _why_computed(layer):
        return why
    if type(layer) not in LAYERS and not stored_by_input(layer):
        kind = type(layer)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return f"{name} is not served, only nn.Linear, and convolutions of one and two axes, themselves"
    return _why_special(layer) or _why_weight(layer, position)


def _why_computed(layer: Any) -> str:
    """Reason that a weight that is computed anew at each call cannot be packed; empty for another."""
    if torch.nn.utils.parametrize.is_parametrized(layer):
        names = ", ".join(layer.parametrizations)
        return f"{names} is parametrized, computed at each call: torch.nn.utils.parametrize.remove_parametrizations first"
    for hook in layer._forward_pre_hooks.values():
        kind = type(hook)
        if kind.__module__.startswith("torch.nn.utils."):
            how = (
                "prune.remove"
                if kind.__module__.endswith(".prune")
                else "torch.nn.utils.remove_weight_norm, …_spectral_norm"
            )
            return f"{kind.__name__} computes a tensor of it at each call: make that permanent first ({how})"
    return ""


def _why_special(layer: Any) -> str:
    """Reason that a layer of a served type computes something else; else empty."""
    if type(layer) in KINDS and (why := reason_of(layer)):
        return why
    if "forward" in layer.__dict__ or type(layer).forward is not _FORWARDS.get(type(layer), type(layer).forward):
        return "its forward was replaced"
    if layer._forward_hooks or layer._forward_pre_hooks:
        return "it has hooks"
    return ""


def _why_weight(layer: Any, position: str | None) -> str:
    weight = layer.weight
    if type(weight) is not torch.nn.Parameter:
        return f"its weight is a {type(weight).__name__}, not a plain parameter"
    if weight.numel() == 0:
        return f"its weight has no elements: {tuple(weight.shape)}"
    on_cpu = position == "cpu" or (position is None and weight.device.type == "cpu")
    if (type(layer) in KINDS or stored_by_input(layer)) and not on_cpu:
        return "convolutions are served on the CPU only"
    if weight.dtype not in DTYPES:
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}; a pack takes float32, float16 or bfloat16"
    if position is None and weight.device.type not in ("cpu", "cuda"):
        return f"it lives on {weight.device}"
    if position is not None and weight.device not in (torch.device(position), torch.device(position.partition(":")[0])):
        return f"it lives on {weight.device}"
    return ""


def _quantised(child: torch.nn.Module) -> bool:
    """True if it is a layer of torch's own quantised ones, whose weight is no parameter."""
    return callable(getattr(child, "set_weight_bias", None))


def _of_a_child(module: torch.nn.Module, weight: torch.Tensor) -> bool:
    """True if a module shows the weight of a layer in it as its own, as an adapter of peft does."""
    if isinstance(weight, PackedWeight):
        return True
    return any(weight is parameter for child in module.children() for parameter in child.parameters())


def _matrix(child: torch.nn.Module, weight: torch.Tensor) -> bool:
    if isinstance(child, torch.nn.Embedding | torch.nn.EmbeddingBag):
        return False  # looked up, not multiplied
    return isinstance(child, torch.nn.Linear) or weight.dim() > 1
