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
    given = _PYTREE.tree_map(lambda one: one.detach().clone() if isinstance(one, torch.Tensor) else one, tuple(example))
    with torch.random.fork_rng(devices=[]), torch.inference_mode(), _state_restored(model):
        leaves = _PYTREE.tree_leaves(model(*given))
        return [one.detach().clone() if isinstance(one, torch.Tensor) else one for one in leaves]


def differences(want: Sequence[Any], found: Sequence[Any]) -> str:
    """How results differ by more than rounding, in words; empty where they do not."""
    if len(want) != len(found):
        return f"{len(found)} results, before {len(want)}"
    for place, (one, other) in enumerate(zip(want, found, strict=True)):
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            continue
        if one.shape != other.shape or one.dtype is not other.dtype:
            return f"result {place} is {_kind(other)}, before {_kind(one)}"
        if not one.is_floating_point():
            if not torch.equal(one, other):
                return f"result {place}, {_kind(one)}, has other numbers"
            continue
        a, b = one.double(), other.double()
        finite = a.isfinite()
        if not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()) or not torch.equal(finite, b.isfinite()):
            return f"result {place}, {_kind(one)}, has other infinities or NaN"
        if not finite.any():
            continue
        far, size = float((a - b)[finite].abs().max()), float(a[finite].abs().max())
        if far > _FAR.get(one.dtype, _FAR_FLOAT) * max(size, 1e-30):
            return f"result {place}, {_kind(one)}, is off by {far:.3g}, where its largest value is {size:.3g}"
    return ""


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


@contextmanager
def _state_restored(model: torch.nn.Module) -> Iterator[None]:
    """Attributes, containers in them and buffers of every module are afterwards what they were."""
    modules = list(model.modules())
    attributes = [dict(one.__dict__) for one in modules]
    contents = [(part, _copied(part)) for one in attributes for part in one.values() if isinstance(part, (dict, list, set))]
    tensors = [one for module in modules for one in (*module._buffers.values(), *module.__dict__.values())]
    numbers = [(one, one.detach().clone()) for one in tensors if type(one) is torch.Tensor]
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
