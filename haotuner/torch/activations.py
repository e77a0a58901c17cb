"""Activations that follow a layer (``chains.py``): served as the epilogue of the layer's op."""

from __future__ import annotations

from typing import Any

import torch

_PLAIN: dict[type[torch.nn.Module], str] = {
    torch.nn.ReLU: "relu",
    torch.nn.ReLU6: "relu6",
    torch.nn.SiLU: "silu",
    torch.nn.Sigmoid: "sigmoid",
    torch.nn.Tanh: "tanh",
    torch.nn.Hardswish: "hardswish",
    torch.nn.Hardsigmoid: "hardsigmoid",
}


def is_plain(module: Any) -> bool:
    """True if a call of a module runs its class's forward and nothing else: it has no hooks and no forward of its own."""
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return not hooked and "forward" not in module.__dict__


def step_of(module: Any) -> str:
    """The epilogue step that an activation is now; empty where it is none, has hooks or a forward of its own."""
    kind = type(module)
    step = _PLAIN.get(kind, "")
    if kind is torch.nn.GELU:
        step = "gelu" if module.approximate == "none" else "gelutanh"
    return step if step and is_plain(module) else ""


def with_step(spec: str, step: str, *, bias: bool) -> str:
    """The spec of the same op with an activation behind it."""
    return f"{spec},epilogue={'bias+' if bias else ''}{step}"
