"""``nn.TransformerEncoder`` around served layers: torch's fused paths read the layers' weights past their forward.

Under autocast torch's fused path gives autocast's type, its plain path float32 (norms do); served encoders give the latter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Undo = Callable[[Callable[[], Any]], Any]  # takes what undoes a change


def keep_working(parent: torch.nn.Module, undo: Undo) -> None:
    """Send a module that holds a served layer down torch's plain path, with the results that it had before."""
    if isinstance(parent, torch.nn.TransformerEncoderLayer):
        before = parent.activation_relu_or_gelu
        undo(lambda: setattr(parent, "activation_relu_or_gelu", before))
        parent.activation_relu_or_gelu = 0  # its fused path would read linear1.weight


def plain_encoders(model: torch.nn.Module, served: tuple[type[torch.nn.Module], ...], undo: Undo) -> None:
    """Encoders whose first layer is served keep padded rows; torch's nested tensors would read that layer's weights."""
    for encoder in model.modules():
        if not isinstance(encoder, torch.nn.TransformerEncoder) or not getattr(encoder, "use_nested_tensor", False):
            continue
        if any(isinstance(layer, served) for layer in encoder.layers.modules()):
            undo(partial(setattr, encoder, "use_nested_tensor", True))
            encoder.use_nested_tensor = False
            undo(encoder.register_forward_hook(_fill_padding, with_kwargs=True).remove)


def _fill_padding(encoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> torch.Tensor | None:
    """Padded rows as nested tensors leave them: zero, then the encoder's norm. The conditions are torch's own."""
    inputs = dict(zip(("src", "mask", "src_key_padding_mask"), args, strict=False)) | kwargs
    src, padding = inputs["src"], inputs.get("src_key_padding_mask")
    if padding is None or inputs.get("mask") is not None or src.dim() != 3 or encoder.layers[0].training:
        return None
    if not torch.backends.mha.get_fastpath_enabled() or torch.is_autocast_enabled():
        return None
    selected = padding.logical_not()
    if getattr(encoder, "mask_check", True) and (
        torch.compiler.is_compiling() or not torch._nested_tensor_from_mask_left_aligned(src, selected)
    ):
        return None
    row = torch.zeros_like(output[:1, :1])
    return torch.where(selected[..., None], output, row if encoder.norm is None else encoder.norm(row))
