"""The matmul of torch (cuBLAS) by the bundle's policy: ``python -m haotuner.bundle.peer_torch SETUP.json``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from haotuner.bundle import policy
from haotuner.bundle.child_process import answer_stream

MISSING = 4
WARM_UP = 3


def serve(setup: dict[str, Any], name: str, multiply: Callable[[Any, Any, Any], None], answers: TextIO) -> None:
    """Time ``multiply(x, w, y)`` (y = x · w^T, all on the GPU) on every task; one JSON line each."""
    import torch

    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    layer: tuple[Any, ...] = ()
    weights: list[Any] = []
    for m, n, k, dtype, state in setup["tasks"]:
        try:
            if layer != (n, k, dtype):
                weights.clear()
                size = n * k * torch.finfo(dtypes[dtype]).bits // 8
                count = policy.weights_of(size, setup["l2_bytes"], setup["rotation_bytes"])
                weights += [torch.rand((n, k), device="cuda", dtype=dtypes[dtype]) - 0.5 for _ in range(count)]
                layer = (n, k, dtype)
            x = torch.rand((m, k), device="cuda", dtype=dtypes[dtype]) - 0.5
            y = torch.empty((m, n), device="cuda", dtype=dtypes[dtype])
            answer = _timed(x, weights, y, state == "cold", multiply)
        except Exception as error:  # a shape the peer refuses is a row
            answer = {
                "failed": {"stage": "run", "reason": "error", "detail": f"{name}: {type(error).__name__}: {error}"[:500]}
            }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


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


def main() -> int:
    """Serve; MISSING where torch or a GPU is not there."""
    answers = answer_stream()
    try:
        import torch
    except ImportError as error:
        print(error, file=sys.stderr)
        return MISSING
    if not torch.cuda.is_available():
        print("torch sees no GPU", file=sys.stderr)
        return MISSING
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        serve(json.loads(Path(sys.argv[1]).read_text()), "torch", lambda x, w, y: torch.mm(x, w.t(), out=y), answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
