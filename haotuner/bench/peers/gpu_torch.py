"""torch on a GPU: cuBLAS and cuDNN as torch calls them, and Inductor with max_autotune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.contender import Array, Call, Operands, Setting, only
from haotuner.bench.images import channels_last
from haotuner.bench.operands import bound, images_of, plain_layer
from haotuner.bench.peers.gpu_driver import GraphClock
from haotuner.bench.peers.torch_expressions import expression, factors
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


class GpuTorch:
    """Eager under inference mode, cuDNN's choice by timing; what it computes is timed in graphs.

    Plain layers are ``torch.mm(x, w.t(), out=y)``, batches of products ``torch.bmm(x, w, out=y)``; groups of rows are one
    ``torch.mm`` each, by a cut that the host knows, which a server would have to wait for. Other calls make their output.
    """

    width = 1
    alone = False

    def __init__(self, setting: Setting) -> None:
        self._engine = TorchEngine(setting.ordinal)
        self._engine.torch.backends.cudnn.benchmark = True
        self.version = self._engine.version
        self._op: Any = None
        self._last = False
        self._function: Callable[..., Any] = lambda: None
        self._constants: list[dict[str, Any]] = []
        self._cuts: list[tuple[int, tuple[int, int]]] = []  # of grouped products: which rows are each group's
        self._ends: Any = None
        self._calls: list[Call] = []
        self._y: Any = None

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Keep weights as ``torch.nn.Linear`` and ``Conv2d`` do; channels last where images are."""
        self._calls, self._constants, self._y = [], [], None
        self._op, self._last = op, channels_last(op)
        if op.kind != "grouped":
            self._function = expression(self._engine.torch, op)
        self._constants = [{name: self._put(values) for name, values in copy.items()} for copy in copies]
        if self._last and "h" in op.axes:
            for constants in self._constants:
                constants["weight"] = constants["weight"].contiguous(memory_format=self._engine.torch.channels_last)

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One call a copy, all on the same inputs."""
        selected, first = bound(self._op), calls[0]
        placed = {
            name: self._put(values)
            for name, values in first.items()
            if name not in selected and name not in self._op.meaning.ends
        }
        placed |= {name: placed[name].movedim(-1, 1) for name in images_of(self._op) if self._last}
        for name in self._op.meaning.ends:
            self._cuts = [(group, cut) for group, cut in enumerate(pairwise((0, *first[name].tolist()))) if cut[0] < cut[1]]
            self._ends = self._engine.torch.from_numpy(first[name]).to(device="cuda")
        self._y = next(iter(placed.values())).new_empty(y.shape)
        self._calls = []
        for index in range(len(calls)):
            own = self._constants[index] if selected else {}
            self._calls.append(self._call({name: own.get(name, placed.get(name)) for name in first}))
        return self._calls

    def result(self, index: int) -> NDArray[Any]:
        """Of one call, as it is timed; into a poisoned output where it takes one."""
        self._y.fill_(float("nan"))
        made: Any = self._calls[index]()
        made = self._y if made is None else made
        result: NDArray[Any] = (made.movedim(1, -1) if self._last else made).float().cpu().numpy()
        return result

    def clock(self, calls: Sequence[Call]) -> GraphClock:
        """Graphs of torch."""
        return GraphClock(self._engine, calls)

    def _put(self, values: NDArray[Any]) -> Any:
        return self._engine.put(np.asarray(values, np.float32), self._op.dtype)

    def _call(self, tensors: dict[str, Any]) -> Call:
        op = self._op
        if plain_layer(op):
            return partial(self._multiply, tensors["x"], tensors["weight"], self._y)
        if op.kind == "grouped":
            return partial(self._multiply_groups, tensors["x"], tensors["weight"], self._y)
        if op.kind == "batch_matmul" and not op.epilogue:
            return partial(self._engine.torch.bmm, *factors(op, tensors["x"], tensors["w"]), out=self._y)
        return self._expressed(tensors)

    def _expressed(self, tensors: dict[str, Any]) -> Call:
        """A call of the op as it is written in torch; it makes its output."""
        more = {name: tensors.pop(name) for name in self._op.epilogue_operands}
        return partial(self._function, *tensors.values(), **more)

    def _multiply(self, x: Any, w: Any, y: Any) -> None:
        """Queue y = x · w^T."""
        self._engine.torch.mm(x, w.t(), out=y)

    def _multiply_groups(self, x: Any, w: Any, y: Any) -> None:
        """Queue the product of each group's rows."""
        for group, (first, end) in self._cuts:
            self._engine.torch.mm(x[first:end], w[group].t(), out=y[first:end])


class GpuTorchGroupedMm(GpuTorch):
    """``torch._grouped_mm``: one launch, bf16 alone, the cut read on the device."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        if not hasattr(self._engine.torch, "_grouped_mm"):
            raise ImportError("this torch has no _grouped_mm")

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Keep the experts' weights."""
        only(op.dtype, "bf16")
        super().prepare(op, copies)

    def _multiply_groups(self, x: Any, w: Any, y: Any) -> None:
        y.copy_(self._engine.torch._grouped_mm(x, w.transpose(1, 2), offs=self._ends))


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
