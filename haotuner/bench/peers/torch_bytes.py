"""Layers of bytes in torch: oneDNN's fused int8 kernels, a scale a channel, a bias and a relu behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from haotuner.bench.contender import Call, UnsupportedOp
from haotuner.bench.images import ConvAttributes
from haotuner.bench.operands import binds_weight
from haotuner.spec.op import Op

EPILOGUES = ((), ("scale",), *(("scale", *more) for more in (("bias",), ("relu",), ("bias", "relu"))))


def layer_of_bytes(torch: Any, op: Op, constants: Mapping[str, Any]) -> Callable[[Any], Call]:
    """A function of the input that makes a call of it; the weight is packed here. UnsupportedOp for other layers."""
    if op.epilogue not in EPILOGUES:
        raise UnsupportedOp("oneDNN's layers of bytes have scale, bias and relu behind them, in this order")
    if not binds_weight(op) or (op.kind == "dense" and op.meaning.operands[1].axes(op.all_options()) != ("n", "k")):
        raise UnsupportedOp("of bytes torch is raced on layers alone")
    weight, ops = constants["weight"], torch.ops.onednn
    scales, zeros = constants.get("scale", torch.ones(weight.shape[0])), torch.zeros(weight.shape[0], dtype=torch.int32)
    kind = {"uint8": torch.uint8, "int8": torch.int8}.get(op.dtype_of(op.meaning.output), torch.float32)
    end: tuple[Any, ...] = (1.0, 0, kind, "relu" if "relu" in op.epilogue else "none", [], "")
    window: tuple[Any, ...] = ()
    if op.kind == "dense":
        packed, layer = ops.qlinear_prepack(weight, None), ops.qlinear_pointwise.default
    else:
        a = ConvAttributes.of(op)
        if a.transposed:
            raise UnsupportedOp("torch has no transposed convolution of bytes that takes scales")
        packed = ops.qconv_prepack(weight, scales, 1.0, 0, a.stride, a.pad, a.dilation, a.groups, None)
        window, layer = (a.stride, a.pad, a.dilation, a.groups), ops.qconv_pointwise.default
    bias = constants.get("bias")
    return lambda x: partial(layer, x, 1.0, 0, packed, scales, zeros, bias, *window, *end)
