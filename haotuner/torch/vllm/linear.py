"""Unquantised linears, heads and embeddings of vLLM on the operators of a pack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from haotuner.torch.vllm.serving import Serving, dense_spec

OP_NAME = "haotuner_op"  # attribute of a served layer: the name of its op

Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def serve_linear(layer: Any, serving: Serving, *, embedding: bool, head: bool, replaces_head: bool) -> str:
    """Reason that vLLM's own kernel serves a layer; empty once the pack does.

    ``layer.cpu_linear(x, layer.weight, bias)`` is the product from then on, and ``layer.weight`` the packed weight alone.

    Args:
        layer: a layer of vLLM whose weight is loaded.
        serving: the pack's operators.
        embedding: its weight is looked up, too, and stays: an embedding, or a head that shares an embedding's weight.
        head: it makes logits.
        replaces_head: nothing reads a head's plain weight, which may go.
    """
    weight = layer.weight
    if weight.is_meta or weight.dim() != 2:
        return "its weight is no matrix"
    n, k = weight.shape
    spec = dense_spec(n, k, weight.dtype)
    if spec is None:
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}; a pack takes float32, float16 or bfloat16"
    operator = serving.operator(spec)
    if operator is None:
        return f"not in the pack: tune it with --op {spec}"
    name, product = operator
    _bias_in_float(layer)
    if embedding and not head:
        layer.cpu_linear = _packed_at_first_call(serving, name, product)
    elif head and not replaces_head:
        packed = serving.packed(name, weight)
        layer.cpu_linear = lambda x, weight, bias: product(x, packed, _in_float(bias))
    else:
        layer.weight = serving.packed(name, weight)
        layer.cpu_linear = lambda x, weight, bias: product(x, weight, _in_float(bias))
        del weight
        serving.trim()
    setattr(layer, OP_NAME, name)
    return ""


def _packed_at_first_call(serving: Serving, name: str, product: Callable[..., torch.Tensor]) -> Product:
    """The product of an embedding that some models call as their head; others only look rows up, and pack nothing."""
    packed: list[torch.Tensor] = []

    def apply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if not packed:
            packed.append(serving.packed(name, weight))
        return product(x, packed[0], _in_float(bias))

    return apply


def _in_float(bias: torch.Tensor | None) -> torch.Tensor | None:
    """The bias as an op adds it."""
    return bias if bias is None or bias.dtype is torch.float32 else bias.float()


def _bias_in_float(layer: Any) -> None:
    """Turn the bias of a layer that adds it itself into float32 once; other layers hand theirs on to the model."""
    bias = getattr(layer, "bias", None)
    if isinstance(bias, torch.Tensor) and not getattr(layer, "skip_bias_add", False):
        bias.data = bias.data.float()
