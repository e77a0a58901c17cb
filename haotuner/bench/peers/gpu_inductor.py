"""Inductor on a GPU: torch.compile with max_autotune and a dynamic m; one compiled layer for all weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.peers.gpu_torch import OnTorch
from haotuner.spec.op import Op

SEEN_ROWS = 37  # rows when the dynamic graph is compiled: neither 0 nor 1, which torch always specialises


class GpuInductor(OnTorch):
    """The weight is an argument, so that one graph serves them all; each call makes its output, as compiled code does.

    Inductor's own CUDA graphs are off: every contender is timed in a graph of the race.
    """

    alone = True  # it times candidates while it compiles

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        torch = self._engine.torch
        options = {"max_autotune": True, "triton.cudagraphs": False}
        self._layer = torch.compile(torch.nn.functional.linear, dynamic=True, fullgraph=True, options=options)
        self._dtype = "fp32"
        self._weights: list[Any] = []
        self._x: Any = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Compile for the op with a number of rows that is left open."""
        torch = self._engine.torch
        self._weights, self._x = [], None
        self._dtype = op.dtype
        self._weights = [self._engine.put(weight, op.dtype) for weight in weights]
        torch.compiler.reset()
        sample = self._weights[0].new_zeros(SEEN_ROWS, op["k"])
        torch._dynamo.mark_dynamic(sample, 0)
        self._layer(sample, self._weights[0])

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """One call a weight."""
        self._x = self._engine.put(x, self._dtype)
        return [partial(self._layer, self._x, weight) for weight in self._weights[:count]]

    def result(self, index: int) -> Array:
        """Result of one call with the weight of that index, as it is timed."""
        result: Array = self._layer(self._x, self._weights[index]).float().cpu().numpy()
        return result
