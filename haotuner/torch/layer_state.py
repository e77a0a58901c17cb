"""State of a served layer: a loaded ``state_dict``, checked as torch does, and the plain layer of a served one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def checked_state(
    state: Mapping[str, Any], prefix: str, required: Mapping[str, tuple[int, ...]], strict: bool,
    missing: list[str], unexpected: list[str], errors: list[str],
) -> dict[str, Any]:  # fmt: skip
    """Tensors of a layer by name, out of a ``state_dict``; none where a shape is wrong, an error in torch's words."""
    inputs = {key: state[f"{prefix}{key}"] for key in required if f"{prefix}{key}" in state}
    missing += [f"{prefix}{key}" for key in required if key not in inputs and strict]
    if strict:
        known_keys = {f"{prefix}{key}" for key in required}
        unexpected += [key for key in state if key.startswith(prefix) and key not in known_keys]
    wrong = [key for key, value in inputs.items() if tuple(value.shape) != required[key]]
    errors += [
        f"size mismatch for {prefix}{key}: copying a param with shape {tuple(inputs[key].shape)}, "
        f"the shape in current model is {required[key]}."
        for key in wrong
    ]
    return {} if wrong else inputs


def plain_layer(kind: Any, weight: torch.Tensor, bias: torch.Tensor | None, training: bool) -> torch.nn.Module:
    """A layer of ``kind`` with these parameters; its other attributes follow."""
    layer: torch.nn.Module = kind.__new__(kind)
    torch.nn.Module.__init__(layer)
    layer.register_parameter("weight", torch.nn.Parameter(weight))
    layer.register_parameter("bias", None if bias is None else torch.nn.Parameter(bias))
    return layer.train(training)
