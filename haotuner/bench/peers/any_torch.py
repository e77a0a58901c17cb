"""torch in a race of any op: eager, and compiled by Inductor with extents left open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from haotuner.bench.any_op import Operands, bound, images_of, of_call
from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.images import ConvAttributes
from haotuner.bench.peers.on_host import HostTorch
from haotuner.bench.peers.torch_expressions import expression
from haotuner.ops.convolution import is_convolution
from haotuner.spec.op import Op


class TorchAnyOp(HostTorch):
    """Eager under inference mode; each call makes its output. Layers of bytes run oneDNN's fused int8 kernels."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._op: Any = None
        self._function: Callable[..., Any] = lambda: None
        self._weights: Sequence[Operands] = ()
        self._calls: list[Call] = []

    def prepare(self, op: Op, weights: Sequence[Operands]) -> None:
        """Look the expression up."""
        self._op, self._weights, self._calls = op, weights, []
        if op.sums != "int32":
            self._function = expression(self._torch, op)

    def aim(self, operands: Operands, count: int) -> Sequence[Call]:
        """One call a copy."""
        self._calls = [self._call(of_call(self._op, operands, self._weights, index)) for index in range(count)]
        return self._calls

    def _call(self, operands: Operands) -> Call:
        last = is_convolution(self._op.kind) and ConvAttributes.of(self._op).last
        tensors = {name: _tensor(self._torch, values) for name, values in operands.items()}
        tensors |= {name: tensors[name].movedim(-1, 1) for name in images_of(self._op) if last}
        if self._op.sums == "int32":
            return _of_bytes(self._torch, self._op, tensors)
        if last and "h" in self._op.axes:
            tensors["weight"] = tensors["weight"].contiguous(memory_format=self._torch.channels_last)
        more = {name: tensors.pop(name) for name in self._op.epilogue_operands}
        return partial(self._function, *tensors.values(), **more)

    def result(self, index: int) -> Array:
        """Of one call, as it is timed."""
        result: Any = self._calls[index]()
        if is_convolution(self._op.kind) and ConvAttributes.of(self._op).last:
            result = result.movedim(1, -1)
        selected: Array = (result.float() if result.dtype.is_floating_point else result).numpy()
        return selected


class InductorAnyOp(TorchAnyOp):
    """``torch.compile`` for extents that are left open, constants frozen into it."""

    alone = True

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        from torch._inductor import config

        config.compile_threads = 1  # no pool of compiler processes beside the one that is timed

    def prepare(self, op: Op, weights: Sequence[Operands]) -> None:
        """Compiled at the first call of a shape, which the race does not time."""
        if op.sums == "int32":
            raise NotImplementedError("torch.compile is raced on floating-point types")
        super().prepare(op, weights)
        self._torch.compiler.reset()
        self._function = self._torch.compile(self._function, dynamic=True, fullgraph=True)


def _tensor(torch: Any, values: Any) -> Any:
    """An array as torch sees it; numpy knows no bf16 of its own."""
    if values.dtype.name == "bfloat16":
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def _of_bytes(torch: Any, op: Op, inputs: Mapping[str, Any]) -> Call:
    """OneDNN's layer of bytes: a scale a channel, a bias, a relu, in this order, or nothing behind it.

    NotImplementedError for any other.
    """
    steps = [step for step in op.epilogue if step != "scale"]
    if op.epilogue not in ((), ("scale",), *(("scale", *more) for more in (("bias",), ("relu",), ("bias", "relu")))):
        raise NotImplementedError("oneDNN's layers of bytes have scale, bias and relu behind them, in this order")
    if bound(op) == () or (op.kind == "dense" and op.meaning.operands[1].axes(op.all_options()) != ("n", "k")):
        raise NotImplementedError("of bytes torch is raced on layers alone")
    weight = inputs["weight"]
    scales = inputs.get("scale", torch.ones(weight.shape[0]))
    zeros = torch.zeros(weight.shape[0], dtype=torch.int32)
    kind = {"uint8": torch.uint8, "int8": torch.int8}.get(op.dtype_of(op.meaning.output), torch.float32)
    end = "relu" if "relu" in steps else "none"
    bias, ops = inputs.get("bias"), torch.ops.onednn
    if op.kind == "dense":
        packed = ops.qlinear_prepack(weight, None)
        linear = ops.qlinear_pointwise.default
        return partial(linear, inputs["x"], 1.0, 0, packed, scales, zeros, bias, 1.0, 0, kind, end, [], "")
    attributes = ConvAttributes.of(op)
    if attributes.transposed:
        raise NotImplementedError("torch has no transposed convolution of bytes that takes scales")
    packed = ops.qconv_prepack(
        weight, scales, 1.0, 0, attributes.stride, attributes.pad, attributes.dilation, attributes.groups, None
    )
    window = (attributes.stride, attributes.pad, attributes.dilation, attributes.groups)
    convolution = ops.qconv_pointwise.default
    return partial(convolution, inputs["x"], 1.0, 0, packed, scales, zeros, bias, *window, 1.0, 0, kind, end, [], "")
