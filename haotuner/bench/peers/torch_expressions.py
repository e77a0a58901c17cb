"""Ops as a user of torch writes them, eager: products and convolutions with their epilogues, and generated kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from haotuner.bench.contender import UnsupportedOp
from haotuner.bench.images import ConvAttributes
from haotuner.ops.convolution import is_convolution, windows
from haotuner.spec.op import Op


def expression(torch: Any, op: Op) -> Callable[..., Any]:
    """The op of its operands in order, those of the epilogue by name. UnsupportedOp for what is not here.

    Images of convolutions have channels first, as views where the op stores them last.
    """
    if op.kind == "dense":
        return _finished(torch, op, _dense(torch, op), -1)
    if op.kind == "batch_matmul":
        return _finished(torch, op, lambda x, w: torch.matmul(*factors(op, x, w)), -1)
    if is_convolution(op.kind):
        return _convolution(torch, op)
    return generated(torch, op)


def factors(op: Op, x: Any, w: Any) -> tuple[Any, Any]:
    """Both factors of a batch of products as ``(b, m, k)`` and ``(b, k, n)``: views where the op stores them turned."""
    layout = op.option("layout")
    return x.transpose(-1, -2) if layout == "tn" else x, w.transpose(-1, -2) if layout == "nt" else w


def _dense(torch: Any, op: Op) -> Callable[..., Any]:
    stored = op.meaning.operands[1].axes(op.all_options())
    return torch.nn.functional.linear if stored == ("n", "k") else torch.matmul  # type: ignore[no-any-return]


def _finished(torch: Any, op: Op, product: Callable[..., Any], channel: int) -> Callable[..., Any]:
    """The product, then the steps of the epilogue; a bias that comes first is the product's own, where it takes one."""
    if not op.epilogue:
        return product
    own = op.epilogue[:1] == ("bias",) and op.kind != "batch_matmul" and product is not torch.matmul
    steps = [_step(torch, step, channel) for step in op.epilogue[own:]]

    def computed(x: Any, w: Any, **more: Any) -> Any:
        y = product(x, w, more["bias"]) if own else product(x, w)
        for step in steps:
            y = step(y, more)
        return y

    return computed


def _step(torch: Any, name: str, channel: int) -> Callable[[Any, Mapping[str, Any]], Any]:
    f = torch.nn.functional

    def spread(values: Any, y: Any) -> Any:
        return values if channel == -1 else values.view([-1 if axis == channel else 1 for axis in range(y.dim())])

    known: Mapping[str, Callable[[Any, Mapping[str, Any]], Any]] = {
        "bias": lambda y, more: y + spread(more["bias"], y),
        "scale": lambda y, more: y * spread(more["scale"], y),
        "residual": lambda y, more: y + more["residual"],
        "mul": lambda y, more: y * more["multiplier"],
        "clamp": lambda y, more: torch.clamp(y, spread(more["low"], y), spread(more["high"], y)),
        "prelu": lambda y, more: torch.where(y > 0, y, y * spread(more["slope"], y)),
        "relu": lambda y, _: f.relu(y),
        "gelu": lambda y, _: f.gelu(y),
        "gelutanh": lambda y, _: f.gelu(y, approximate="tanh"),
        "silu": lambda y, _: f.silu(y),
        "sigmoid": lambda y, _: torch.sigmoid(y),
        "tanh": lambda y, _: torch.tanh(y),
        "hardswish": lambda y, _: f.hardswish(y),
        "hardsigmoid": lambda y, _: f.hardsigmoid(y),
        "relu6": lambda y, _: f.relu6(y),
        "mish": lambda y, _: f.mish(y),
    }
    if name not in known:
        raise UnsupportedOp(f"there is no torch expression of {name}")
    return known[name]


def _convolution(torch: Any, op: Op) -> Callable[..., Any]:
    f, attributes = torch.nn.functional, ConvAttributes.of(op)
    sides = list(windows(op.kind, dict(op.static), op.all_options()).values())
    uneven = any(side.before != side.after for side in sides)
    if uneven and attributes.transposed:
        raise UnsupportedOp("torch has no transposed convolution whose pads differ")
    around = [pad for side in reversed(sides) for pad in (side.before, side.after)]
    pad = tuple(0 for _ in sides) if uneven else attributes.pad
    window = {"stride": attributes.stride, "padding": pad, "dilation": attributes.dilation, "groups": attributes.groups}
    if attributes.transposed:
        window["output_padding"] = attributes.more
        call = partial(f.conv_transpose1d if attributes.flat else f.conv_transpose2d, **window)
    else:
        call = partial(f.conv1d if attributes.flat else f.conv2d, **window)
    padded = (lambda x, w, bias=None: call(f.pad(x, around), w, bias)) if uneven else call
    return _finished(torch, op, padded, 1)


def generated(torch: Any, op: Op) -> Callable[..., Any]:
    """A generated kind, of its operands in order. UnsupportedOp for another kind."""
    f = torch.nn.functional
    option = op.all_options().get
    eps, affine = float(option("eps", "0")), option("affine", "none") != "none"
    finish = f.relu if option("activation") == "relu" else (lambda y: y)
    axis = 0 if option("over") == "first" else -1
    window = [tuple(map(int, option(name, "0").split("."))) for name in ("kernel", "stride", "pad")]
    mode = "nearest" if option("mode", "nearest") == "nearest" else "bilinear"

    def layer_norm(x: Any, *rest: Any) -> Any:
        return f.layer_norm(x, x.shape[-1:], *rest, eps=eps)

    def group_norm(x: Any, *rest: Any) -> Any:
        flat = [item.flatten() for item in rest]
        return finish(f.group_norm(x.flatten(1, 2), x.shape[1], *flat, eps=eps)).view(x.shape)

    def instance_norm(x: Any, *rest: Any) -> Any:
        scale, bias = rest if affine else (None, None)
        return finish(f.instance_norm(x, weight=scale, bias=bias, eps=eps))

    def attention(q: Any, k: Any, v: Any, *masks: Any) -> Any:
        """Torch's fused kernels take operands of four axes alone."""
        t, s = q.shape[-2], k.shape[-2]
        causal = option("causal", "none") if option("causal") != "end" or t > 1 else "none"  # one query sees all keys
        mask = masks[0] if masks else None
        if mask is not None and mask.dim() != q.dim():  # of keys
            mask = mask.view(mask.shape[0], *[1] * (q.dim() - 2), s)
        if folded := q.dim() == 3:
            q, k, v = (item.unsqueeze(0) for item in (q, k, v))
            mask = mask.unsqueeze(0) if mask is not None else None
        square = causal == "start" or (causal == "end" and t == s)
        if causal != "none" and (mask is not None or not square):
            seen = torch.ones(t, s, dtype=torch.bool, device=q.device).tril(0 if causal == "start" else s - t)
            lost = torch.zeros(t, s, dtype=q.dtype, device=q.device).masked_fill(~seen, float("-inf"))
            mask = lost if mask is None else mask + lost
        known_scale = 1.0 if option("scale") == "one" else None
        alone = causal != "none" and mask is None
        y = f.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=alone, scale=known_scale)
        return y.squeeze(0) if folded else y

    known: Mapping[str, Callable[..., Any]] = {
        "attention": attention,
        "softmax": lambda x: f.softmax(x, -1),
        "log_softmax": lambda x: f.log_softmax(x, -1),
        "layer_norm": layer_norm,
        "rms_norm": lambda x, *rest: f.rms_norm(x, x.shape[-1:], *rest, eps=eps),
        "add_layer_norm": lambda x, residual, *rest: layer_norm(x + residual, *rest),
        "gelu": f.gelu,
        "gelu_tanh": lambda x: f.gelu(x, approximate="tanh"),
        "silu": f.silu,
        "bias_gelu": lambda x, bias: f.gelu(x + bias),
        "instance_norm": instance_norm,
        "group_norm": group_norm,
        "reduce_sum": lambda x: x.sum(axis),
        "reduce_mean": lambda x: x.mean(axis),
        "reduce_max": lambda x: x.amax(axis),
        "reduce_min": lambda x: x.amin(axis),
        "reduce_prod": lambda x: x.prod(axis),
        "transpose": lambda x: x.transpose(1, 2).contiguous(),
        "max_pool": lambda x: f.max_pool2d(x, *window),
        "avg_pool": lambda x: f.avg_pool2d(x, *window),
        "resize": lambda x: f.interpolate(x, scale_factor=int(option("scale", "2")), mode=mode),
    }
    if op.kind not in known:
        raise UnsupportedOp(f"there is no torch expression of {op.kind}; torch races {', '.join(known)}")
    return known[op.kind]
