"""One operator under ``torch.ops.haotuner``: it and its ``.out``, for one dispatch key, with their fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_TAGS = (torch.Tag.pt2_compliant_tag,)


def define_pair(
    library: torch.library.Library,
    name: str,
    takes: str,
    key: str,
    *,
    fresh: Callable[..., Any],
    into: Callable[..., Any],
    shape: Callable[..., Any],
    nothing: Callable[..., Any],
) -> None:
    """Define ``name(takes) -> Tensor`` as ``fresh`` and ``name.out(takes, *, out)`` as ``into``.

    ``shape`` and ``nothing`` are their fakes: what they give and check, without numbers.
    ``.out`` returns nothing: torch.compile cannot functionalize an operator that returns one of its arguments.
    """
    library.define(f"{name}({takes}) -> Tensor", tags=_TAGS)
    library.define(f"{name}.out({takes}, *, Tensor(a!) out) -> ()", tags=_TAGS)
    library.impl(name, fresh, key)
    library.impl(f"{name}.out", into, key)
    torch.library.register_fake(f"haotuner::{name}", shape, lib=library)
    torch.library.register_fake(f"haotuner::{name}.out", nothing, lib=library)


def define_group(
    library: torch.library.Library,
    name: str,
    takes: str,
    key: str,
    outputs: int,
    *,
    fresh: Callable[..., Any],
    into: Callable[..., Any],
    shape: Callable[..., Any],
) -> None:
    """The same of several outputs: ``name(takes) -> (Tensor, …)``, and ``name.out(takes, *, out0, out1, …)``."""
    outs = ", ".join(f"Tensor({chr(ord('a') + place)}!) out{place}" for place in range(outputs))
    library.define(f"{name}({takes}) -> ({', '.join(['Tensor'] * outputs)})", tags=_TAGS)
    library.define(f"{name}.out({takes}, *, {outs}) -> ()", tags=_TAGS)
    library.impl(name, fresh, key)
    library.impl(f"{name}.out", into, key)
    torch.library.register_fake(f"haotuner::{name}", shape, lib=library)
    torch.library.register_fake(f"haotuner::{name}.out", lambda *given, **outs: None, lib=library)


def refuse_grad(name: str, *inputs: torch.Tensor | None) -> None:
    """ValueError where torch would want a gradient of an input."""
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in inputs):
        raise ValueError(f"{name}: an input requires grad; a pack only infers: call it under torch.inference_mode()")
