"""torch.compile with haotuner's backend beside Inductor alone: an encoder and a stack of layers, at sizes never seen.

``python -m tests.bench.doors.torch_compile BACKEND MODEL`` measures one contender in this process and prints JSON; ``rows``
starts a process for each. ``call`` as BACKEND measures what torch.compile adds to a direct call of the registered op.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.doors.row import Row

BACKENDS = ("haotuner", "inductor")
MODELS = ("encoder", "layers")
NEW_SHAPES = 200  # lengths that come once each, in an order that is drawn
WARM_CALLS = 400
LIMIT_S = 900.0
_FIGURES = ("cold_ms", "first_ms", "p50_us", "p99_us", "throughput", "memory_mb")


def prepare(folder: Path) -> None:
    """Nothing: the backend's first call makes its pack, and that is measured."""
    del folder


def rows(folder: Path) -> list[Row]:
    """A row for each model: haotuner's backend, beside Inductor."""
    del folder
    import torch

    result = []
    for model in MODELS:
        ours, other = (_measured(backend, model) for backend in BACKENDS)
        result.append(
            Row(door="torch_compile", model=model, **{name: ours[name] for name in _FIGURES},
                beside={name: other[name] for name in _FIGURES}, server=f"Inductor of torch {torch.__version__}")
        )  # fmt: skip
    return result


def notes(folder: Path) -> str:
    """What torch.compile adds to a direct call; first calls, graphs, memory and answers over sizes never seen."""
    del folder
    call = _measured("call", "layers")
    more_us = call["backend_us"] - call["direct_us"]
    lines = [
        f"One layer, 64 to 64, three rows, the best of 60 turns: {call['direct_us']:.2f} us by a direct call of its op. The "
        f"backend's function takes {more_us:.2f} us more. A call through torch.compile takes {call['compiled_us']:.0f} us, "
        f"and {call['bare_us']:.0f} us with torch's backend `eager`: guards and frames are torch's."
    ]
    for model in MODELS:
        ours = _measured("haotuner", model)
        lines.append(
            f"{model}: {NEW_SHAPES} sizes never seen. A first call over a warm one of the same size, median: "
            f"{ours['first_over_warm']:.3f}x. Graphs: {ours['graphs']}. Memory grew by {ours['grown_mb']:.1f} MB. "
            f"Difference from eager torch: {ours['difference']:.1e} of the largest value."
        )
    return "\n".join(["", *(f"- {line}" for line in lines)])


@functools.cache
def _measured(backend: str, model: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.doors.torch_compile", backend, model, str(time.time())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:])}: {ended.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


def _model(name: str) -> tuple[Any, int]:
    """A model with random weights, and the width of its input."""
    import torch

    nn = torch.nn
    torch.manual_seed(0)
    if name == "layers":
        widths = (768, 3072, 768, 3072, 768)
        pairs = [(nn.Linear(a, b), nn.GELU()) for a, b in zip(widths, widths[1:], strict=False)]
        return nn.Sequential(*(part for pair in pairs for part in pair)).eval(), 768

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down, self.act = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.GELU()

        def forward(self, x: Any) -> Any:
            b, t, width = x.shape
            parts = self.qkv(x).view(b, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(b, t, width)
            x = self.norm1(x + self.out(mixed))
            return self.norm2(x + self.down(self.act(self.up(x))))

    return nn.Sequential(*(Block(384, 6) for _ in range(4))).eval(), 384


def _resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _us(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6


def measure(backend: str, name: str, started: float) -> dict[str, Any]:
    """Figures of one model by one backend, and ``graphs``, ``first_over_warm``, ``grown_mb``, ``difference``."""
    import random

    import torch

    from haotuner.torch.compile_backend import backend as own

    torch.set_num_threads(1)
    model, width = _model(name)
    compiled = torch.compile(model, backend=own if backend == "haotuner" else backend, dynamic=True)
    stats = torch._dynamo.utils.counters["stats"]
    with torch.inference_mode():
        compiled(torch.randn(1, 40, width))
        cold_ms = (time.time() - started) * 1e3
        lengths = random.Random(0).sample(range(2, 320), NEW_SHAPES)
        compiled(torch.randn(1, 320, width))
        before_mb, graphs, first, ratios = _resident_mb(), stats["unique_graphs"], [], []
        for length in lengths:
            x = torch.randn(1, length, width)
            first.append(_us(functools.partial(compiled, x)))
            ratios.append(first[-1] / statistics.median(_us(functools.partial(compiled, x)) for _ in range(3)))
        grown_mb = _resident_mb() - before_mb
        x = torch.randn(1, 37, width)
        times = sorted(_us(functools.partial(compiled, x)) for _ in range(WARM_CALLS))
        expected = model(x)
        difference = float((compiled(x) - expected).abs().max() / expected.abs().max())
    return {
        "cold_ms": cold_ms, "first_ms": statistics.median(first) / 1e3, "p50_us": statistics.median(times),
        "p99_us": times[int(0.99 * len(times))], "throughput": 1e6 * len(times) / sum(times), "memory_mb": _resident_mb(),
        "graphs": stats["unique_graphs"] - graphs + 1, "first_over_warm": statistics.median(ratios),
        "grown_mb": grown_mb, "difference": difference,
    }  # fmt: skip


def measure_call() -> dict[str, float]:
    """Microseconds of one layer, the best of all turns: by its op, by the backend's function, by torch.compile.

    ``bare_us``: torch.compile with torch's own backend ``eager``, which is what its guards and frames cost alone.
    """
    import torch

    from haotuner.torch import compile_backend
    from haotuner.torch.packed_weights import PackedWeights

    torch.set_num_threads(1)
    layer = torch.nn.Linear(64, 64).eval()
    functions: list[Any] = []
    follow = PackedWeights.followed

    def followed(weights: Any, compiled: Any, pairs: Any, inputs: Any) -> Any:
        function = follow(weights, compiled, pairs, inputs)

        def noted(*args: Any) -> Any:
            functions[:] = [weights, function, args]
            return function(*args)

        return noted

    PackedWeights.followed = followed  # type: ignore[method-assign, assignment]
    compiled = torch.compile(layer, backend=compile_backend.backend, dynamic=True)
    x = torch.randn(3, 64)
    with torch.inference_mode():
        compiled(x)
        weights, function, args = functions
        (op,) = weights.registered.names
        operator, packed = (
            getattr(weights.registered.namespace, op).default,
            weights.registered.pack_weight(op, layer.weight),
        )
        row = layer.bias.detach().clone()
        assert torch.equal(compiled(x), operator(x, packed, row))
        bare = torch.compile(layer, backend="eager", dynamic=True)
        calls = {"direct_us": lambda: operator(x, packed, row), "backend_us": lambda: function(*args),
                 "compiled_us": lambda: compiled(x), "bare_us": lambda: bare(x)}  # fmt: skip
        turns = [[_turn(call) for call in calls.values()] for _ in range(60)]
    return {name: min(turn[index] for turn in turns) for index, name in enumerate(calls)}


def _turn(call: Callable[[], Any], calls: int = 200) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begin) / calls * 1e6


if __name__ == "__main__":
    which, of, start = sys.argv[1], sys.argv[2], float(sys.argv[3])
    print(json.dumps(measure_call() if which == "call" else measure(which, of, start)))
