"""One operator under ``torch.ops.haotuner``: it and its ``.out``, for one dispatch key, with their fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from haotuner.errors import UsageError

_RECORDED = (FakeTensor, FunctionalTensor)
_RECORDING = (FakeTensorMode, FunctionalTensorMode, ProxyTorchDispatchMode)
_TAGS = (torch.Tag.pt2_compliant_tag,)
# By names of this module: looking them up in torch at every call took a twentieth of a small one.
_is_traced, _modes, _tracing_state = (
    torch.compiler.is_dynamo_compiling,
    torch._C._len_torch_dispatch_stack,
    torch._C._get_tracing_state,
)
_casts = torch.is_autocast_enabled


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
    torch.library.register_fake(f"{library.ns}::{name}", shape, lib=library)
    torch.library.register_fake(f"{library.ns}::{name}.out", nothing, lib=library)


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
    """Operator of several outputs: ``name(takes) -> (Tensor, …)``, and ``name.out(takes, *, out0, out1, …)``."""
    outs = ", ".join(f"Tensor({chr(ord('a') + index)}!) out{index}" for index in range(outputs))
    library.define(f"{name}({takes}) -> ({', '.join(['Tensor'] * outputs)})", tags=_TAGS)
    library.define(f"{name}.out({takes}, *, {outs}) -> ()", tags=_TAGS)
    library.impl(name, fresh, key)
    library.impl(f"{name}.out", into, key)
    torch.library.register_fake(f"{library.ns}::{name}", shape, lib=library)
    torch.library.register_fake(f"{library.ns}::{name}.out", lambda *inputs, **outs: None, lib=library)


def refuse_grad(name: str, *inputs: torch.Tensor | None) -> None:
    """ValueError where torch would want a gradient of an input, backwards or forwards."""
    if forward_ad._current_level >= 0:
        refuse_tangent(name, *inputs)
    if torch.is_grad_enabled() and any(operand is not None and operand.requires_grad for operand in inputs):
        raise ValueError(f"{name}: an input requires grad; a pack only infers: call it under torch.inference_mode()")


def refuse_tangent(name: str, *inputs: torch.Tensor | None) -> None:
    """ValueError for a dual tensor of forward-mode differentiation: its tangent would be lost."""
    if forward_ad._current_level >= 0 and any(operand is not None and _is_dual(operand) for operand in inputs):
        raise ValueError(
            f"{name}: an input is a dual tensor of torch.autograd.forward_ad; a pack only infers: pass its primal"
        )


def _is_dual(tensor: torch.Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None


def is_watched() -> bool:
    """True if torch compiles, records, casts or differentiates forwards what this thread computes.

    Tensors of ``torch.func`` do not show here: they have no memory, so that a native call refuses them.
    """
    return _is_traced() or _modes() > 0 or forward_ad._current_level >= 0 or _casts("cpu") or _tracing_state() is not None


def is_recorded(x: torch.Tensor) -> bool:
    """True if torch records or transforms what runs on ``x``, outside ``torch.compile``.

    Results that are computed past torch would be constants of the record.
    """
    native = torch._C
    modes, tracing = native._len_torch_dispatch_stack(), native._get_tracing_state()
    if tracing is not None or native._functorch.is_functorch_wrapped_tensor(x):
        return True
    if type(x) is torch.Tensor and not modes:
        return False
    return isinstance(x, _RECORDED) or any(isinstance(mode, _RECORDING) for mode in _get_current_dispatch_mode_stack())


def refuse_recording(name: str) -> None:
    """UsageError that says how a served layer gets into a graph."""
    raise UsageError(
        f"{name}: torch records or transforms this call (torch.export, make_fx, torch.jit.trace, torch.func), and the layer "
        "was served without an operator of torch: swap(model, pack, registered=haotuner.torch.register(pack))"
    )
