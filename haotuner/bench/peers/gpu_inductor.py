"""Inductor on a GPU: torch.compile with max_autotune, extents left open; one compiled function for all weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from haotuner.bench.contender import Call, Operands
from haotuner.bench.operands import plain_layer
from haotuner.bench.peers.gpu_torch import GpuTorch
from haotuner.spec.op import Op

SEEN_ROWS = 37  # rows when the dynamic graph is compiled: neither 0 nor 1, which torch always specialises


class GpuInductor(GpuTorch):
    """Weights are arguments, so that one graph serves them all; each call makes its output, as compiled code does.

    Inductor's own CUDA graphs are off: every contender is timed in a graph of the race.
    """

    alone = True  # it times candidates while it compiles

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """A layer is compiled here, for a number of rows that is left open; another op at the first call of a shape."""
        super().prepare(op, copies)
        torch = self._engine.torch
        torch.compiler.reset()
        options = {"max_autotune": True, "triton.cudagraphs": False}
        self._function = torch.compile(self._function, dynamic=True, fullgraph=True, options=options)
        if plain_layer(op):
            weight = self._constants[0]["weight"]
            sample = weight.new_zeros(SEEN_ROWS, op["k"])
            torch._dynamo.mark_dynamic(sample, 0)
            self._function(sample, weight)

    def _call(self, tensors: dict[str, Any]) -> Call:
        return self._expressed(tensors)
