"""Which ops a model needs, and a model's linears served from a pack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from haotuner.runtime.pack import Pack
from haotuner.torch.encoder import keep_working, plain_encoders
from haotuner.torch.layer import PackedLinear
from haotuner.torch.ops import Registered, share_threads


@dataclass(frozen=True, slots=True)
class Swapped:
    """What ``swap`` did. ``print`` shows both lists."""

    replaced: tuple[str, ...]  # names of layers that are served from the pack now
    left: Mapping[str, str]  # name of a layer with a weight that stays torch's -> why

    def __str__(self) -> str:
        whole = len(self.replaced) + len(self.left)
        lines = [f"{len(self.replaced)} of {whole} layers with a weight are served from the pack"]
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left.items():
            reasons.setdefault(reason, []).append(name)
        lines += [f"left ({len(names)}): {reason}: {_few(names)}" for reason, names in reasons.items()]
        return "\n".join(lines)


def swap(model: torch.nn.Module, pack: Pack, registered: Registered | None = None) -> Swapped:
    """Replace, in place, every plain float32 CPU ``nn.Linear`` whose sizes the pack holds.

    Packs then compute on torch's threads (``share_threads``). Pass ``registered`` to compile the model with
    ``torch.compile``; without it compiled models break the graph at each layer. The model only infers from then on.
    """
    share_threads(pack)
    made: dict[int, PackedLinear] = {}
    replaced: list[str] = []
    left: dict[str, str] = {}
    for name, parent, key, child in _layers(model):
        op = f"dense_n{child.out_features}_k{child.in_features}" if isinstance(child, torch.nn.Linear) else ""
        reason = _reason(parent, child)
        if not reason and op not in pack.ops:
            reason = f"not in the pack: tune it with --op {_spec(child)}"
        if reason:
            left[name] = reason
            continue
        if id(child) not in made:
            made[id(child)] = PackedLinear.of(pack, op, child, registered)
        setattr(parent, key, made[id(child)])
        replaced.append(name)
        keep_working(parent)
    if replaced:
        plain_encoders(model, PackedLinear)
    return Swapped(tuple(replaced), left)


def swap_linears(model: torch.nn.Module, pack: Pack, registered: Registered | None = None) -> tuple[str, ...]:
    """``swap``, and of its answer the names of what was replaced."""
    return swap(model, pack, registered).replaced


def ops_of(model: torch.nn.Module, *example: Any) -> dict[str, int]:
    """``{--op spec: times}`` of the linears that ``swap`` could serve, the most frequent first.

    ``times`` counts layers; with ``example``, the arguments of one run of the model (under ``torch.inference_mode``), it
    counts their calls in that run.
    """
    found = {name: child for name, parent, _, child in _layers(model) if not _reason(parent, child)}
    if not example:
        return dict(Counter(_spec(child) for child in found.values()).most_common())
    counts: Counter[str] = Counter()
    hooks = [
        child.register_forward_pre_hook(lambda module, _: counts.update([_spec(module)]))
        for child in {id(child): child for child in found.values()}.values()
    ]
    try:
        with torch.inference_mode():
            model(*example)
    finally:
        for hook in hooks:
            hook.remove()
    return dict(counts.most_common())


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, torch.nn.Module]]:
    """(name, parent, key in the parent, layer) of all layers with a weight of two or more axes, also those used twice."""
    for path, parent in list(model.named_modules(remove_duplicate=True)):
        if isinstance(parent, torch.nn.MultiheadAttention):
            yield f"{path}.in_proj_weight" if path else "in_proj_weight", parent, "", parent
        for key, child in list(parent._modules.items()):  # named_children leaves out layers that are used twice
            if child is None or isinstance(child, PackedLinear):  # an earlier swap's
                continue
            weight = getattr(child, "weight", None)
            if isinstance(weight, torch.Tensor) and _matrix(child, weight):
                yield f"{path}.{key}" if path else key, parent, key, child


def _matrix(child: torch.nn.Module, weight: torch.Tensor) -> bool:
    if isinstance(child, torch.nn.Embedding | torch.nn.EmbeddingBag):
        return False  # looked up, not multiplied
    return isinstance(child, torch.nn.Linear) or weight.dim() > 1


def _spec(layer: Any) -> str:
    return f"dense:n={layer.out_features},k={layer.in_features}"


def _reason(parent: torch.nn.Module, layer: Any) -> str:
    """Why a layer stays torch's whatever the pack holds; empty if it may be served."""
    if isinstance(layer, torch.nn.MultiheadAttention):
        return "attention's input projection is no layer of its own"
    if isinstance(parent, torch.nn.MultiheadAttention):
        return "attention reads its output projection's weight itself"
    if type(layer) is not torch.nn.Linear:
        return f"{type(layer).__name__} is not served, only nn.Linear itself"
    if layer._forward_hooks or layer._forward_pre_hooks:
        return "it has hooks"
    weight = layer.weight
    if type(weight) is not torch.nn.Parameter:
        return f"its weight is a {type(weight).__name__}, not a plain parameter"
    if weight.dtype != torch.float32:
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}; a pack takes float32"
    if weight.device.type != "cpu":
        return f"it lives on {weight.device}"
    return ""


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
