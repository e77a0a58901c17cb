"""Contenders for generated kinds on a GPU: operands lie where the call before left them; a call is one of the op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.peers.gpu_ours import GpuOurOperator
from haotuner.bench.peers.gpu_torch import OnTorch
from haotuner.words.op import Op
from haotuner.words.shape import Shape


class GpuOurGenerated(GpuOurOperator):
    """``op.run(*inputs, out=y, stream=…)`` of a pack."""

    def aim(self, operands: Mapping[str, Array], count: int) -> Sequence[Call]:
        """The same call as often as asked."""
        op = self._named
        assert op is not None
        extents = {
            axis: size for o in op.meaning.inputs for axis, size in zip(o.axes({}), operands[o.name].shape, strict=True)
        }
        size = op.operand_shape(op.meaning.output, Shape.of({axis: extents[axis] for axis in op.dynamic}))
        return self._placed(op, operands.values(), size, count)


def expression(torch: Any, op: Op) -> Callable[..., Any]:
    """The op as a user of torch writes it, of its operands in order. NotImplementedError for a kind nobody wrote down."""
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
        flat = [one.flatten() for one in rest]
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
            q, k, v = (one.unsqueeze(0) for one in (q, k, v))
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
        raise NotImplementedError(f"nobody wrote {op.kind} down for torch; it races {', '.join(known)}")
    return known[op.kind]


class GpuTorchGenerated(OnTorch):
    """torch eager under inference mode; each call makes its output."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._dtype = "fp32"
        self._function: Any = None
        self._run: Any = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Look the expression up."""
        self._run, self._dtype = None, op.dtype
        self._function = expression(self._engine.torch, op)

    def aim(self, operands: Mapping[str, Array], count: int) -> Sequence[Call]:
        """The same call as often as asked."""
        self._run = partial(self._function, *(self._engine.put(one, self._dtype) for one in operands.values()))
        return [self._run] * count

    def result(self, index: int) -> Array:
        """Of one call, as it is timed."""
        found: Array = self._run().float().cpu().numpy()
        return found


class GpuInductorGenerated(GpuTorchGenerated):
    """torch.compile for extents that are left open; its own CUDA graphs are off, as every contender has the race's."""

    alone = True

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Compiled at the first call of a shape, which the race does not time."""
        super().prepare(op, weights)
        torch = self._engine.torch
        torch.compiler.reset()
        options = {"max_autotune": True, "triton.cudagraphs": False}
        self._function = torch.compile(self._function, dynamic=True, fullgraph=True, options=options)
