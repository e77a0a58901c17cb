"""Which ops a model needs, and a model's linears served from a pack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from haotuner.runtime.pack import Pack
from haotuner.torch.activations import Passed, with_step
from haotuner.torch.attention import PackedAttention, unserved
from haotuner.torch.chains import Chain, Chains, Place, chains
from haotuner.torch.convolution import (
    DTYPES,
    KINDS,
    PackedConvolution,
    any_last,
    dtype_word,
    prefers_last,
    reason_of,
    spec_of,
)
from haotuner.torch.encoder import keep_working, plain_encoders
from haotuner.torch.folding import FoldedConvolution, FoldedNorm, unfoldable
from haotuner.torch.layer import PackedLinear
from haotuner.torch.ops import Registered, share_threads
from haotuner.torch.placed import PlacedCall, PlacedLayer
from haotuner.words.op import Op

SERVED = (PackedLinear, PlacedLayer)


@dataclass(frozen=True, slots=True)
class Swapped:
    """What ``swap`` did. ``print`` shows both lists."""

    replaced: tuple[str, ...]  # names of layers that are served from the pack now
    left: Mapping[str, str]  # name of a layer with a weight that stays torch's -> why
    folded: Mapping[str, str] = field(default_factory=dict)  # name of a batch norm -> the convolution that computes it, too
    unfolded: Mapping[str, str] = field(default_factory=dict)  # name of one behind a convolution that stays -> why
    tied: Mapping[str, str] = field(
        default_factory=dict
    )  # name of a replaced layer -> torch's parameter that was its weight
    unread: Mapping[str, str] = field(default_factory=dict)  # name of a module whose forward shows nothing -> why

    def __str__(self) -> str:
        whole = len(self.replaced) + len(self.left)
        lines = [f"{len(self.replaced)} of {whole} layers with a weight are served from the pack"]
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left.items():
            reasons.setdefault(reason, []).append(name)
        lines += [f"left ({len(names)}): {reason}: {_few(names)}" for reason, names in reasons.items()]
        if self.folded:
            lines.append(f"batch norms folded into the convolution before ({len(self.folded)}): {_few(list(self.folded))}")
        lines += [f"batch norm left: {name}: {why}" for name, why in self.unfolded.items()]
        lines += [
            f"tied: {name} was packed from {other}: a change of that in place does not reach it, load_state_dict does"
            for name, other in self.tied.items()
        ]
        lines += [f"not looked through for norms and activations: {name}: {why}" for name, why in self.unread.items()]
        if self.replaced:
            lines.append("served weights are packed copies: load_state_dict changes them, a change in place does not")
        return "\n".join(lines)


def swap(model: torch.nn.Module, pack: Pack, registered: Registered | None = None) -> Swapped:
    """Replace, in place, every plain ``nn.Linear``, ``nn.Conv1d``, ``Conv2d`` and transposed one whose op the pack holds.

    Layers may be float32, bfloat16 or float16, if the pack holds such an op; the projections of ``nn.MultiheadAttention``
    are linears, too. A batch norm in eval mode behind a convolution is folded into its weight. Where an activation follows
    and the pack holds their fused op, that op serves both (``chains`` says what follows). Packs on the CPU then compute on
    torch's threads (``share_threads``). Pass ``registered`` to compile the model with ``torch.compile``; without it the
    graph breaks at each layer. The model only infers from then on.
    """
    if not isinstance(model, torch.nn.Module) or not isinstance(pack, Pack):
        found = f"{type(model).__name__} and {type(pack).__name__}"
        raise TypeError(f"swap takes a torch.nn.Module and a pack that haotuner.load opened; got {found}")
    if type(model) in (torch.nn.Linear, torch.nn.MultiheadAttention, *KINDS):
        why = "it is the whole model, which cannot be replaced in place: swap torch.nn.Sequential(layer), or what holds it"
        return Swapped((), {type(model).__name__: why})
    if pack.gpu is None:
        share_threads(pack)
    weights = {name: parameter for name, parameter in model.named_parameters(remove_duplicate=False)}
    work = _Swap(model, pack, registered)
    work.layers()
    if work.replaced:
        plain_encoders(model, SERVED)
    tied = _tied(model, weights, work.replaced) if work.on_cpu else {}
    return Swapped(tuple(work.replaced), work.left, work.norms, work.unfolded, tied, work.after.unread)


class _Swap:
    """One run over the layers of a model: what was replaced, what was left, and why."""

    def __init__(self, model: torch.nn.Module, pack: Pack, registered: Registered | None) -> None:
        self.pack, self.registered, self.model = pack, registered, model
        self.on_cpu = pack.gpu is None
        self._place = "cpu" if pack.gpu is None else f"cuda:{pack.gpu.ordinal}"
        self.replaced = _swap_attention(model, pack, registered) if self.on_cpu else []
        self.left: dict[str, str] = {}
        self.norms: dict[str, str] = {}
        self.unfolded: dict[str, str] = {}
        self.after = chains(model) if self.on_cpu else Chains()
        self._last = any_last(model)
        self._names = {id(one): name for name, one in model.named_modules()}
        self._made: dict[Any, torch.nn.Module] = {}

    def layers(self) -> None:
        """Replace every layer that the pack serves."""
        for name, parent, key, child in _layers(self.model):
            reason = _reason(parent, child, self._place)
            if reason:
                self._leave(name, child, reason)
                continue
            norm = self._norm(name, child)
            fused, plain = self._ops(child, norm)
            held = [spec for spec in (*fused, *plain) if Op.parse(spec).name in self.pack.ops]
            if held:
                self._serve(name, parent, key, child, norm, held[0], fused=held[0] in fused)
            else:
                self._leave(name, child, f"not in the pack: tune it with --op {plain[0]}{_kept(child)}")

    def _norm(self, name: str, child: Any) -> Place | None:
        """The norm behind a layer, if it can be folded into it; why not is noted."""
        norm = self.after.after(child).norm
        if norm is not None and (why := unfoldable(norm.module, child)):
            self.unfolded[self._names[id(norm.module)]] = why
            return None
        return norm

    def _ops(self, child: Any, norm: Place | None) -> tuple[list[str], list[str]]:
        """Ops that serve a layer with the activation behind it, and those that serve it alone."""
        chain, plain = self.after.after(child), _specs(child, self._last)
        step = "" if norm is None and chain.norm is not None else chain.step  # nothing is served past a norm that stays
        bias = child.bias is not None or norm is not None
        return [with_step(spec, step, bias=bias) for spec in plain if step], plain

    def _leave(self, name: str, child: Any, reason: str) -> None:
        self.left[name] = reason
        norm = self.after.after(child).norm
        if norm is not None:
            self.unfolded.setdefault(self._names[id(norm.module)], f"the convolution before it is left: {name}")

    def _serve(
        self, name: str, parent: torch.nn.Module, key: str, child: Any, norm: Place | None, spec: str, *, fused: bool
    ) -> None:
        op, activation = Op.parse(spec).name, self.after.after(child).activation
        one = _same(child, op)
        if one not in self._made:
            self._made[one] = _served(self.pack, op, child, None if norm is None else norm.module, self.registered)
        served = self._made[one]
        setattr(parent, key, served)
        if norm is not None and isinstance(served, FoldedConvolution):
            self.norms[self._names[id(norm.module)]] = name
            setattr(norm.parent, norm.key, FoldedNorm(served))
        if fused and activation is not None:
            setattr(activation.parent, activation.key, Passed(activation.module))
        self.replaced.append(name)
        keep_working(parent)


def _kept(layer: Any) -> str:
    kind = getattr(layer.weight, "dtype", torch.float32)
    return "" if kind is torch.float32 else f"; its weight is {str(kind).removeprefix('torch.')}"


def _same(layer: Any, op: str) -> Any:
    """Equal for layers that one served layer can stand for: linears with the same parameters stay tied."""
    if type(layer) is not torch.nn.Linear:
        return id(layer)
    return id(layer.weight), id(layer.bias), layer.training, op


def _tied(model: torch.nn.Module, weights: Mapping[str, torch.Tensor], replaced: list[str]) -> dict[str, str]:
    """Replaced layers whose weight stays in the model as another module's parameter (an embedding's), and its name."""
    still = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    own = {name: weights.get(f"{name}.weight") for name in replaced}
    return {name: still[id(weight)] for name, weight in own.items() if weight is not None and id(weight) in still}


def _swap_attention(model: torch.nn.Module, pack: Pack, registered: Registered | None) -> list[str]:
    """Attention whose input projection the pack holds becomes one of layers; names of those projections."""
    made: dict[int, torch.nn.Module] = {}
    names: list[str] = []
    for path, parent in list(model.named_modules()):
        for key, child in list(parent._modules.items()):
            if not isinstance(child, torch.nn.MultiheadAttention) or unserved(child):
                continue
            if id(child) not in made:
                op = Op.parse(_spec(_projection(child))).name
                if op not in pack.ops:
                    continue
                made[id(child)] = PackedAttention(child, PackedLinear.of(pack, op, _projection(child), registered))
            setattr(parent, key, made[id(child)])
            names.append(".".join(filter(None, (path, key, "in_proj_weight"))))
            keep_working(parent)
    return names


def _projection(attention: torch.nn.MultiheadAttention) -> torch.nn.Linear:
    """The layer that an attention's input projection is; it shares the parameters."""
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight, layer.bias = weight, bias
    return layer.train(attention.training)


def _served(pack: Pack, op: str, layer: Any, norm: Any, registered: Registered | None) -> torch.nn.Module:
    if norm is not None:
        return FoldedConvolution.serving(pack, op, layer, norm, registered)
    if type(layer) in KINDS:
        return PackedConvolution.served_by(pack, op, layer, registered)
    if pack.gpu is None:
        return PackedLinear.of(pack, op, layer, registered)
    if registered is None:
        return PlacedLayer(layer, PlacedCall(pack, op))
    return PlacedLayer(layer, registered.placed_call(op), getattr(torch.ops.haotuner, op).default)


def swap_linears(model: torch.nn.Module, pack: Pack, registered: Registered | None = None) -> tuple[str, ...]:
    """``swap``, and of its answer the names of what was replaced."""
    return swap(model, pack, registered).replaced


def ops_of(model: torch.nn.Module, *example: Any, fuse: bool = False) -> dict[str, int]:
    """``{--op spec: times}`` of the linears and convolutions that ``swap`` could serve, the most frequent first.

    ``fuse``: a layer with an activation behind it is one op, a batch norm in between included. ``times`` counts layers; with
    ``example``, the arguments of one run of the model (under ``torch.inference_mode``), it counts their calls in that run.
    """
    model = getattr(model, "_orig_mod", model)  # compiled: what it compiles, for its code calls no hooks
    if example and any(map(_lazy, model.modules())):
        with torch.inference_mode(False), torch.no_grad():
            model(*example)  # lazy layers become plain ones
    found = {name: child for name, parent, _, child in _layers(model) if not _reason(parent, child, None)}
    attention = [
        child for child in model.modules() if isinstance(child, torch.nn.MultiheadAttention) and not unserved(child)
    ]
    found |= {f"attention {place}": child for place, child in enumerate(attention)}
    after = chains(model).by_layer if fuse else {}
    kept, others = {id(child) for child in found.values()}, any_last(model)
    steps = {place: chain for place, chain in after.items() if chain.step and place in kept}
    if not example:
        return dict(Counter(spec for child in found.values() for spec in _wanted(child, steps, others)).most_common())
    counts: Counter[str] = Counter()
    hooks = [
        child.register_forward_pre_hook(lambda module, _: counts.update(_wanted(module, steps, others)))
        for child in {id(child): child for child in found.values()}.values()
    ]
    try:
        with torch.inference_mode():
            model(*example)
    finally:
        for hook in hooks:
            hook.remove()
    return dict(counts.most_common())


def _layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str, torch.nn.Module]]:
    """(name, parent, key in the parent, layer) of all layers with a weight of two or more axes, also those used twice."""
    for path, parent in list(model.named_modules(remove_duplicate=True)):
        if isinstance(parent, torch.nn.MultiheadAttention):
            yield f"{path}.in_proj_weight" if path else "in_proj_weight", parent, "", parent
        for key, child in list(parent._modules.items()):  # named_children leaves out layers that are used twice
            if child is None or isinstance(child, SERVED):  # an earlier swap's
                continue
            weight = getattr(child, "weight", None)
            if _lazy(child) or _quantised(child) or (isinstance(weight, torch.Tensor) and _matrix(child, weight)):
                yield f"{path}.{key}" if path else key, parent, key, child


def _lazy(child: torch.nn.Module) -> bool:
    """Whether its weight has no size yet."""
    return isinstance(child, torch.nn.modules.lazy.LazyModuleMixin) and child.has_uninitialized_params()


def _quantised(child: torch.nn.Module) -> bool:
    """Whether it is a layer of torch's own quantised ones, whose weight is no parameter."""
    return callable(getattr(child, "set_weight_bias", None))


def _matrix(child: torch.nn.Module, weight: torch.Tensor) -> bool:
    if isinstance(child, torch.nn.Embedding | torch.nn.EmbeddingBag):
        return False  # looked up, not multiplied
    return isinstance(child, torch.nn.Linear) or weight.dim() > 1


def _specs(layer: Any, others: bool) -> list[str]:
    """The ops that can serve a layer, the one for how its images lie in memory first."""
    if type(layer) not in KINDS:
        return [_spec(layer)]
    last = prefers_last(layer, others=others)
    return [spec_of(layer, last=last), spec_of(layer, last=not last)]


def _spec(layer: Any, others: bool = False) -> str:
    if type(layer) in KINDS:
        return spec_of(layer, last=prefers_last(layer, others=others))
    return f"dense:n={layer.out_features},k={layer.in_features}{dtype_word(layer)}"


def _wanted(layer: Any, steps: Mapping[int, Chain], others: bool) -> list[str]:
    """The ops that a run of a layer needs. ``steps``: what follows layers, by ids; ``others``: see ``prefers_last``."""
    chain = steps.get(id(layer))
    if chain is not None and (chain.norm is None or not unfoldable(chain.norm.module, layer)):
        return [with_step(_spec(layer, others), chain.step, bias=layer.bias is not None or chain.norm is not None)]
    if isinstance(layer, torch.nn.MultiheadAttention):
        return [_spec(_projection(layer)), _spec(layer.out_proj)]
    return [_spec(layer, others)]


def _reason(parent: torch.nn.Module, layer: Any, place: str | None) -> str:
    """Why a layer stays torch's whatever a pack in that place (None: the layer's) holds; empty if it may be served."""
    if isinstance(layer, torch.nn.MultiheadAttention):
        if place is None or place != "cpu":
            return "attention's input projection is no layer of its own"
        return unserved(layer) or f"not in the pack: tune it with --op {_spec(_projection(layer))}"
    if isinstance(parent, torch.nn.MultiheadAttention):
        return "attention reads its output projection's weight itself, unless its input projection is served"
    if _lazy(layer):
        return "its weight has no size yet: call the model once, then swap"
    if type(layer) is not torch.nn.Linear and type(layer) not in KINDS:
        return f"{type(layer).__name__} is not served, only nn.Linear, and convolutions of one and two axes, themselves"
    if type(layer) in KINDS and (why := reason_of(layer)):
        return why
    if layer._forward_hooks or layer._forward_pre_hooks:
        return "it has hooks"
    weight = layer.weight
    if type(weight) is not torch.nn.Parameter:
        return f"its weight is a {type(weight).__name__}, not a plain parameter"
    on_cpu = place == "cpu" or (place is None and weight.device.type == "cpu")
    if type(layer) in KINDS and not on_cpu:
        return "convolutions are served on the CPU only"
    if weight.dtype not in DTYPES:
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}; a pack takes float32, float16 or bfloat16"
    if place is None and weight.device.type not in ("cpu", "cuda"):
        return f"it lives on {weight.device}"
    if place is not None and weight.device not in (torch.device(place), torch.device(place.partition(":")[0])):
        return f"it lives on {weight.device}"
    return ""


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
