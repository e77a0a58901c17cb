"""torch eager: what a model does that is not compiled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting, only
from haotuner.bench.images import Told
from haotuner.ops.convolution import is_convolution
from haotuner.words.op import Op


class TorchEager:
    """``torch.nn.functional.linear(x, w)`` under inference mode, MKL inside."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        import torch

        torch.set_num_threads(setting.threads)
        torch.inference_mode().__enter__()  # for the life of this process
        self._torch = torch
        self.version = str(torch.__version__)
        self._weights: list[Any] = []
        self._x: Any = None
        self._told: Told | None = None
        self._kind = "float32"

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Keep the weights as ``torch.nn.Linear`` and ``Conv2d`` do."""
        self._told = Told.of(op) if is_convolution(op.kind) else None
        self._kind = only(op.dtype, "fp32", "fp16", "bf16")
        self._weights = [self._torch.from_numpy(weight).to(getattr(self._torch, self._kind)) for weight in weights]
        if self._told is not None and self._told.last and not self._told.flat:
            self._weights = [weight.contiguous(memory_format=self._torch.channels_last) for weight in self._weights]

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """One call a weight; eager linear has no ``out=``, so each call makes its output."""
        self._x = self._torch.from_numpy(x if self._told is None else self._told.first(x)).to(
            getattr(self._torch, self._kind)
        )
        return [self._call(weight) for weight in self._weights[:count]]

    def result(self, index: int) -> Array:
        """Result of one call with the weight of that index, as it is timed."""
        found: Array = self._call(self._weights[index])().float().numpy()  # type: ignore[attr-defined]
        return found if self._told is None else self._told.stored(found)

    def _call(self, weight: Any) -> Call:
        functional, told = self._torch.nn.functional, self._told
        if told is None:
            return partial(functional.linear, self._x, weight)
        if told.transposed:
            transposed = functional.conv_transpose1d if told.flat else functional.conv_transpose2d
            return partial(transposed, self._x, weight, None, told.stride, told.pad, told.more, told.groups, told.dilation)
        convolution = functional.conv1d if told.flat else functional.conv2d
        return partial(convolution, self._x, weight, None, told.stride, told.pad, told.dilation, told.groups)
