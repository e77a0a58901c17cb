"""The matmul of torch (cuBLAS) by the bundle's policy, and the clock that the other peer shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from haotuner.bundle import policy
from haotuner.isolate.answers import MISSING, Job, Refusal
from haotuner.isolate.program import Program, described

WARM_UP = 3


def peer(told: Mapping[str, Any]) -> Program:
    """Times ``torch.mm``. It is missing where torch or a GPU is not there."""
    torch = torch_with_gpu()
    torch.backends.cuda.matmul.allow_tf32 = False
    return Program(verbs={"time": Clock(told, lambda x, w, y: torch.mm(x, w.t(), out=y)).time})


def torch_with_gpu() -> Any:
    """The module torch, without gradients."""
    try:
        import torch
    except ImportError as error:
        raise Refusal("load", MISSING, str(error)) from error
    if not torch.cuda.is_available():
        raise Refusal("load", MISSING, "torch sees no GPU")
    torch.set_grad_enabled(False)
    return torch


class Clock:
    """Times ``multiply(x, w, y)`` (y = x · w^T, all on the GPU); keeps the last layer's weights."""

    def __init__(self, told: Mapping[str, Any], multiply: Callable[[Any, Any, Any], None]) -> None:
        self._l2_bytes, self._rotation_bytes = int(told["l2_bytes"]), int(told["rotation_bytes"])
        self._multiply = multiply
        self._layer: tuple[Any, ...] = ()
        self._weights: list[Any] = []

    def time(self, job: Job) -> Job:
        """Samples of one shape: ``extents`` (m, n, k), ``dtype``, ``weights`` cold or hot."""
        import torch

        dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
        (m, n, k), dtype = job["extents"], dtypes[job["dtype"]]
        try:
            if self._layer != (n, k, dtype):
                self._weights.clear()
                size = n * k * torch.finfo(dtype).bits // 8
                count = policy.weights_of(size, self._l2_bytes, self._rotation_bytes)
                self._weights += [torch.rand((n, k), device="cuda", dtype=dtype) - 0.5 for _ in range(count)]
                self._layer = (n, k, dtype)
            x = torch.rand((m, k), device="cuda", dtype=dtype) - 0.5
            y = torch.empty((m, n), device="cuda", dtype=dtype)
            return _timed(x, self._weights, y, job["weights"] == "cold", self._multiply)
        except Exception as error:  # a shape the peer refuses is a row
            raise Refusal("run", "error", described(error)) from error


def _timed(x: Any, weights: list[Any], y: Any, cold: bool, multiply: Callable[[Any, Any, Any], None]) -> dict[str, Any]:
    import torch

    for number in range(WARM_UP):
        multiply(x, weights[number % len(weights)], y)
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    multiply(x, weights[0], y)
    stop.record()
    stop.synchronize()
    plan = policy.plan(cold=cold, weights=len(weights), one_launch_us=start.elapsed_time(stop) * 1000.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in range(plan.launches):
            multiply(x, weights[launch % plan.weights], y)
    graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(plan.samples + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    events[-1].synchronize()
    pairs = zip(events, events[1:], strict=False)
    samples = [first.elapsed_time(last) * 1000.0 / plan.launches for first, last in pairs]
    exact = x[-1:].double() @ weights[(plan.launches - 1) % plan.weights].double().T
    error = ((y[-1:].double() - exact).abs().max() / exact.abs().max()).item()
    facts = {"launches": plan.launches, "weights": plan.weights, "how": "graph replay", "error_of_largest": error}
    return {"samples_us": samples, "facts": facts}
