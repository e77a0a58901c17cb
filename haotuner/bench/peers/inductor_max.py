"""Inductor: torch.compile with max_autotune, freezing and a dynamic m; a whole graph of layers in one call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting, only
from haotuner.spec.op import Op

SEEN_ROWS = 37  # rows when the dynamic graph is compiled: neither 0 nor 1, which torch always specialises


class InductorMax:
    """All layers in one compiled graph, as a compiled model has them: entering compiled code (20 us) is paid once for all.

    With one weight the graph has one layer: a graph that uses a weight eight times packs it eight times over, which is
    no longer hot (94 us a layer became 222, m=1, n=2304, k=768, torch 2.13). The graph returns its first and its last
    result whole and one element of each of the others: so none can be dropped, yet their outputs need not all live at
    once, and the compiler reuses the memory as it would between a model's layers.
    """

    width = 1
    alone = True  # it times candidates while it compiles

    def __init__(self, setting: Setting) -> None:
        import torch
        from torch._inductor import config

        torch.set_num_threads(setting.threads)
        config.freezing = True  # weights become constants, packed at compile time
        config.max_autotune = True
        config.max_autotune_gemm_backends = "ATEN,CPP"  # oneDNN, and Inductor's own micro-GEMM
        config.compile_threads = 1  # no pool of compiler processes beside the one that is timed
        self._torch = torch
        self.version = str(torch.__version__)
        self._weights: list[Any] = []
        self._compiled: dict[int, Any] = {}
        self._call: Any = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Keep the weights; graphs are compiled when first aimed at."""
        only(op.dtype, "fp32")
        self._torch.compiler.reset()
        self._compiled = {}
        self._weights = [self._torch.from_numpy(weight) for weight in weights]

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """One call that computes every layer."""
        self.width = count
        if count not in self._compiled:
            self._compiled[count] = self._compile(self._weights[:count])
        self._call = partial(self._compiled[count], self._torch.from_numpy(x))
        return [self._call]

    def result(self, index: int) -> Array:
        """The first or the last output of the graph."""
        result: Array = self._call()[0 if index == 0 else 1].numpy()
        return result

    def _compile(self, weights: list[Any]) -> Any:
        torch = self._torch

        class Layers(torch.nn.Module):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.layers = torch.nn.ParameterList(torch.nn.Parameter(w, requires_grad=False) for w in weights)

            def forward(self, x: Any) -> Any:
                ys = [torch.nn.functional.linear(x, w) for w in self.layers]
                return ys[0], ys[-1], [y[0, 0] for y in ys[1:-1]]

        graph = torch.compile(Layers().eval(), dynamic=True, fullgraph=True)

        def run(x: Any) -> Any:
            with torch.no_grad():
                return graph(x)

        sample = torch.zeros(SEEN_ROWS, weights[0].shape[1])
        torch._dynamo.mark_dynamic(sample, 0)
        run(sample)
        return run
