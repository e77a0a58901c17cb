"""torch on a GPU: cuBLAS as torch calls it, TF32 and sums in halves off; and what the other peers in torch share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from haotuner.bench.contender import Array, Call, Setting
from haotuner.bench.peers.gpu_clock import GraphClock
from haotuner.spec.op import Op

TORCH_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class TorchEngine:
    """Graphs and events of torch. ImportError where torch or a GPU is missing."""

    def __init__(self, ordinal: int | None) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
        torch.cuda.set_device(ordinal or 0)
        torch.inference_mode().__enter__()  # for the life of this process
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        # Ours sums in fp32, and so must the others.
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        self.torch = torch
        self.version = f"{torch.__version__}, CUDA {torch.version.cuda}"

    def put(self, values: Array, dtype: str) -> Any:
        """A tensor of these values on the GPU."""
        return self.torch.from_numpy(values).to(device="cuda", dtype=getattr(self.torch, TORCH_NAMES[dtype]))

    def capture(self, run: Callable[[], object]) -> Any:
        """A graph of what ``run`` queues; it has run once on the side before, as torch asks for."""
        side = self.torch.cuda.Stream()
        side.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(side):
            run()
        self.torch.cuda.current_stream().wait_stream(side)
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            run()
        return graph

    def drop(self, graph: Any) -> None:
        """Nothing: torch frees a graph with its last reference."""

    def replay_us(self, graph: Any, times: int) -> list[float]:
        """Microseconds of so many replays in a row."""
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
        events[-1].synchronize()
        return [first.elapsed_time(last) * 1e3 for first, last in zip(events, events[1:], strict=False)]

    def timed_us(self, run: Callable[[], object]) -> float:
        """Microseconds between two events around what ``run`` queues."""
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e3


class OnTorch:
    """torch on the race's GPU; what it computes is timed in its graphs."""

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        self._engine = TorchEngine(setting.ordinal)
        self.version = self._engine.version

    def clock(self, calls: Sequence[Call]) -> GraphClock:
        """Graphs of torch."""
        return GraphClock(self._engine, calls)


class GpuTorch(OnTorch):
    """``torch.mm(x, w.t(), out=y)`` under inference mode."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._dtype = "fp32"
        self._weights: list[Any] = []
        self._x: Any = None
        self._y: Any = None

    def prepare(self, op: Op, weights: Sequence[Array]) -> None:
        """Keep the weights as ``torch.nn.Linear`` does."""
        self._x = self._y = None
        self._weights = []
        self._dtype = op.dtype
        self._weights = [self._engine.put(weight, op.dtype) for weight in weights]

    def aim(self, x: Array, count: int) -> Sequence[Call]:
        """One call a weight, all into the same output."""
        self._x = self._engine.put(x, self._dtype)
        self._y = self._x.new_empty(x.shape[0], self._weights[0].shape[0])
        return [partial(self._multiply, self._x, weight, self._y) for weight in self._weights[:count]]

    def result(self, index: int) -> Array:
        """Into a poisoned output."""
        self._y.fill_(float("nan"))
        self._multiply(self._x, self._weights[index], self._y)
        result: Array = self._y.float().cpu().numpy()
        return result

    def _multiply(self, x: Any, w: Any, y: Any) -> None:
        """Queue y = x · w^T."""
        self._engine.torch.mm(x, w.t(), out=y)
