"""``PackedAttention``: an ``nn.MultiheadAttention`` whose projections are layers; encoders around served layers.

``nn.TransformerEncoder`` around served layers: torch's fused paths read the layers' weights past their forward.

Under autocast torch's fused path gives autocast's type, its plain path float32 (norms do); served encoders give the latter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from haotuner.torch.convolution import DTYPES
from haotuner.torch.layer import PackedLinear
from haotuner.torch.weights import PRESENCE, NamedTensors

_FORWARD = torch.nn.MultiheadAttention.forward


def unserved(attention: torch.nn.MultiheadAttention) -> str:
    """Reason that an attention stays torch's whatever a pack holds; empty if it may be served."""
    if type(attention) is not torch.nn.MultiheadAttention:
        return f"{type(attention).__name__} is not served, only nn.MultiheadAttention itself"
    if not attention._qkv_same_embed_dim:
        return "attention of keys or values of another width has no input projection of its own"
    if attention.bias_k is not None or attention.add_zero_attn:
        return "attention with an added key and value is not served"
    if "forward" in attention.__dict__ or type(attention).forward is not _FORWARD:
        return "its forward was replaced"
    if attention._forward_hooks or attention._forward_pre_hooks:
        return "it has hooks"
    weight = attention.in_proj_weight
    if weight.dtype not in DTYPES or weight.device.type != "cpu":
        return (
            f"its weight is {str(weight.dtype).removeprefix('torch.')} on {weight.device}; "
            "a pack takes float32, float16 or bfloat16 on the CPU"
        )
    return ""


class PackedAttention(torch.nn.Module):  # type: ignore[misc]
    """Called as ``nn.MultiheadAttention`` is, with its results and its ``state_dict``; inference only.

    One product projects queries, keys and values where they are one tensor, as in self-attention; others take one each.
    Pickled, it becomes the attention that it stands for.
    """

    _qkv_same_embed_dim = True
    bias_k = bias_v = None
    add_zero_attn = False

    def __init__(self, source: torch.nn.MultiheadAttention, projection: PackedLinear) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.head_dim = source.embed_dim, source.num_heads, source.head_dim
        self.kdim = self.vdim = source.embed_dim
        self.dropout, self.batch_first = source.dropout, source.batch_first
        self.__dict__["projection"] = projection  # no child: its names in a state_dict are this module's own
        self._show_types()
        self.out_proj = torch.nn.Linear(self.embed_dim, self.embed_dim, bias=source.out_proj.bias is not None, device="meta")
        self.out_proj.weight, self.out_proj.bias = source.out_proj.weight, source.out_proj.bias
        self.train(source.training)

    @property
    def in_proj_weight(self) -> torch.Tensor:
        """The weight ``(3 embed_dim, embed_dim)``; see ``PackedWeight``."""
        return self.projection.weight

    @property
    def in_proj_bias(self) -> torch.Tensor | None:
        """The bias ``(3 embed_dim,)``, or None."""
        return self.projection.bias

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True, attn_mask: torch.Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        """Output and, if asked for, weights; see ``nn.MultiheadAttention``."""
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        alone = query.dim() == 2
        q, k, v = self._projected(query, key, value)
        if alone:
            q, k, v = (part[None] for part in (q, k, v))
        elif not self.batch_first:
            q, k, v = (part.transpose(0, 1) for part in (q, k, v))
        q, k, v = (part.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for part in (q, k, v))
        mask = self._mask(
            q, k, attn_mask, key_padding_mask[None] if alone and key_padding_mask is not None else key_padding_mask
        )
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * self.head_dim**-0.5) @ k.transpose(-2, -1)
            weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
            weights = torch.nn.functional.dropout(weights, dropout) if dropout else weights
            mixed = weights @ v
            weights = weights.mean(dim=1) if average_attn_weights else weights
            weights = weights[0] if alone else weights
        else:
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        output = self.out_proj(mixed.transpose(1, 2).flatten(-2))
        if alone:
            output = output[0]
        elif not self.batch_first:
            output = output.transpose(0, 1)
        return output, weights

    def _projected(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if query is key and key is value:
            return tuple(self.projection(query).chunk(3, dim=-1))
        width = self.embed_dim
        return tuple(
            self.projection(x)[..., index * width : (index + 1) * width] for index, x in enumerate((query, key, value))
        )

    def _mask(
        self, q: torch.Tensor, k: torch.Tensor, attn: torch.Tensor | None, padding: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Both masks as one that is added to scores (batch, heads, queries, keys); bool ones say what is left out."""
        result: torch.Tensor | None = None
        for mask, shape in ((attn, None), (padding, (q.shape[0], 1, 1, k.shape[2]))):
            if mask is None:
                continue
            if shape is None:
                shape = mask.shape if mask.dim() == 2 else (q.shape[0], self.num_heads, *mask.shape[1:])
            if mask.dtype is torch.bool:
                mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask, float("-inf"))
            mask = mask.to(q.dtype).reshape(shape)
            result = mask if result is None else result + mask
        return result

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PackedAttention:
        self.projection._apply(fn)
        self._show_types()
        super()._apply(fn, recurse)
        return self

    def _show_types(self) -> None:
        """Show the projection's parameters as this module's own."""
        names = [f"in_proj_{name}" for name in self.projection.tensors()]
        parameters = NamedTensors(self, self.projection.extra_repr(), names)
        inner: Any = self.projection._parameters
        parameters.typed = {f"in_proj_{name}": tensor for name, tensor in inner.typed.items()}
        dict.update(parameters, {PRESENCE: inner[PRESENCE]})
        self.__dict__["_parameters"] = parameters

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("in_proj_weight", "in_proj_bias"):
            setattr(self.projection, name.removeprefix("in_proj_"), value)
        else:
            super().__setattr__(name, value)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self.projection._save_to_state_dict(destination, f"{prefix}in_proj_", keep_vars)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        own = f"{prefix}in_proj_"
        self.projection._load_from_state_dict(
            state_dict, own, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if strict:
            known = (own, f"{prefix}out_proj.")
            unexpected_keys += [key for key in state_dict if key.startswith(prefix) and not key.startswith(known)]

    def __reduce__(self) -> tuple[Any, ...]:
        words = {"num_heads": self.num_heads, "dropout": self.dropout, "batch_first": self.batch_first}
        return _plain, (
            words,
            self.in_proj_weight,
            self.in_proj_bias,
            self.out_proj.weight,
            self.out_proj.bias,
            self.training,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedAttention:
        from copy import deepcopy

        copy = PackedAttention.__new__(PackedAttention)
        memo[id(self)] = copy
        copy.__dict__.update({name: deepcopy(value, memo) for name, value in self.__dict__.items()})
        copy._show_types()
        return copy


def _plain(
    words: dict[str, Any], weight: torch.Tensor, bias: torch.Tensor | None, out_weight: torch.Tensor,
    out_bias: torch.Tensor | None, training: bool,
) -> torch.nn.MultiheadAttention:  # fmt: skip
    attention = torch.nn.MultiheadAttention(
        weight.shape[1], bias=bias is not None, device="meta", dtype=weight.dtype, **words
    )
    attention.in_proj_weight = torch.nn.Parameter(weight)
    attention.out_proj.weight = torch.nn.Parameter(out_weight.detach())
    if bias is not None:
        attention.in_proj_bias = torch.nn.Parameter(bias)
    if out_bias is not None:
        attention.out_proj.bias = torch.nn.Parameter(out_bias.detach())
    return attention.train(training)


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
