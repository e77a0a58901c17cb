"""A model's linears and convolutions served from a pack, in place, and results before and after compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from haotuner.errors import HaotunerError
from haotuner.runtime.pack import Pack
from haotuner.spec.op import Op
from haotuner.torch.attention import PackedAttention, keep_working, plain_encoders, unserved
from haotuner.torch.chains import Chains, chains
from haotuner.torch.convolution import KINDS, PackedConvolution, any_last
from haotuner.torch.device_layer import DeviceCall, DeviceLayer
from haotuner.torch.folding import unfoldable, with_step
from haotuner.torch.layer import PackedLinear
from haotuner.torch.layers import SERVED, first_spec, layers_of, projection_of, specs_of, why_left
from haotuner.torch.ops import Registered, share_threads
from haotuner.torch.references import outside_registers
from haotuner.torch.rewriting import weight_reads

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


@dataclass(frozen=True, slots=True)
class Swapped:
    """Result of ``swap``. ``print`` shows all of it."""

    replaced: tuple[str, ...]  # names of layers that are served from the pack now
    left: Mapping[str, str]  # name of a layer with a weight that stays torch's -> why
    folded: Mapping[str, str] = field(default_factory=dict)  # name of a batch norm -> the convolution that computes it, too
    unfolded: Mapping[str, str] = field(default_factory=dict)  # name of one behind a convolution that stays -> why
    tied: Mapping[str, str] = field(
        default_factory=dict
    )  # name of a replaced layer -> torch's parameter that was its weight
    unread: Mapping[str, str] = field(default_factory=dict)  # name of a module whose methods show nothing -> why
    fused: Mapping[str, str] = field(default_factory=dict)  # name of a layer -> the activation that its op computes, too

    def __str__(self) -> str:
        whole = len(self.replaced) + len(self.left)
        lines = [f"{len(self.replaced)} of {whole} layers with a weight are served from the pack"]
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left.items():
            reasons.setdefault(reason, []).append(name)
        lines += [f"left ({len(names)}): {reason}: {_few(names)}" for reason, names in reasons.items()]
        if self.folded:
            lines.append(f"batch norms folded into the convolution before ({len(self.folded)}): {_few(list(self.folded))}")
        if self.fused:
            pairs = [f"{layer} with {activation}" for layer, activation in self.fused.items()]
            lines.append(f"activations fused where both are called ({len(pairs)}): {_few(pairs)}")
        stays: dict[str, list[str]] = {}
        for name, reason in self.unfolded.items():
            stays.setdefault(reason, []).append(name)
        lines += [f"batch norm left: {_few(names)}: {why}" for why, names in stays.items()]
        lines += [f"tied: {name} shares {other}: a change of either is served" for name, other in self.tied.items()]
        lines += [f"not looked through for norms and activations: {name}: {why}" for name, why in self.unread.items()]
        if self.replaced:
            lines.append("served weights are packed copies: a change, in place or by load_state_dict, packs them anew")
        return "\n".join(lines)


def swap(model: torch.nn.Module, pack: Pack, *example: Any, registered: Registered | None = None) -> Swapped:
    """Swap, in place, of every plain ``nn.Linear``, ``nn.Conv1d``, ``Conv2d`` and transposed one whose op the pack holds.

    Layers may be float32, bfloat16 or float16, if the pack holds such an op; the projections of ``nn.MultiheadAttention``
    are linears, too. A ``Sequential`` or a method's source may call a layer, a batch norm in eval mode and an activation one
    after the other. If the pack holds their fused op, that op serves such calls. Each module called by itself, with a hook,
    or in another state, computes what it computed. Packs on the CPU compute on torch's threads (``share_threads``). The
    model only infers from then on.

    Args:
        model: what is changed.
        pack: an open pack.
        example: arguments of one run of the model. It runs before and after; if the results differ, all is undone.
        registered: ``register(pack)``, to compile or export the model; without it a compiled graph breaks at each layer.

    Raises:
        WrongResult: results of ``example`` differ by more than the types explain. The model is as it was.
    """
    if not isinstance(model, torch.nn.Module) or not isinstance(pack, Pack):
        result = f"{type(model).__name__} and {type(pack).__name__}"
        raise TypeError(f"swap takes a torch.nn.Module and a pack that haotuner.load opened; got {result}")
    if example and (example[0] is None or isinstance(example[0], Registered)):  # swap(model, pack, registered)
        registered, example = example[0], example[1:]
    if type(model) in (torch.nn.Linear, torch.nn.MultiheadAttention, *KINDS):
        why = "it is the whole model, which cannot be replaced in place: swap torch.nn.Sequential(layer), or what holds it"
        return Swapped((), {type(model).__name__: why})
    want = results_of(model, example) if example else None
    if pack.gpu is None:
        share_threads(pack)
    weights = {name: parameter for name, parameter in model.named_parameters(remove_duplicate=False)}
    work = _Swap(model, pack, registered)
    try:
        work.layers()
        if work.replaced:
            plain_encoders(model, SERVED, work.undo.append)
        if want is not None and (far := differences(want, results_of(model, example))):
            raise WrongResult(f"the swapped model computes something else: {far}; the model is as it was. {_ADVICE}")
    except BaseException:
        for step in reversed(work.undo):
            step()
        raise
    tied = _tied(model, weights, work.replaced) if work.on_cpu else {}
    return Swapped(tuple(work.replaced), work.left, work.norms, work.unfolded, tied, work.after.unread, work.fused)


_ADVICE = "Check `python -m haotuner.pack verify` of the pack, then swap parts of the model to find the layer"


class _Swap:
    """One run over the layers of a model: what was replaced, what was left, why, and how it is undone."""

    def __init__(self, model: torch.nn.Module, pack: Pack, registered: Registered | None) -> None:
        self.pack, self.registered, self.model = pack, registered, model
        self.on_cpu = pack.gpu is None
        self._device = "cpu" if pack.gpu is None else f"cuda:{pack.gpu.ordinal}"
        self.undo: list[Callable[[], Any]] = []
        self.replaced: list[str] = []
        self.left: dict[str, str] = {}
        self.norms: dict[str, str] = {}
        self.unfolded: dict[str, str] = {}
        self.fused: dict[str, str] = {}
        self.after = chains(model) if self.on_cpu else Chains()
        self._last = any_last(model)
        self._names = {id(module): name for name, module in model.named_modules()}
        self._replacements: dict[Any, torch.nn.Module] = {}
        self._outside = outside_registers(model)

    def layers(self) -> None:
        """Replace every layer that the pack serves."""
        if self.on_cpu:
            self._attention()
            self._names |= {
                id(module): name for name, module in self.model.named_modules()
            }  # what stands for attention has layers
        for name, parent, key, child in layers_of(self.model):
            reads = weight_reads(parent, key) if self.on_cpu and key else None
            reason = why_left(parent, child, self._device) or self._why_outside(child)
            if not reason and reads is not None and not reads.called:
                reason = f"{reads.method} reads its weight and never calls it"
            if reason:
                self._leave(name, child, reason)
                continue
            norm = self._norm(child)
            fused, plain = self._ops(child, norm)
            ops = [Op.parse(spec).name for spec in (*fused, *plain)]
            served_ = [index for index, op in enumerate(ops) if op in self.pack.ops]
            if not served_:
                self._leave(name, child, f"not in the pack: tune it with --op {plain[0]}{_reason_left(child)}")
                continue
            first, alone = served_[0], ops[len(fused) + served_[0] % len(plain)]
            served = self._serve(parent, key, child, norm, ops[first], alone, fused=first < len(fused))
            self.replaced.append(name)
            if reads is not None and isinstance(served, PackedLinear) and self.registered is not None:
                served.numbers("weight")  # a compiled graph cannot unpack it

    def _why_outside(self, layer: torch.nn.Module) -> str:
        """Reason that a layer which something holds past torch's registers stays torch's; else empty."""
        parts = (layer, *layer.parameters(recurse=False))
        where = next((self._outside[id(part)] for part in parts if id(part) in self._outside), "")
        return f"{where} holds it or its weight too, past torch's registers: a swap does not reach it there" if where else ""

    def _set(self, parent: torch.nn.Module, key: str, served: torch.nn.Module) -> None:
        before = parent._modules[key]
        self.undo.append(lambda: parent._modules.__setitem__(key, before))
        setattr(parent, key, served)
        keep_working(parent, self.undo.append)

    def _norm(self, child: Any) -> Any:
        """The norm behind a layer, if it can be folded into it; why not is noted."""
        norm = self.after.after(child).norm
        if norm is not None and (why := unfoldable(norm, child.out_channels if type(child) in KINDS else None)):
            self.unfolded[self._names[id(norm)]] = why
            return None
        return norm

    def _ops(self, child: Any, norm: Any) -> tuple[list[str], list[str]]:
        """Ops that serve a layer with the activation behind it, and those that serve it alone."""
        chain, plain = self.after.after(child), specs_of(child, self._last)
        step = "" if norm is None and chain.norm is not None else chain.step  # nothing is served past a norm that stays
        bias = child.bias is not None or norm is not None
        return [with_step(spec, step, bias=bias) for spec in plain if step], plain

    def _leave(self, name: str, child: Any, reason: str) -> None:
        self.left[name] = reason
        norm = self.after.after(child).norm
        if norm is not None:
            self.unfolded.setdefault(self._names[id(norm)], f"the convolution before it is left: {name}")

    def _serve(
        self, parent: torch.nn.Module, key: str, child: Any, norm: Any, op: str, plain: str, *, fused: bool
    ) -> torch.nn.Module:
        chain, same, name = self.after.after(child), _same(child, op), self._names[id(child)]
        if same not in self._replacements:
            self._replacements[same] = _served(self.pack, op, child, norm, self.registered, plain)
        served = self._replacements[same]
        self._set(parent, key, served)
        if norm is not None:
            self.norms[self._names[id(norm)]] = name
        if fused:
            self.fused[name] = self._names[id(chain.activation)]
        if fused or norm is not None:
            for caller in chain.callers:
                self._call_at_once(caller)
        return served

    def _call_at_once(self, caller: torch.nn.Module) -> None:
        """Give a module the class whose methods call its chains at once."""
        made, before = self.after.classes.get(id(caller)), caller.__class__
        if made is None or before is made:
            return
        caller.__class__ = made
        self.undo.append(lambda: setattr(caller, "__class__", before))

    def _attention(self) -> None:
        """Attention whose input projection the pack holds becomes one of layers."""
        made: dict[int, torch.nn.Module] = {}
        for path, parent in list(self.model.named_modules()):
            for key, child in list(parent._modules.items()):
                if not isinstance(child, torch.nn.MultiheadAttention) or unserved(child) or self._why_outside(child):
                    continue
                if id(child) not in made:
                    projection = projection_of(child)
                    op = Op.parse(first_spec(projection)).name
                    if op not in self.pack.ops:
                        continue
                    made[id(child)] = PackedAttention(child, PackedLinear.of(self.pack, op, projection, self.registered))
                self._set(parent, key, made[id(child)])
                self.replaced.append(".".join(filter(None, (path, key, "in_proj_weight"))))


def _reason_left(layer: Any) -> str:
    kind = getattr(layer.weight, "dtype", torch.float32)
    return "" if kind is torch.float32 else f"; its weight is {str(kind).removeprefix('torch.')}"


def _same(layer: Any, op: str) -> Any:
    """Equal for layers that one served layer can stand for: linears with the same parameters stay tied."""
    if type(layer) is not torch.nn.Linear:
        return id(layer)
    return id(layer.weight), id(layer.bias), layer.training, op


def _tied(model: torch.nn.Module, weights: Mapping[str, torch.Tensor], replaced: list[str]) -> dict[str, str]:
    """Replaced layers that share their weight with another module (an embedding), and its name there. They stay tied."""
    layers = {name: model.get_submodule(name) for name in replaced if f"{name}.weight" in weights}
    layers = {name: layer for name, layer in layers.items() if isinstance(layer, PackedLinear)}
    shared: dict[int, list[str]] = {}
    for key, parameter in weights.items():
        shared.setdefault(id(parameter), []).append(key)
    result: dict[str, str] = {}
    for name, layer in layers.items():
        for part in layer.tensors():
            parameter = weights[f"{name}.{part}"]
            others = [key for key in shared[id(parameter)] if layers.get(key.rpartition(".")[0]) is not layer]
            if others:
                layer.tie(part, parameter)
                result[name] = others[0]
    return result


def _served(pack: Pack, op: str, layer: Any, norm: Any, registered: Registered | None, plain: str) -> torch.nn.Module:
    if type(layer) in KINDS:
        return PackedConvolution.of(pack, op, layer, registered, plain=plain, norm=norm)
    if pack.gpu is None:
        return PackedLinear.of(pack, op, layer, registered, plain=plain)
    if registered is None:
        return DeviceLayer(layer, DeviceCall(pack, op))
    return DeviceLayer(layer, registered.placed_call(op), getattr(registered.namespace, op).default)


def swap_linears(model: torch.nn.Module, pack: Pack, registered: Registered | None = None) -> tuple[str, ...]:
    """``swap``, and of its answer the names of what was replaced."""
    return swap(model, pack, registered=registered).replaced


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
