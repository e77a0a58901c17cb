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


def step_of(module: Any) -> str:
    """The epilogue step that an activation is; empty where it is none, or has hooks."""
    if module is None or module._forward_hooks or module._forward_pre_hooks:
        return ""
    if type(module) is torch.nn.GELU:
        return "gelu" if module.approximate == "none" else "gelutanh"
    return _PLAIN.get(type(module), "")


def with_step(spec: str, step: str, *, bias: bool) -> str:
    """The spec of the same op with an activation behind it."""
    return f"{spec},epilogue={'bias+' if bias else ''}{step}"


class Passed(torch.nn.Module):  # type: ignore[misc]
    """Stands where an activation was that the layer before computes. Pickled, it becomes that activation again."""

    def __init__(self, original: torch.nn.Module) -> None:
        super().__init__()
        self._original = (original,)  # no child: nobody shall find and run it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` itself."""
        return x

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"{self._original[0]}, in the layer before"

    def __deepcopy__(self, memo: dict[int, Any]) -> Passed:
        copy = Passed(self._original[0])
        memo[id(self)] = copy
        return copy.train(self.training)  # type: ignore[no-any-return]

    def __copy__(self) -> Passed:
        return self.__deepcopy__({})

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, self._original


def _itself(module: torch.nn.Module) -> torch.nn.Module:
    return module
