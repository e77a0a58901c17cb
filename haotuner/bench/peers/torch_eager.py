"""torch eager: what a model does that is not compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting, only
from haotuner.bench.images import ConvAttributes
from haotuner.bench.peers.on_host import HostTorch
from haotuner.bench.peers.torch_expressions import expression
from haotuner.ops.convolution import is_convolution
from haotuner.spec.op import Op


class TorchEager(HostTorch):
    """``torch.nn.functional.linear(x, w)`` under inference mode, MKL inside, or a convolution."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._weights: list[Any] = []
        self._x: Any = None
        self._told: ConvAttributes | None = None
        self._kind = "float32"
        self._function: Callable[..., Any] = lambda: None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Keep the weights as ``torch.nn.Linear`` and ``Conv2d`` do."""
        self._told = ConvAttributes.of(op) if is_convolution(op.kind) else None
        self._kind, self._function = only(op.dtype, "fp32", "fp16", "bf16"), expression(self._torch, op)
        self._weights = [self._torch.from_numpy(weight).to(getattr(self._torch, self._kind)) for weight in weights]
        if self._told is not None and self._told.last and not self._told.flat:
            self._weights = [weight.contiguous(memory_format=self._torch.channels_last) for weight in self._weights]

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """One call a weight; eager linear has no ``out=``, so each call makes its output."""
        self._x = self._torch.from_numpy(x if self._told is None else self._told.first(x)).to(
            getattr(self._torch, self._kind)
        )
        return [partial(self._function, self._x, weight) for weight in self._weights[:count]]

    def result(self, index: int) -> Array:
        """Result of one call with the weight of that index, as it is timed."""
        result: Array = self._function(self._x, self._weights[index]).float().numpy()
        return result if self._told is None else self._told.stored(result)
