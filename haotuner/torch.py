"""PyTorch: a pack's ops as ``torch.ops.haotuner.*``, and models whose ``nn.Linear`` layers are served from a pack.

    handle = haotuner.torch.register(pack)
    y = torch.ops.haotuner.dense_n2304_k768(x, packed, bias)      # packed = handle.pack_weight(name, weight)
    haotuner.torch.swap_linears(model, pack)                      # in place; names of the layers that were replaced

Ops are made with ``Library.define`` and ``impl``: ``torch.library.custom_op`` costs seven times more a call.
"""

from __future__ import annotations

import ctypes

import torch

from haotuner.errors import UsageError
from haotuner.runtime.linear import REFUSED, Linear
from haotuner.runtime.pack import DenseOp, Pack


class Registered:
    """Ops of one pack under ``torch.ops.haotuner``, until ``close``. The pack stays loaded as long as its ops are."""

    def __init__(self, pack: Pack) -> None:
        share_threads(pack)
        self._pack = pack
        self._library = torch.library.Library("haotuner", "FRAGMENT")
        self.names = pack.ops
        taken = [name for name in pack.ops if hasattr(torch.ops.haotuner, name)]
        if taken:
            raise UsageError(f"torch.ops.haotuner has {', '.join(taken)} already; close what registered them first")
        for name in pack.ops:
            self._define(pack.op(name))

    def pack_weight(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        """The packed weight that ``torch.ops.haotuner.<name>`` takes, from one as ``nn.Linear`` stores it."""
        return packed_tensor(self._pack.op(name).bind(weight))

    def close(self) -> None:
        """Take the ops out of torch; twice is harmless."""
        self._library._destroy()
        for name in self.names:
            torch.ops.haotuner.__dict__.pop(name, None)

    def __enter__(self) -> Registered:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _define(self, op: DenseOp) -> None:
        call, setting = self._pack.entry(op.entry)
        name, n, k = op.name, op.n, op.k
        tags = (torch.Tag.pt2_compliant_tag,)
        self._library.define(f"{name}(Tensor x, Tensor packed, Tensor? bias=None) -> Tensor", tags=tags)
        # Returns nothing: torch.compile cannot functionalize an operator that returns one of its arguments.
        self._library.define(f"{name}.out(Tensor x, Tensor packed, Tensor? bias=None, *, Tensor(a!) out) -> ()", tags=tags)

        # The usual call comes first and says nothing twice: each name and each Python frame is a twentieth of the call.
        def into(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None, *, out: torch.Tensor) -> None:
            if x.requires_grad or (bias is not None and bias.requires_grad):
                _refuse_grad(name)
            try:
                call(x, packed, out, setting) if bias is None else call(x, packed, out, setting, bias)
            except ValueError:
                if x.is_contiguous():
                    raise
                into(x.contiguous(), packed, bias, out=out)  # torch's own ops take any strides

        def fresh(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            if x.requires_grad or (bias is not None and bias.requires_grad):
                _refuse_grad(name)
            try:
                return call(x, packed, None, setting) if bias is None else call(x, packed, None, setting, bias)
            except REFUSED:  # or torch has no exchange table, and the output comes from here
                if x.dim() == 0:
                    raise
                out = x.new_empty((*x.shape[:-1], n))
                into(x, packed, bias, out=out)
                return out

        def shape(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            torch._check(x.dim() >= 1 and x.shape[-1] == k, lambda: f"{name}: x must be (..., {k})")
            return x.new_empty((*x.shape[:-1], n), dtype=torch.float32)

        def nothing(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None, *, out: torch.Tensor) -> None:
            torch._check(x.dim() >= 1 and x.shape[-1] == k, lambda: f"{name}: x must be (..., {k})")

        self._library.impl(name, fresh, "CPU")
        self._library.impl(f"{name}.out", into, "CPU")
        torch.library.register_fake(f"haotuner::{name}", shape, lib=self._library)
        torch.library.register_fake(f"haotuner::{name}.out", nothing, lib=self._library)


def _refuse_grad(name: str) -> None:
    if torch.is_grad_enabled():
        raise ValueError(f"{name}: an input requires grad; a pack only infers: call it under torch.inference_mode()")


def share_threads(pack: Pack, share: bool = True) -> bool:
    """Let packs compute on torch's OpenMP threads, in the whole process; False where torch has none of GNU's kind.

    ``share=False`` goes back to the packs' own pool.

    Torch's layers run between a pack's, on the same cores. Two pools there cost each other a wake-up a layer; in an encoder
    of BERT-base's size on two cores a layer norm of 37 rows took 735 us beside a pool of our own and 11 us without. Give
    packs as many threads as ``torch.get_num_threads()``: OpenMP starts its threads anew when the number changes. A forked
    child goes back to a pool of its own.
    """
    team = getattr(ctypes.CDLL(None), "GOMP_parallel", None) if share else None
    address = ctypes.cast(team, ctypes.c_void_p).value if team is not None else 0
    pack.library().function("ht_team")(address)
    return bool(address)


def register(pack: Pack) -> Registered:
    """``torch.ops.haotuner.<op>(x, packed, bias=None)`` and ``.out(…, out=y)``, which returns nothing, for every op.

    x is ``(…, k)`` float32 on the CPU; fakes accept symbolic sizes, so the ops go through
    ``torch.compile(fullgraph=True, dynamic=True)``. UsageError if an op of that name is registered already.
    """
    return Registered(pack)


def packed_tensor(linear: Linear) -> torch.Tensor:
    """The packed weight ``(panels, k, pw)`` of a bound linear, sharing its memory."""
    return torch.from_dlpack(linear.bound.packed)


class PackedLinear(torch.nn.Module):  # type: ignore[misc]
    """An ``nn.Linear`` served from a pack; inference only. Takes any strides that ``nn.Linear`` takes."""

    def __init__(self, linear: Linear, source: torch.nn.Linear, registered: Registered | None) -> None:
        super().__init__()
        operator = None if registered is None else getattr(torch.ops.haotuner, linear.name).default
        self.in_features, self.out_features = source.in_features, source.out_features
        self._linear = linear
        self._registered = registered  # the operator lives as long as this
        self._operator = operator
        self.register_buffer("packed", packed_tensor(linear), persistent=False)
        bias = None if source.bias is None else source.bias.detach()
        self.register_buffer("row", bias, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` times the weight, plus the bias."""
        if self._operator is not None and torch.compiler.is_compiling():
            result: torch.Tensor = self._operator(x, self.packed, self.row)
            return result
        if x.stride(-1) != 1 or x.dim() > 2:
            x = x.contiguous()
        found: torch.Tensor = self._linear(x)
        return found

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, op={self._linear.name}"


def swap_linears(model: torch.nn.Module, pack: Pack, registered: Registered | None = None) -> tuple[str, ...]:
    """Replace, in place, every plain float32 CPU ``nn.Linear`` whose sizes the pack holds; returns their names.

    Layers of other sizes, subclasses, and layers with hooks stay as they are. Packs then compute on torch's threads
    (``share_threads``). Pass ``registered`` to compile the model
    with ``torch.compile``; without it compiled models break the graph at each layer.
    """
    share_threads(pack)
    swapped: dict[int, PackedLinear] = {}
    names: list[str] = []
    for path, parent in list(model.named_modules(remove_duplicate=True)):
        for key, child in list(parent._modules.items()):  # named_children leaves out layers that are used twice
            if child is None or not _plain(child):
                continue
            name = f"dense_n{child.out_features}_k{child.in_features}"
            if name not in pack.ops:
                continue
            if id(child) not in swapped:
                swapped[id(child)] = PackedLinear(pack.op(name).bind(child.weight, child.bias), child, registered)
            setattr(parent, key, swapped[id(child)])
            names.append(f"{path}.{key}" if path else key)
            if isinstance(parent, torch.nn.TransformerEncoderLayer):
                parent.activation_relu_or_gelu = 0  # its fast path reads the layers' weights past their forward
    return tuple(names)


def _plain(module: torch.nn.Module) -> bool:
    if type(module) is not torch.nn.Linear or module._forward_hooks or module._forward_pre_hooks:
        return False
    weight = module.weight
    return type(weight) is torch.nn.Parameter and weight.dtype == torch.float32 and weight.device.type == "cpu"
