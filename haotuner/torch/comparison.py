"""A model's results before and after a change of it, on the same inputs from the same state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from haotuner.errors import HaotunerError

_PYTREE = torch.utils._pytree
_FAR = {torch.bfloat16: 5e-2, torch.float16: 2e-2}  # of the largest value; sums are rounded to few digits layer by layer
_FAR_FLOAT = 2e-3


class WrongResult(HaotunerError):
    """A changed model computes something else than it did."""


def results_of(model: torch.nn.Module, example: Sequence[Any]) -> list[Any]:
    """The leaves of what a model gives for copies of ``example``; its state and torch's random numbers stay as they are."""
    inputs = _PYTREE.tree_map(lambda item: item.detach().clone() if isinstance(item, torch.Tensor) else item, tuple(example))
    with torch.random.fork_rng(devices=[]), torch.inference_mode(), _state_restored(model):
        leaves = _PYTREE.tree_leaves(model(*inputs))
        return [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def differences(want: Sequence[Any], tensors: Sequence[Any]) -> str:
    """Difference of results by more than rounding, in words; empty where there is none."""
    if len(want) != len(tensors):
        return f"{len(tensors)} results, before {len(want)}"
    for index, (tensor, other) in enumerate(zip(want, tensors, strict=True)):
        if not isinstance(tensor, torch.Tensor) or not isinstance(other, torch.Tensor):
            continue
        if tensor.shape != other.shape or tensor.dtype is not other.dtype:
            return f"result {index} is {_kind(other)}, before {_kind(tensor)}"
        if not tensor.is_floating_point():
            if not torch.equal(tensor, other):
                return f"result {index}, {_kind(tensor)}, has other numbers"
            continue
        a, b = tensor.double(), other.double()
        finite = a.isfinite()
        if not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()) or not torch.equal(finite, b.isfinite()):
            return f"result {index}, {_kind(tensor)}, has other infinities or NaN"
        if not finite.any():
            continue
        far, size = float((a - b)[finite].abs().max()), float(a[finite].abs().max())
        if far > _FAR.get(tensor.dtype, _FAR_FLOAT) * max(size, 1e-30):
            return f"result {index}, {_kind(tensor)}, is off by {far:.3g}, where its largest value is {size:.3g}"
    return ""


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


@contextmanager
def _state_restored(model: torch.nn.Module) -> Iterator[None]:
    """Attributes, containers in them and buffers of every module are afterwards what they were."""
    modules = list(model.modules())
    attributes = [dict(module.__dict__) for module in modules]
    contents = [
        (part, _copied(part))
        for attribute in attributes
        for part in attribute.values()
        if isinstance(part, (dict, list, set))
    ]
    tensors = [buffer for module in modules for buffer in (*module._buffers.values(), *module.__dict__.values())]
    numbers = [(tensor, tensor.detach().clone()) for tensor in tensors if type(tensor) is torch.Tensor]
    try:
        yield
    finally:
        for module, before in zip(modules, attributes, strict=True):
            module.__dict__.clear()
            module.__dict__.update(before)
        for part, before in contents:
            part.clear()
            part.extend(before) if isinstance(part, list) else part.update(before)
        with torch.no_grad():
            for tensor, before in numbers:
                if not torch.equal(tensor, before):
                    tensor.copy_(before)


def _copied(part: Any) -> Any:
    return list(part) if isinstance(part, list) else dict(part) if isinstance(part, dict) else set(part)
