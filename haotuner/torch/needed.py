"""``ops_of``: which ops a model needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from haotuner.torch.activations import with_step
from haotuner.torch.attention import unserved
from haotuner.torch.chains import Chain, chains
from haotuner.torch.convolution import KINDS, any_last
from haotuner.torch.folding import unfoldable
from haotuner.torch.layers import first_spec, is_lazy, layers_of, projection_of, why_left


def ops_of(model: torch.nn.Module, *example: Any, fuse: bool = False) -> dict[str, int]:
    """``{--op spec: times}`` of the linears and convolutions that ``swap`` could serve, the most frequent first.

    ``fuse``: a layer with an activation behind it is one op, a batch norm in between included. ``times`` counts layers; with
    ``example``, the arguments of one run of the model (under ``torch.inference_mode``), it counts their calls in that run.
    """
    model = getattr(model, "_orig_mod", model)  # compiled: what it compiles, for its code calls no hooks
    if example and any(map(is_lazy, model.modules())):
        with torch.inference_mode(False), torch.no_grad():
            model(*example)  # lazy layers become plain ones
    found = {name: child for name, parent, _, child in layers_of(model) if not why_left(parent, child, None)}
    attention = [
        child for child in model.modules() if isinstance(child, torch.nn.MultiheadAttention) and not unserved(child)
    ]
    found |= {f"attention {place}": child for place, child in enumerate(attention)}
    after = chains(model).by_layer if fuse else {}
    kept, others = {id(child) for child in found.values()}, any_last(model)
    steps = {place: chain for place, chain in after.items() if chain.step and place in kept}
    if not example:
        return dict(Counter(spec for child in found.values() for spec in _wanted(child, steps, others)).most_common())
    counts: Counter[str] = Counter()
    hooks = [
        child.register_forward_pre_hook(lambda module, _: counts.update(_wanted(module, steps, others)))
        for child in {id(child): child for child in found.values()}.values()
    ]
    try:
        with torch.inference_mode():
            model(*example)
    finally:
        for hook in hooks:
            hook.remove()
    return dict(counts.most_common())


def _wanted(layer: Any, steps: Mapping[int, Chain], others: bool) -> list[str]:
    """The ops that a run of a layer needs. ``steps``: what follows layers, by ids; ``others``: see ``prefers_last``."""
    chain = steps.get(id(layer))
    channels = layer.out_channels if type(layer) in KINDS else None
    if chain is not None and (chain.norm is None or not unfoldable(chain.norm, channels)):
        return [with_step(first_spec(layer, others), chain.step, bias=layer.bias is not None or chain.norm is not None)]
    if isinstance(layer, torch.nn.MultiheadAttention):
        return [first_spec(projection_of(layer)), first_spec(layer.out_proj)]
    return [first_spec(layer, others)]
